"""`large`: one transaction of many rows, decoded: peak memory and CPU time of the process.

A table of four columns is filled by one INSERT, then changed by one UPDATE of all rows. Each sample
is a new process, as a worker of Spark is, which counts the rows and keeps none. Its memory must not
grow with the transaction, so the first of two pairs of transactions has an eighth of the rows. At
each wal_level: with `replica`, rows are completed from pages.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

from benchmarks.primary import Primary
from benchmarks.rounds import Spread, Verdict, interleaved, samples_of
from benchmarks.usage import read_usage, rss_peak_bytes
from quorum_wal.pg_fixtures.errors import FixtureError
from quorum_wal.spark.changes.catalog import Catalog
from quorum_wal.spark.changes.catalog_snapshot import take_catalog
from quorum_wal.spark.changes.change_reader import ChangeOptions, read_changes
from quorum_wal.spark.inputs.folder_input import FolderInput
from quorum_wal.spark.inputs.wal_reader import WalRange
from quorum_wal.spark.worker_memory import keep_memory

WAL_LEVELS = ("logical", "replica")
INSERT, UPDATE = "insert", "update"
COLUMNS = ("wal_level, transaction", "rows", "peak MB", "CPU seconds", "thousand rows/s")
PEAK_MB_MAX = 600
ROWS_PER_MEGABYTE = 10_000
_PART = 8
STATEMENTS = {
    INSERT: "INSERT INTO {table} SELECT g, g % 10, 0, 'account ' || g"
    " FROM generate_series(1, {rows}) g",
    UPDATE: "UPDATE {table} SET abalance = aid",
}


@dataclass(frozen=True, slots=True)
class LargeSample:
    """One transaction, decoded by one process."""

    setup: str
    round: int
    rows: int
    peak_bytes: int
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class _Transaction:
    rows: int
    wal_range: WalRange


def measure(primary: Primary, wal_level: str, rounds: int, megabytes: int) -> Iterator[LargeSample]:
    """Yields each sample when it is taken; `megabytes` of WAL for an insertion, about."""
    whole = megabytes * ROWS_PER_MEGABYTE
    transactions: dict[str, _Transaction] = {}
    for rows in (whole // _PART, whole):
        table = f"accounts_{rows}"
        primary.execute(f"CREATE TABLE {table} (aid bigint, bid int, abalance int, filler text)")
        for operation, statement in STATEMENTS.items():
            primary.execute("CHECKPOINT")
            begin_lsn = int(primary.insert_lsn())
            primary.execute(statement.format(table=table, rows=rows))
            end_lsn = int(primary.postgres.flush_lsn())
            name = f"{wal_level}, {operation} of {rows:,}"
            transactions[name] = _Transaction(rows, WalRange(begin_lsn, end_lsn, end_lsn))
    catalog = take_catalog(primary.postgres.dsn())
    for number, name in interleaved(list(transactions), rounds):
        each = transactions[name]
        with ProcessPoolExecutor(1, get_context("spawn")) as worker:
            task = worker.submit(_decode, str(primary.postgres.pg_wal), each.wal_range, catalog)
            found, peak_bytes, cpu_seconds = task.result()
        if found != each.rows:
            raise FixtureError(f"{name}: found {found} rows, expected {each.rows}")
        yield LargeSample(name, number, found, peak_bytes, cpu_seconds)


def _decode(pg_wal: str, wal_range: WalRange, catalog: Catalog) -> tuple[int, int, float]:
    """(rows, peak bytes, CPU seconds)"""
    before = read_usage([os.getpid()]).cpu_seconds
    keep_memory()  # as a worker does
    batches = read_changes(FolderInput(pg_wal), wal_range, ChangeOptions(catalog))
    rows = sum(batch.num_rows for batch in batches)
    return rows, rss_peak_bytes(os.getpid()), read_usage([os.getpid()]).cpu_seconds - before


def table(samples: Sequence[LargeSample]) -> list[list[str]]:
    """Medians of each transaction."""
    rows = [list(COLUMNS)]
    for name, own in _by_setup(samples).items():
        rows.append(
            [
                name,
                f"{own[0].rows:,}",
                Spread.of([s.peak_bytes / (1 << 20) for s in own]).format(0),
                Spread.of([s.cpu_seconds for s in own]).format(1),
                Spread.of([s.rows / s.cpu_seconds / 1e3 for s in own]).format(0),
            ]
        )
    return rows


def verdicts(samples: Sequence[LargeSample]) -> list[Verdict]:
    return [
        Verdict(
            f"memory of a worker, {name}",
            Spread.of([s.peak_bytes / (1 << 20) for s in own]),
            PEAK_MB_MAX,
            at_least=False,
            unit=" MB",
        )
        for name, own in _by_setup(samples).items()
    ]


def _by_setup(samples: Sequence[LargeSample]) -> dict[str, list[LargeSample]]:
    names = dict.fromkeys(sample.setup for sample in samples)
    return {name: samples_of(samples, name) for name in names}
