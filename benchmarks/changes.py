"""`changes`: decodes the same WAL to rows, by us on one core, and by pgoutput through psycopg.

Narrow rows: a table of five columns is filled, updated as a whole, and then row by row in separate
transactions. We read the server's segments from the page cache. A walsender decodes pgoutput, and a
loop counts messages by their first byte. The figure is the CPU time, user and system, of all
processes that take part, because the machine may do other work.
"""

from __future__ import annotations

import os
import select
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from psycopg import pq
from psycopg.pq.abc import PGconn

from benchmarks.primary import Primary
from benchmarks.rounds import Spread, Verdict, interleaved, paired_ratios, samples_of
from benchmarks.usage import read_usage
from quorum_wal.pg_fixtures.errors import FixtureError
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.spark.changes.catalog import Catalog
from quorum_wal.spark.changes.catalog_snapshot import take_catalog
from quorum_wal.spark.changes.change_reader import ChangeOptions, read_changes
from quorum_wal.spark.inputs.folder_input import FolderInput
from quorum_wal.spark.inputs.wal_reader import WalRange

JSON, TYPED, CONTROL, PGOUTPUT = "JSON", "typed columns", "JSON again", "pgoutput"
COLUMNS = ("decoder", "CPU seconds", "thousand rows/s", "MB/s of WAL", "rate / pgoutput")
#: of a core, of changes that fit into memory
ROWS_PER_SECOND_MIN = {JSON: 300_000, TYPED: 700_000}

ROWS_PER_MEGABYTE = 1000
SINGLE_ROWS_PART = 20
_SLOT, _PUBLICATION = "changes", "changes"
_XLOG_DATA_HEADER = 25
_POLL_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class ChangesSample:
    """One pass over all WAL."""

    setup: str
    round: int
    rows: int
    wal_bytes: int
    cpu_seconds: float

    @property
    def rows_per_second(self) -> float:
        return self.rows / self.cpu_seconds

    @property
    def megabytes_per_second(self) -> float:
        return self.wal_bytes / self.cpu_seconds / (1 << 20)


@dataclass(frozen=True, slots=True)
class WrittenWal:
    """Changes of `rows` rows between two positions."""

    primary: Primary
    catalog: Catalog
    begin_lsn: Lsn
    end_lsn: Lsn
    rows: int


def measure(primary: Primary, rounds: int, megabytes: int) -> Iterator[ChangesSample]:
    """Yields each sample when it is taken."""
    written = _write(primary, megabytes)
    decoders: dict[str, Callable[[WrittenWal], tuple[int, float]]] = {
        JSON: lambda wal: _decode(wal, is_typed=False),
        TYPED: lambda wal: _decode(wal, is_typed=True),
        PGOUTPUT: _receive,
        CONTROL: lambda wal: _decode(wal, is_typed=False),
    }
    for name, decode in decoders.items():
        found, _ = decode(written)
        if found != written.rows:
            raise FixtureError(f"{name} found {found} rows, expected {written.rows}")
    wal_bytes = written.end_lsn - written.begin_lsn
    for number, name in interleaved(list(decoders), rounds):
        rows, cpu_seconds = decoders[name](written)
        yield ChangesSample(name, number, rows, wal_bytes, cpu_seconds)


def _write(primary: Primary, megabytes: int) -> WrittenWal:
    """Writes about `megabytes` of WAL."""
    rows = megabytes * ROWS_PER_MEGABYTE * 2
    single_rows = rows // SINGLE_ROWS_PART
    primary.postgres.configure(
        synchronous_commit=False,
        wal_keep_size="16GB",
        logical_decoding_work_mem="1GB",  # otherwise transactions are written to disk
    )
    primary.execute(
        "CREATE TABLE accounts (aid int PRIMARY KEY, bid int, abalance int, filler text,"
        " changed timestamptz DEFAULT now())"
    )
    primary.execute(f"CREATE PUBLICATION {_PUBLICATION} FOR TABLE accounts")
    primary.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (_SLOT,))
    begin_lsn = primary.insert_lsn()
    primary.execute(
        "INSERT INTO accounts (aid, bid, abalance, filler) SELECT g, g % 10, 0, 'account ' || g"
        f" FROM generate_series(1, {rows}) g"
    )
    primary.execute("UPDATE accounts SET abalance = abalance + 1")
    primary.execute(
        f"DO $$ BEGIN FOR i IN 1..{single_rows} LOOP"
        " UPDATE accounts SET abalance = i WHERE aid = i; COMMIT; END LOOP; END $$"
    )
    primary.execute("CHECKPOINT")
    catalog, end_lsn = take_catalog(primary.postgres.dsn()), primary.postgres.flush_lsn()
    return WrittenWal(primary, catalog, begin_lsn, end_lsn, 2 * rows + single_rows)


