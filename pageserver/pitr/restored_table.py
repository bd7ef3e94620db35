"""Queries to a promoted sparse server: the files of a table at the target position, and its rows.

    resolve     the table by its name, its partitions
    files       of all relations that a dump reads: catalogs, sequences, the table, TOAST
    roles       owners and grantees, which the dump names
    dump, copy  pg_dump; COPY as CSV

The file names come from the server's own catalogs. This is safe: `sparse_restore` has checked by
the relation map that pg_class and its indexes are complete.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from pathlib import Path

import psycopg
from psycopg import sql

from quorum_wal.pageserver.errors import PageNotFound, PageserverError, RedoError
from quorum_wal.pageserver.layers.fork import Fork, parse_file
from quorum_wal.pageserver.pitr.catalog_rows import FIRST_NORMAL_OID, LARGE_OBJECTS
from quorum_wal.pageserver.pitr.dump_roles import DumpRoles, read_dump_roles
from quorum_wal.pageserver.pitr.table_name import TableName, quote_name
from quorum_wal.pg_server.binaries import PostgresBinaries
from quorum_wal.pg_server.errors import PgServerError
from quorum_wal.pg_server.program import run_program

DUMP_SECONDS_MAX = 24 * 3600.0
SIMILAR_MAX = 5

_TABLE = """
SELECT c.oid, c.relkind::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p', 'm', 'v', 'f', 'S')
"""
_TABLE_NAMES = """
SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'm') AND n.nspname <> 'pg_catalog' AND n.nspname !~ '^pg_toast'
"""
_FAMILY = """
SELECT c.oid, n.nspname, c.relname, c.relkind::text
FROM (SELECT relid, level FROM pg_partition_tree(%(oid)s) UNION SELECT %(oid)s, 0) t
JOIN pg_class c ON c.oid = t.relid JOIN pg_namespace n ON n.oid = c.relnamespace
ORDER BY t.level, n.nspname, c.relname
"""
_FILES_OF_TABLE = """
WITH wanted AS (
    SELECT oid, reltoastrelid, relkind FROM pg_class
    WHERE oid = ANY(%(family)s) OR (oid < %(normal)s AND oid <> ALL(%(but)s)) OR relkind = 'S'
), toast AS (
    SELECT reltoastrelid AS oid FROM wanted WHERE reltoastrelid <> 0
), index AS (
    SELECT indexrelid AS oid FROM pg_index
    WHERE indrelid IN (SELECT oid FROM toast)
        OR indrelid IN (SELECT oid FROM wanted WHERE relkind = 'm')
)
SELECT c.oid::regclass::text, pg_relation_filepath(c.oid) FROM pg_class c
WHERE c.relkind IN ('r', 'm', 'S', 't', 'i') AND c.relpersistence <> 't' AND c.oid IN
    (SELECT oid FROM wanted UNION SELECT oid FROM toast UNION SELECT oid FROM index)
