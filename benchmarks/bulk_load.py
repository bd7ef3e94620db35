"""Loads gigabytes of WAL: one INSERT ... SELECT of rows that cannot be compressed."""

from __future__ import annotations

import time
from dataclasses import dataclass

from benchmarks.primary import Primary
from quorum_wal.pgwal.lsn import Lsn

SOURCE_ROWS = 32_768
MD5_PER_ROW = 64  # of 16 bytes each: below the 2 kB from which a value would be toasted
WAL_BYTES_PER_ROW = 1_090  # the value, the tuple's and the record's headers


@dataclass(frozen=True, slots=True)
class BulkLoad:
    """`seconds`: the time until the commit returned, with `wal_bytes` of WAL."""

    wal_bytes: int
    end_lsn: Lsn
    seconds: float

    @property
    def megabytes_per_second(self) -> float:
        return self.wal_bytes / self.seconds / (1 << 20)


def create_tables(primary: Primary) -> None:
    """Creates `bulk_source` with random rows to copy many times, and the empty `bulk`."""
    primary.execute(
        "CREATE UNLOGGED TABLE bulk_source AS SELECT decode(string_agg("
        "md5(i || '/' || j || '/' || random()), ''), 'hex') AS payload"
        f" FROM generate_series(1, {SOURCE_ROWS}) i, generate_series(1, {MD5_PER_ROW}) j GROUP BY i"
    )
    primary.execute("CREATE TABLE bulk (payload bytea)")
    # Without compression: only longer values could be compressed, and those would be toasted.
    primary.execute("ALTER TABLE bulk ALTER payload SET STORAGE EXTERNAL")


def load(primary: Primary, megabytes: int) -> BulkLoad:
    """Writes about that much WAL, in one transaction that waits for the attached standbys."""
    rows = megabytes * (1 << 20) // WAL_BYTES_PER_ROW
    copies = -(-rows // SOURCE_ROWS)
    begin_lsn = primary.insert_lsn()
    with primary.postgres.connect() as connection:
        begun = time.perf_counter()
        connection.execute(
            f"INSERT INTO bulk SELECT payload FROM generate_series(1, {copies}), bulk_source"
            f" LIMIT {rows}"
        )
        seconds = time.perf_counter() - begun
    end_lsn = primary.insert_lsn()
    return BulkLoad(end_lsn - begin_lsn, end_lsn, seconds)


def remove_wal(primary: Primary) -> None:
    """Empties the table and lets the primary remove its WAL. Slots must be dropped before."""
    primary.execute("TRUNCATE bulk")
    primary.execute("CHECKPOINT")
