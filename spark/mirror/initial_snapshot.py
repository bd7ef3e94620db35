"""The first version of a mirror: the rows that one snapshot of a server saw.

    primary   lsn read | older transactions end | snapshot | tables are copied
              changes after lsn, of transactions that the snapshot did not see, come from the WAL
    standby   replay paused | lsn read, snapshot | replay resumed | tables are copied
              commits from lsn on come from the WAL
    then      the caller waits until the WAL has all that the snapshot saw, and creates version 1

Laws. The rows and the catalog come from one snapshot. The tables are locked in ACCESS SHARE mode
before it is taken, so the definitions are those of the snapshot; other sessions can read and write,
but not alter the tables until they are copied. Row security that would hide rows is an error. A
server can show transactions that its WAL has and the followed WAL has not: `synchronous_commit` was
off, or it waits for no quorum. A failover would remove them, so `end_lsn` is where they all end.
Source: Postgres `pg_dump`, `pg_current_snapshot()`; `table_base.py`.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, LiteralString
from uuid import uuid4

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from psycopg import sql

from quorum_wal.objectstore.store import PIECE_BYTES, ObjectStore
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.pgwal.page import LONG_HEADER_SIZE, WAL_PAGE_SIZE
from quorum_wal.spark.changes.catalog import ARRAY, Catalog, Table
from quorum_wal.spark.changes.catalog_row_snapshot import open_transactions
from quorum_wal.spark.changes.catalog_snapshot import PRINT_SETTINGS, read_catalog
from quorum_wal.spark.changes.catalog_state import CatalogState
from quorum_wal.spark.changes.datum import NAMED_OIDS
from quorum_wal.spark.changes.table_definition import Definition, definition_of
from quorum_wal.spark.errors import MirrorError
from quorum_wal.spark.jobs.table_base import passed_lsn
from quorum_wal.spark.mirror.net_changes import row_of
from quorum_wal.spark.mirror.selection import Selection
from quorum_wal.spark.mirror.table_columns import array_of, columns_of, schema_of
from quorum_wal.spark.mirror.table_files import PARQUET_OPTIONS, TableFiles
from quorum_wal.spark.mirror.version import (
    ROWS_PER_BUCKET,
    MirrorFile,
    MirrorTable,
    SeenTransactions,
    Version,
    Versions,
    parents_of,
)

#: of the table in Postgres; a Parquet file takes about a third
TABLE_BYTES_PER_BUCKET = 192 << 20
ROWS_PER_FETCH = 10_000
#: of JSON in memory, before they are written to the files of their buckets
ROWS_PER_GROUP = 100_000
TRY_SECONDS_MAX = 60.0
#: While replay is paused, it does not free the locks that it has.
PAUSED_LOCK_SECONDS_MAX = 1
PAUSE_SECONDS_MAX = 10.0
POLL_SECONDS = 0.05

_NAMES = """
    SELECT c.oid::bigint, n.nspname, c.relname, c.relkind::text,
           (SELECT i.inhparent::bigint FROM pg_inherits i JOIN pg_class p ON p.oid = i.inhparent
             WHERE i.inhrelid = c.oid AND p.relkind = 'p')
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND c.oid >= 16384
       AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')
"""

_SIZES = "SELECT pg_table_size(oid), greatest(reltuples, 0) FROM pg_class WHERE oid = %s"


_SOURCE = """
    SELECT system_identifier, current_database(),
           CASE WHEN NOT pg_is_in_recovery() THEN pg_walfile_name(pg_current_wal_lsn()) END,
           (SELECT received_tli FROM pg_stat_wal_receiver)
      FROM pg_control_system()
