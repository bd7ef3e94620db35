"""A table as one snapshot saw it: the base to which `replay_table.py` applies changes.

    base.parquet     key: text of JSON, row: text of JSON; one for each row of the table
                     in the file's metadata: table, key columns, snapshot 745:750:745,748, lsn

Laws. A change is part of the base exactly if the snapshot saw its transaction, whatever its LSN is,
because transactions do not become visible in the order of their commit records. So the file has
the snapshot, and LSNs are not compared. All changes that the snapshot did not see are after `lsn`:
it was read first, then all transactions of that moment ended, and then the snapshot was taken.
Source: Postgres `pg_current_snapshot()`; `snapbuild.c` uses the same method.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import msgspec
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from psycopg import sql

from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.spark.changes.catalog_row_snapshot import open_transactions
from quorum_wal.spark.changes.datum import NAMED_OIDS
from quorum_wal.spark.errors import CatalogError

ROWS_PER_BATCH = 10_000
WAIT_SECONDS = 60.0
POLL_SECONDS = 0.05
SCHEMA = pa.schema([pa.field("key", pa.string()), pa.field("row", pa.string())])
_METADATA = b"quorum-wal.base"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Transactions >= `xmax`, and those in `running`, were not seen. Xids include the epoch."""

    xmin: int
    xmax: int
    running: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> Snapshot:
        """`"745:750:745,748"`. Raises ValueError."""
        xmin, xmax, running = text.split(":")
        return cls(int(xmin), int(xmax), tuple(int(xid) for xid in running.split(",") if xid))


@dataclass(frozen=True, slots=True)
class TableBase:
    """The metadata of the file."""

    table: str
    key: tuple[str, ...]
    snapshot: Snapshot
    lsn: int


def take_base(dsn: str, table: str, path: Path) -> int:
    """Reads the table over a normal connection into a file. Returns the number of rows. Raises
    CatalogError."""
    try:
        with psycopg.connect(dsn, autocommit=True) as connection:
            lsn = passed_lsn(connection)
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            connection.execute(
                "SET LOCAL timezone = 'UTC'; SET LOCAL datestyle = 'ISO';"
                " SET LOCAL intervalstyle = 'postgres'; SET LOCAL bytea_output = 'hex';"
                " SET LOCAL extra_float_digits = 1"
            )
            return _copy(connection, table, lsn, path)
    except psycopg.Error as error:
        raise CatalogError(
            f'table "{table}" cannot be read: {error.diag.message_primary or error}',
            hint="It needs a normal connection to the database, and SELECT on the table.",
        ) from error


def passed_lsn(connection: psycopg.Connection) -> Lsn:
    """A position of a primary before which no transaction had begun that is open now: all that were
    open then have ended. Also those whose clients wait for a quorum: their commit records may be
    before the position, and no snapshot sees them yet. Raises CatalogError, psycopg.Error."""
    ((is_standby,),) = connection.execute("SELECT pg_is_in_recovery()")
    if is_standby:
        raise CatalogError(
            "the server is a standby, which does not list the transactions that are open",
            hint="Name the primary.",
        )
    ((text,),) = connection.execute("SELECT pg_current_wal_insert_lsn()::text")
    # A transaction has the lock of its xid before its first record and until snapshots see it. The
    # snapshot itself does not list those that are younger than all that have ended.
    older = open_transactions(connection)
    deadline = time.monotonic() + WAIT_SECONDS
    while still_open := older & open_transactions(connection):
        if time.monotonic() > deadline:
            raise CatalogError(
                f"transaction {min(still_open)} has been running for more than "
                f"{WAIT_SECONDS:.0f} s",
                hint="The snapshot needs all older transactions to end, also prepared ones and "
                "those that wait for a quorum. End that transaction.",
            )
        time.sleep(POLL_SECONDS)
    return Lsn.parse(text)


def _copy(connection: psycopg.Connection, table: str, lsn: Lsn, path: Path) -> int:
    name = sql.Identifier(*table.split("."))
    key = _key(connection, table)
    row = connection.execute("SELECT pg_current_snapshot()::text").fetchone()
    assert row is not None
    metadata = msgspec.json.encode(
        {"table": table, "key": key, "snapshot": row[0], "lsn": str(lsn)}
    )
    schema = SCHEMA.with_metadata({_METADATA: metadata})
    pairs = sql.SQL(", ").join(
        part for each in key for part in (sql.Literal(each), sql.Identifier("t", each))
    )
    query = sql.SQL(
        "SELECT json_build_object({pairs})::text, row_to_json(t.*)::text"
        " FROM (SELECT {columns} FROM {name}) t"
    ).format(pairs=pairs, columns=_columns(connection, table), name=name)
    count = 0
    with connection.cursor("base") as cursor, pq.ParquetWriter(path, schema) as writer:
        cursor.execute(query)
        while rows := cursor.fetchmany(ROWS_PER_BATCH):
            keys, values = zip(*rows, strict=True)
            writer.write_batch(pa.record_batch([pa.array(keys), pa.array(values)], schema=schema))
            count += len(rows)
    return count


def _columns(connection: psycopg.Connection, table: str) -> sql.Composable:
    """All columns. Those of regclass and similar types are oids, as in the changes."""
    rows = connection.execute(
        "SELECT a.attname, CASE WHEN t.oid = ANY (%(named)s) THEN '::oid'"
        " WHEN t.typelem = ANY (%(named)s) THEN '::oid[]' ELSE '' END"
        " FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid"
        " WHERE a.attrelid = %(table)s::regclass AND a.attnum > 0 ORDER BY a.attnum",
        {"named": list(NAMED_OIDS), "table": table},
    ).fetchall()
    return sql.SQL(", ").join(
        sql.SQL("{name}{cast} AS {name}").format(name=sql.Identifier(name), cast=sql.SQL(cast))
        for name, cast in rows
    )


def _key(connection: psycopg.Connection, table: str) -> list[str]:
    rows = connection.execute(
        "SELECT a.attname FROM pg_index i CROSS JOIN unnest(i.indkey::int2[]) WITH ORDINALITY"
        " AS k(attnum, n) JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum"
        " WHERE i.indrelid = %s::regclass AND i.indisprimary ORDER BY k.n",
        (table,),
    ).fetchall()
    if not rows:
        raise CatalogError(
            f'table "{table}" has no primary key', hint="A replay needs one to identify rows."
        )
    return [name for (name,) in rows]


def read_base(path: Path) -> TableBase:
    """Raises CatalogError."""
    try:
        found = msgspec.json.decode((pq.read_schema(path).metadata or {})[_METADATA])
        snapshot = Snapshot.parse(found["snapshot"])
        return TableBase(
            found["table"], tuple(found["key"]), snapshot, int(Lsn.parse(found["lsn"]))
        )
    except (OSError, KeyError, ValueError, pa.ArrowInvalid, msgspec.DecodeError) as error:
        raise CatalogError(
            f'"{path}" is not a base of a table: {" ".join(str(error).split())}',
            hint="sk spark base makes one.",
        ) from error
