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

PART, WHOLE = "an eighth", "all rows"
COLUMNS = ("transaction", "rows", "peak MB", "CPU seconds", "thousand rows/s")
PEAK_MB_MAX = 600
ROWS_PER_MEGABYTE = 10_000
_PART = 8


@dataclass(frozen=True, slots=True)
class LargeSample:
    """One transaction, decoded by one process."""

    setup: str
    round: int
    rows: int
    peak_bytes: int
    cpu_seconds: float


def measure(primary: Primary, rounds: int, megabytes: int) -> Iterator[LargeSample]:
    """Yields each sample when it is taken; `megabytes` of WAL, about."""
    primary.postgres.configure(wal_keep_size="64GB", max_wal_size="16GB")
    primary.execute("CREATE TABLE accounts (aid bigint, bid int, abalance int, filler text)")
    begin_lsn = int(primary.insert_lsn())
    rows = {PART: megabytes * ROWS_PER_MEGABYTE // _PART, WHOLE: megabytes * ROWS_PER_MEGABYTE}
    ranges = {}
    for name, count in rows.items():
        primary.execute(
            "INSERT INTO accounts SELECT g, g % 10, 0, 'account ' || g"
            f" FROM generate_series(1, {count}) g"
        )
        end_lsn = int(primary.postgres.flush_lsn())
        ranges[name] = WalRange(begin_lsn, end_lsn, end_lsn)
        begin_lsn = end_lsn
    catalog = take_catalog(primary.postgres.dsn())
    for number, name in interleaved(list(rows), rounds):
        with ProcessPoolExecutor(1, get_context("spawn")) as worker:
            task = worker.submit(_decode, str(primary.postgres.pg_wal), ranges[name], catalog)
            found, peak_bytes, cpu_seconds = task.result()
        if found != rows[name]:
            raise FixtureError(f"found {found} rows, expected {rows[name]}")
        yield LargeSample(name, number, found, peak_bytes, cpu_seconds)


def _decode(pg_wal: str, wal_range: WalRange, catalog: Catalog) -> tuple[int, int, float]:
    """(rows, peak bytes, CPU seconds)"""
    before = read_usage([os.getpid()]).cpu_seconds
    batches = read_changes(FolderInput(pg_wal), wal_range, ChangeOptions(catalog))
    rows = sum(batch.num_rows for batch in batches)
    return rows, rss_peak_bytes(os.getpid()), read_usage([os.getpid()]).cpu_seconds - before


def table(samples: Sequence[LargeSample]) -> list[list[str]]:
    """Medians of each transaction."""
    rows = [list(COLUMNS)]
    for name in (PART, WHOLE):
        own = samples_of(samples, name)
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
            Spread.of([s.peak_bytes / (1 << 20) for s in samples_of(samples, name)]),
            PEAK_MB_MAX,
            at_least=False,
            unit=" MB",
        )
        for name in (PART, WHOLE)
    ]