"""

#: Its commit record is asynchronous, so the WAL writer flushes all WAL before it at once.
_FLUSH = "SELECT pg_current_xact_id()"


#: what LOCK reports if a table was dropped before, or has a lock
_LOCKED = (psycopg.errors.UndefinedTable, psycopg.errors.LockNotAvailable)


_LOCKED_NOW = (
    "Start the mirror again when no such statement runs, and no such transaction is open or "
    "prepared."
)
_LOCKED_WHILE_PAUSED = (
    "The replay of this server is paused, so its transactions remain open. With --from-backup, "
    "take a new backup when no such transaction is open or prepared. On a standby, call "
    "pg_wal_replay_resume()."
)


class _Retry(Exception):
    """A table was created, renamed or dropped before it was locked, or the replay of a standby has
    its lock."""


@dataclass(frozen=True, slots=True)
class Source:
    """The server of a snapshot, and its database. `tli` is the timeline on which it writes or
    receives WAL; None if it receives none, or does not show it."""

    system_id: int
    database: str
    tli: int | None


@dataclass(frozen=True, slots=True)
class TakenSnapshot:
    """`version` is version 1, whose files are written. All transactions that it has ended below
    `end_lsn` in the WAL of the server; `tli` as in Source."""

    version: Version
    end_lsn: int
    tli: int | None


@dataclass(frozen=True, slots=True)
class InitialSnapshot:
    """How to take one. `url` and `store_options` are those of the mirror."""

    dsn: str
    selection: Selection
    url: str
    store_options: tuple[tuple[str, str], ...] = field(repr=False)
    is_text: bool = False

    def take(self, versions: Versions) -> TakenSnapshot:
        """Writes the files of version 1, but not the version itself.

        Raises MirrorError, CatalogError, ObjectStoreError.
        """
        try:
            with psycopg.connect(self.dsn, autocommit=True) as connection:
                deadline = time.monotonic() + TRY_SECONDS_MAX
                while time.monotonic() < deadline:
                    try:
                        return self._take(connection, versions)
                    except (_Retry, *_LOCKED):
                        connection.rollback()
                    time.sleep(POLL_SECONDS)  # for the replay to go on
                is_paused = _is_standby(connection) and _pause_state(connection) == "paused"
        except psycopg.Error as error:
            raise MirrorError(
                f"the initial snapshot failed: {' '.join(str(error).split())}",
                hint=_hint_of(error),
            ) from error
        raise MirrorError(
            f"for {TRY_SECONDS_MAX:g} s tables were created, altered or dropped in each attempt to "
            "lock them, or another transaction had their locks",
            hint=_LOCKED_WHILE_PAUSED if is_paused else _LOCKED_NOW,
        )

    def source(self) -> Source:
        """Raises MirrorError."""
        try:
            with psycopg.connect(self.dsn, autocommit=True) as connection:
                return _source_of(connection)
        except psycopg.Error as error:
            raise MirrorError(
                f"could not connect for the initial snapshot: {' '.join(str(error).split())}",
                hint="Check --dsn.",
            ) from error

    def _take(self, connection: psycopg.Connection[Any], versions: Versions) -> TakenSnapshot:
        is_standby = _is_standby(connection)
        source = _source_of(connection)
        lsn = None if is_standby else passed_lsn(connection)
        open_xids = open_transactions(connection)
        if is_standby:
            # Paused first: replay that waits for our locks cannot be paused.
            with _paused_replay(self.dsn):
                locked = self._lock(connection, PAUSED_LOCK_SECONDS_MAX)
                ((text,),) = connection.execute("SELECT pg_last_wal_replay_lsn()::text")
                lsn = Lsn.parse(text)
        else:
            locked = self._lock(connection)
        assert lsn is not None
        connection.execute(f"{PRINT_SETTINGS}; SET LOCAL row_security = off")
        catalog = read_catalog(connection, lsn, open_xids)
        end_lsn = int(lsn) if is_standby else _end_of_wal(connection)
        found = self._definitions(catalog)
        if {table.oid for table, _ in found} != locked:
            raise _Retry
        tables = [self._copy(connection, versions.store, catalog, *each) for each in found]
        connection.rollback()
        if not is_standby:
            connection.execute(_FLUSH)
        assert catalog.rows is not None
        version = Version(
            number=1,
            position=int(lsn) - 1,
            commit_time=None,
            batch=None,
            catalog=versions.put_catalog(catalog),
            seen=SeenTransactions(
                before_lsn=int(lsn) if is_standby else catalog.rows.after_lsn,
                since_lsn=int(lsn),
                xmax=catalog.rows.xmax,
                running=catalog.rows.running,
            ),
            tables=tuple(tables),
        )
        return TakenSnapshot(version, end_lsn, source.tli)

    def _lock(
        self, connection: psycopg.Connection[Any], seconds_max: int | None = None
    ) -> set[int]:
        """Begins the transaction and locks the tables, in that time. LOCK does not take the
        snapshot."""
        rows = connection.execute(_NAMES).fetchall()
        names = {oid: f"{schema}.{name}" for oid, schema, name, _, _ in rows}
        above = {oid: parent for oid, _, _, _, parent in rows if parent is not None}

        def parents(oid: int) -> Iterator[str]:
            while (oid := above.get(oid, 0)) in names:
                yield names[oid]

        chosen = [row for row in rows if self.selection.selects(names[row[0]], parents(row[0]))]
        if unmatched := self.selection.unmatched(names.values()):
            raise MirrorError(
                f'no table matches "{unmatched[0]}"',
                hint="Name tables with their schema, and quote patterns in the shell.",
            )
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        if seconds_max is not None:
            connection.execute(f"SET LOCAL lock_timeout = '{seconds_max}s'")
        if chosen:
            listed = sql.SQL(", ").join(
                sql.SQL("ONLY {}").format(sql.Identifier(row[1], row[2])) for row in chosen
            )
            connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(listed))
        if seconds_max is not None:
            connection.execute("SET LOCAL lock_timeout TO DEFAULT")
        return {row[0] for row in chosen}

    def _definitions(self, catalog: Catalog) -> list[tuple[Table, Definition]]:
        assert catalog.rows is not None
        state = CatalogState(catalog.rows, catalog.types)
        found = [(table, definition_of(state, table.oid)) for table in catalog.tables]
        defined = [(table, each) for table, each in found if each is not None]
        by_name = {str(table): each for table, each in defined}
        return [
            (table, each)
            for table, each in defined
            if self.selection.selects(str(table), parents_of(each, by_name))
        ]

    # ---- the rows of one table

    def _copy(
        self,
        connection: psycopg.Connection[Any],
        store: ObjectStore,
        catalog: Catalog,
        table: Table,
        definition: Definition,
    ) -> MirrorTable:
        if definition["kind"] == "partitioned table":
            return MirrorTable(definition)
        ((size, rows),) = connection.execute(_SIZES, (table.oid,))
        buckets = 1 + max(int(size) // TABLE_BYTES_PER_BUCKET, int(rows) // ROWS_PER_BUCKET)
        files = TableFiles(
            self.url,
            self.store_options,
            str(table),
            columns_of(definition, is_text=self.is_text),
            tuple(definition["key"]),
            buckets,
            (),
            version=1,
            token=uuid4().hex[:8],
        )
        query = _query(catalog, table, definition)
        with tempfile.TemporaryDirectory(prefix="sk-mirror-") as scratch:
            writers = _BucketWriters(files, Path(scratch))
            with connection.cursor("mirror") as cursor:
                cursor.execute(query)
                while fetched := cursor.fetchmany(ROWS_PER_FETCH):
                    writers.add([text for (text,) in fetched])
            return MirrorTable(definition, buckets, tuple(writers.finish(store)))


def _source_of(connection: psycopg.Connection[Any]) -> Source:
    ((system_id, name, wal_file, received_tli),) = connection.execute(_SOURCE)
    tli = received_tli if wal_file is None else int(wal_file[:8], 16)
    return Source(system_id % (1 << 64), name, tli)


def _end_of_wal(connection: psycopg.Connection[Any]) -> int:
    """The end of the last record that a primary has written. If a page begins there, the position
    that it reports is behind the page's header."""
    ((text,),) = connection.execute("SELECT pg_current_wal_insert_lsn()::text")
    lsn = int(Lsn.parse(text))
    in_page = lsn % WAL_PAGE_SIZE
    return lsn - in_page if in_page <= LONG_HEADER_SIZE else lsn


