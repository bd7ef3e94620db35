"""WAL by the gigabyte: one INSERT ... SELECT of rows that do not compress."""

from __future__ import annotations

import time
from dataclasses import dataclass

from benchmarks.primary import Primary
from pgwal.lsn import Lsn

SOURCE_ROWS = 32_768
MD5_PER_ROW = 64  # of 16 bytes each: below the 2 kB at which a value would be toasted
WAL_BYTES_PER_ROW = 1_090  # the value, the tuple's and the record's headers


@dataclass(frozen=True, slots=True)
class BulkLoad:
    """`seconds` until the commit returned; `wal_bytes` of WAL were written."""

    wal_bytes: int
    end_lsn: Lsn
    seconds: float

    @property
    def megabytes_per_second(self) -> float:
        return self.wal_bytes / self.seconds / (1 << 20)


def create_tables(primary: Primary) -> None:
    """`bulk_source`, random rows that are copied many times over, and the empty `bulk`."""
    primary.execute(
        "CREATE UNLOGGED TABLE bulk_source AS SELECT decode(string_agg("
        "md5(i || '/' || j || '/' || random()), ''), 'hex') AS payload"
        f" FROM generate_series(1, {SOURCE_ROWS}) i, generate_series(1, {MD5_PER_ROW}) j GROUP BY i"
    )
    primary.execute("CREATE TABLE bulk (payload bytea)")
    # Compression could only be tried on longer values, but then the rows would be no rows.
    primary.execute("ALTER TABLE bulk ALTER payload SET STORAGE EXTERNAL")


def load(primary: Primary, megabytes: int) -> BulkLoad:
    """About so much WAL, in one transaction that waits for whoever is attached."""
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


def forget(primary: Primary) -> None:
    """Empty the table and let the primary remove the WAL; the slots must be dropped before."""
    primary.execute("TRUNCATE bulk")
    primary.execute("CHECKPOINT")