def _decode(wal: WrittenWal, *, is_typed: bool) -> tuple[int, float]:
    """(rows, CPU seconds)"""
    table = wal.catalog.table_named("public.accounts") if is_typed else None
    options = ChangeOptions(wal.catalog, table)
    wal_range = WalRange(wal.begin_lsn, wal.end_lsn, wal.end_lsn)
    wal_input = FolderInput(str(wal.primary.postgres.pg_wal))
    before = read_usage([os.getpid()]).cpu_seconds
    rows = sum(batch.num_rows for batch in read_changes(wal_input, wal_range, options))
    return rows, read_usage([os.getpid()]).cpu_seconds - before


def _receive(wal: WrittenWal) -> tuple[int, float]:
    """(rows, CPU seconds). The slot does not move, because nothing is confirmed."""
    dsn = wal.primary.postgres.dsn(replication="database")
    connection = pq.PGconn.connect(dsn.encode())
    try:
        command = (
            f"START_REPLICATION SLOT {_SLOT} LOGICAL 0/0"
            f" (proto_version '1', publication_names '{_PUBLICATION}')"
        )
        before = read_usage([os.getpid()]).cpu_seconds
        result = connection.exec_(command.encode())
        if result.status != pq.ExecStatus.COPY_BOTH:
            raise FixtureError(f"pgoutput cannot be streamed: {result.get_error_message()}")
        rows = _count_rows(connection, wal.rows)
        ours = read_usage([os.getpid()]).cpu_seconds - before
        return rows, ours + read_usage([connection.backend_pid]).cpu_seconds
    finally:
        connection.finish()


def _count_rows(connection: PGconn, rows_max: int) -> int:
    """Counts rows up to `rows_max`."""
    rows = 0
    while rows < rows_max:
        size, data = connection.get_copy_data(1)
        if size == 0:
            select.select([connection.socket], [], [], _POLL_SECONDS)
            connection.consume_input()
        elif size < 0:
            raise FixtureError("the walsender ended the stream")
        elif bytes(data[:1]) == b"w":
            rows += bytes(data[_XLOG_DATA_HEADER : _XLOG_DATA_HEADER + 1]) in (b"I", b"U", b"D")
        elif data[17]:  # it requests a reply
            connection.put_copy_data(b"r" + struct.pack("!QQQQB", 0, 0, 0, 0, 0))
            connection.flush()
    return rows


def table(samples: Sequence[ChangesSample]) -> list[list[str]]:
    """Medians of each decoder."""
    rows = [list(COLUMNS)]
    for name in (JSON, TYPED, CONTROL, PGOUTPUT):
        own = samples_of(samples, name)
        rows.append(
            [
                name,
                Spread.of([s.cpu_seconds for s in own]).format(2),
                f"{Spread.of([s.rows_per_second for s in own]).median / 1e3:.0f}",
                f"{Spread.of([s.megabytes_per_second for s in own]).median:.0f}",
                paired_ratios(samples, "rows_per_second", name, PGOUTPUT).format(2),
            ]
        )
    return rows


def verdicts(samples: Sequence[ChangesSample]) -> list[Verdict]:
    control = paired_ratios(samples, "rows_per_second", CONTROL, JSON)
    return [
        Verdict(
            f"{rows_min:,} rows a second and core, {name}",
            Spread.of([s.rows_per_second / rows_min for s in samples_of(samples, name)]),
            1.0,
            True,
            control,
        )
        for name, rows_min in ROWS_PER_SECOND_MIN.items()
    ]