"""
_FILES_OF_DATABASE = """
SELECT c.oid::regclass::text, pg_relation_filepath(c.oid) FROM pg_class c
WHERE c.relkind IN ('r', 'm', 'S', 't', 'i') AND c.relpersistence <> 't'
"""
_PREPARED = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
_COLUMNS = """
SELECT attname FROM pg_attribute
WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped AND attgenerated = '' ORDER BY attnum
"""
_KINDS = {"v": "a view", "f": "a foreign table", "S": "a sequence"}


class DumpFormat(Enum):
    """Formats of pg_dump."""

    PLAIN = "plain"
    CUSTOM = "custom"


@dataclass(frozen=True, slots=True)
class Relation:
    """A table or one of its partitions. `kind` is relkind."""

    oid: int
    schema: str
    name: str
    kind: str

    def quoted(self) -> str:
        return f"{quote_name(self.schema)}.{quote_name(self.name)}"


@dataclass(frozen=True, slots=True)
class RelationFile:
    """`fork` is the main fork. `path` is as returned by pg_relation_filepath()."""

    relation: str
    path: str
    fork: Fork


class RestoredDatabase:
    """A database of a running server at `conninfo`. Methods raise PageserverError."""

    def __init__(self, binaries: PostgresBinaries, conninfo: str) -> None:
        self._binaries = binaries
        self._conninfo = conninfo

    def check(self) -> None:
        """Checks that a connection is possible."""
        with self._connection():
            pass

    def roll_back_prepared(self) -> None:
        """They are not committed at the target position, and their locks would block the dump."""
        with self._connection() as connection:
            for (gid,) in connection.execute(_PREPARED).fetchall():
                connection.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(gid)))

    def resolve(self, name: TableName, position: str) -> tuple[Relation, ...]:
        """The table, then its partitions. Raises PageNotFound if it does not exist."""
        with self._connection() as connection:
            found = connection.execute(_TABLE, (name.schema, name.table)).fetchone()
            if found is None:
                raise self._no_table(connection, name, position)
            oid, kind = found
            if kind in _KINDS:
                raise PageNotFound(
                    f"{name} is {_KINDS[kind]}, which has no rows of its own",
                    hint="Specify a table, a partitioned table or a materialized view.",
                )
            rows = connection.execute(_FAMILY, {"oid": oid}).fetchall()
        return tuple(Relation(*row) for row in rows)

    def files(self, family: Sequence[Relation] | None) -> list[RelationFile]:
        """All files that a dump of these tables reads, or None for a dump of the database."""
        parameters = {
            "family": [each.oid for each in family or ()],
            "normal": FIRST_NORMAL_OID,
            "but": sorted(LARGE_OBJECTS),
        }
        query = _FILES_OF_DATABASE if family is None else _FILES_OF_TABLE
        with self._connection() as connection:
            rows = connection.execute(query, parameters).fetchall()
        return [_relation_file(relation, path) for relation, path in rows]

    def roles(self, family: Sequence[Relation] | None) -> DumpRoles:
        """The roles that a dump of these tables names, or None for a dump of the database."""
        oids = None if family is None else [each.oid for each in family]
        with self._connection() as connection:
            return read_dump_roles(connection, oids)

    def dump(
        self,
        family: Sequence[Relation] | None,
        path: Path,
        dump_format: DumpFormat,
        arguments: Sequence[str] = (),
    ) -> None:
        """Runs pg_dump into a new file. `family` None dumps the whole database."""
        with _new_file(path) as partial:
            program: list[str | Path] = [
                *(self._binaries.program("pg_dump"), f"--dbname={self._conninfo}"),
                *(f"--format={dump_format.value}", f"--file={partial}"),
                *(f"--table={each.quoted()}" for each in family or ()),
                *arguments,
            ]
            try:
                run_program(program, timeout=DUMP_SECONDS_MAX)
            except PgServerError as error:
                raise RedoError(f"pg_dump failed: {error}", hint=error.hint) from error

    def copy_csv(self, family: Sequence[Relation], path: Path) -> int:
        """Writes a header line, then the rows of the table and its partitions, in the encoding of
        the database. Returns the number of rows. Omits generated columns, as pg_dump does."""
        foreign = [each.quoted() for each in family if each.kind == "f"]
        if foreign:
            raise PageNotFound(
                f"{foreign[0]} is a foreign table, whose rows are not in the WAL",
                hint="Use sk dump output instead, which omits foreign tables.",
            )
        with _new_file(path) as partial, self._connection() as connection:
            ((encoding,),) = connection.execute("SHOW server_encoding").fetchall()
            rows = connection.execute(_COLUMNS, (family[0].oid,)).fetchall()
            columns = [name for (name,) in rows]
            count = 0
            with partial.open("wb") as file:
                for statement in _copies(family, columns, encoding):
                    with connection.cursor() as cursor:
                        with cursor.copy(statement) as copy:
                            for piece in copy:
                                file.write(piece)
                        count += cursor.rowcount
        return count

    @contextmanager
    def _connection(self) -> Iterator[psycopg.Connection]:
        """Converts errors of Postgres to RedoError."""
        try:
            with closing(
                psycopg.connect(self._conninfo, autocommit=True, client_encoding="UTF8")
            ) as connection:
                yield connection
        except psycopg.Error as error:
            raise RedoError(f"could not query the server of the restored pages: {error}") from error

    def _no_table(
        self, connection: psycopg.Connection, name: TableName, position: str
    ) -> PageNotFound:
        rows = connection.execute(_TABLE_NAMES).fetchall()
        texts = {f"{schema}.{table}": table for schema, table in rows}
        same = [text for text, table in texts.items() if table == name.table]
        close = get_close_matches(f"{name.schema}.{name.table}", texts, SIMILAR_MAX)
        similar = list(dict.fromkeys([*same, *close]))[:SIMILAR_MAX]
        return PageNotFound(
            f"table {quote_name(name.schema)}.{quote_name(name.table)} does not exist in database "
            f"{quote_name(name.database)} at {position}",
            hint=f"Similar tables: {', '.join(similar)}." if similar else "Check the table name.",
        )


def _relation_file(relation: str, path: str | None) -> RelationFile:
    found = parse_file(path or "")
    if found is None:
        raise RedoError(f"{relation} has an unexpected file path: {path}")
    return RelationFile(relation, path or "", found[0])


def _copies(
    family: Sequence[Relation], columns: Sequence[str], encoding: str
) -> Iterator[sql.Composed]:
    """COPY statements: the header line, then the rows. COPY of a table is used, because planning a
    query opens the table's indexes, which are not restored. Materialized views need a query, and
    have their indexes."""
    options = sql.SQL("TO STDOUT (FORMAT csv, ENCODING {}").format(sql.Literal(encoding))
    names = sql.SQL(", ").join(
        sql.SQL("NULL AS {}").format(sql.Identifier(name)) for name in columns
    )
    header = sql.SQL("COPY (SELECT {} WHERE false) {}, HEADER)")
    yield header.format(names, options)
    listed = sql.SQL(", ").join(map(sql.Identifier, columns))
    for each in family:
        table = sql.Identifier(each.schema, each.name)
        if each.kind == "m":
            yield sql.SQL("COPY (SELECT {} FROM ONLY {}) {})").format(listed, table, options)
        elif each.kind == "r":
            chosen = sql.SQL("({})").format(listed) if columns else sql.SQL("")
            yield sql.SQL("COPY {} {} {})").format(table, chosen, options)


@contextmanager
def _new_file(path: Path) -> Iterator[Path]:
    """Yields a temporary path beside `path`. It is renamed to `path` if the block succeeds, and
    removed otherwise."""
    if path.exists():
        raise PageserverError(
            f'file "{path}" already exists', hint="Specify a file that does not exist."
        )
    partial = path.with_name(f"{path.name}.partial")
    try:
        yield partial
        os.replace(partial, path)
    except OSError as error:
        raise PageserverError(f'could not write file "{path}": {error}') from error
    finally:
        partial.unlink(missing_ok=True)