def _query(catalog: Catalog, table: Table, definition: Definition) -> sql.Composed:
    """Values of regclass and similar types are oids, as in the changes."""
    by_name = {column.name: column for column in table.columns if not column.is_dropped}
    columns = [
        sql.SQL("{name}{cast} AS {name}").format(
            name=sql.Identifier(each["name"]),
            cast=sql.SQL(_cast(catalog, by_name[each["name"]].type_oid)),
        )
        for each in definition["columns"]
    ]
    return sql.SQL("SELECT row_to_json(t.*)::text FROM (SELECT {} FROM ONLY {}) t").format(
        sql.SQL(", ").join(columns), sql.Identifier(table.schema, table.name)
    )


def _cast(catalog: Catalog, type_oid: int) -> LiteralString:
    if type_oid in NAMED_OIDS:
        return "::oid"
    found = catalog.types.get(type_oid)
    is_array = found is not None and found.kind == ARRAY and found.of_oid in NAMED_OIDS
    return "::oid[]" if is_array else ""


class _BucketWriters:
    """One local file for each bucket, which is copied into the store at the end."""

    def __init__(self, table: TableFiles, folder: Path) -> None:
        self._table = table
        self._folder = folder
        self._rows: list[str] = []
        self._writers: dict[int, pq.ParquetWriter] = {}
        self._counts: dict[int, int] = {}

    def add(self, rows: Sequence[str]) -> None:
        self._rows += rows
        if len(self._rows) >= ROWS_PER_GROUP:
            self._write()

    def finish(self, store: ObjectStore) -> Iterator[MirrorFile]:
        self._write()
        for bucket, writer in sorted(self._writers.items()):
            writer.close()
            local, path = self._local(bucket), self._table.path(bucket)
            store.put(path, _Pieces(local))
            yield MirrorFile(path, bucket, self._counts[bucket], local.stat().st_size)

    def _write(self) -> None:
        if not self._rows:
            return
        parsed = [row_of(text) for text in self._rows]
        self._rows = []
        schema = schema_of(self._table.columns)
        arrays = [
            array_of([row.get(column.name) for row in parsed], column)
            for column in self._table.columns
        ]
        rows = pa.Table.from_arrays(arrays, schema=schema)
        places: dict[int, list[int]] = {}
        for place, bucket in enumerate(self._table.buckets_of(rows)):
            places.setdefault(bucket, []).append(place)
        for bucket, taken in places.items():
            if bucket not in self._writers:
                self._writers[bucket] = pq.ParquetWriter(
                    self._local(bucket), schema, **PARQUET_OPTIONS
                )
            self._writers[bucket].write_table(rows.take(taken))
            self._counts[bucket] = self._counts.get(bucket, 0) + len(taken)

    def _local(self, bucket: int) -> Path:
        return self._folder / f"{bucket}.parquet"


@dataclass(frozen=True, slots=True)
class _Pieces:
    """The content of a file, as often as the store needs it."""

    path: Path

    def __iter__(self) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            while piece := file.read(PIECE_BYTES):
                yield piece


# ---- standbys


def _hint_of(error: psycopg.Error) -> str:
    if isinstance(error, psycopg.errors.SerializationFailure):
        return (
            "The replay of the standby removed what the copy needs. Increase "
            "max_standby_streaming_delay there while it runs, or set hot_standby_feedback."
        )
    return "It needs a normal connection to the database, and SELECT on the tables."


@contextmanager
def _paused_replay(dsn: str) -> Iterator[None]:
    """Pauses the replay of a standby. One that is paused already stays so. Replay that waits for a
    lock of another session does not pause. Raises psycopg.Error, _Retry."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        if _pause_state(connection) == "paused":
            yield
            return
        connection.execute("SELECT pg_wal_replay_pause()")
        try:
            deadline = time.monotonic() + PAUSE_SECONDS_MAX
            while _pause_state(connection) != "paused":
                if time.monotonic() > deadline:
                    raise _Retry
                time.sleep(POLL_SECONDS)
            yield
        finally:
            connection.execute("SELECT pg_wal_replay_resume()")


def _is_standby(connection: psycopg.Connection[Any]) -> bool:
    row = connection.execute("SELECT pg_is_in_recovery()").fetchone()
    assert row is not None
    return bool(row[0])


def _pause_state(connection: psycopg.Connection[Any]) -> str:
    row = connection.execute("SELECT pg_get_wal_replay_pause_state()").fetchone()
    assert row is not None
    return str(row[0])
