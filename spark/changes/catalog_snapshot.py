"""Takes the catalog of one database over a normal connection to the primary or a standby.

All queries use one snapshot (REPEATABLE READ, READ ONLY), without locks. The WAL position is read
before the snapshot is taken, so the catalog may contain newer changes, but does not lack older
ones.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import sql

from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.spark.changes.catalog import ARRAY, Catalog, Column, Table, Type
from quorum_wal.spark.changes.catalog_row_snapshot import ALIGN, take_rows
from quorum_wal.spark.errors import CatalogError

_SERVER = """
    SELECT (SELECT system_identifier FROM pg_control_system()),
           current_setting('server_version_num')::int / 10000, current_setting('wal_level'),
           d.oid::bigint, d.datname, pg_encoding_to_char(d.encoding)
      FROM pg_database d WHERE d.datname = current_database()
"""

_LSN = """
    SELECT (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
                 ELSE pg_current_wal_insert_lsn() END)::text
"""

_TABLES = """
    SELECT c.oid::bigint, c.relfilenode::bigint, n.nspname, c.relname, c.reltoastrelid::bigint,
           coalesce(t.relfilenode, 0)::bigint,
           (SELECT (i.indkey::int2[])[0:i.indnkeyatts - 1] FROM pg_index i
             WHERE i.indrelid = c.oid AND i.indisprimary),
           (SELECT (i.indkey::int2[])[0:i.indnkeyatts - 1] FROM pg_index i
             WHERE i.indrelid = c.oid AND i.indisreplident)
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
      LEFT JOIN pg_class t ON t.oid = c.reltoastrelid
     WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND c.oid >= 16384
       AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')
     ORDER BY c.oid
"""

_COLUMNS = """
    SELECT a.attrelid::bigint, a.attname, a.atttypid::bigint, a.atttypmod, a.attlen,
           a.attalign::text, a.attbyval, a.attisdropped OR a.attgenerated = 'v',
           CASE WHEN a.atthasmissing THEN (a.attmissingval::text::text[])[1] END,
           format_type(a.atttypid, a.atttypmod)
      FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
     WHERE c.relkind IN ('r', 'p') AND c.oid >= 16384 AND a.attnum > 0
     ORDER BY a.attrelid, a.attnum
"""

_TYPES = """
    SELECT t.oid::bigint, t.typname, t.typtype::text, t.typelem::bigint, t.typbasetype::bigint,
           t.typlen, t.typalign::text, t.typbyval,
           t.typlen = -1 AND t.typelem <> 0
               AND EXISTS (SELECT FROM pg_type e WHERE e.typarray = t.oid)
      FROM pg_type t WHERE t.typtype IN ('b', 'd', 'e', 'r', 'm') OR t.oid IN
           (SELECT a.atttypid FROM pg_attribute a WHERE a.attrelid >= 16384)
     ORDER BY t.oid
"""

_LABELS = "SELECT enumtypid::bigint, oid::bigint, enumlabel FROM pg_enum"

#: everything with a file that is not a table: system catalogs, materialized views, indexes, ...
_IGNORED = """
    SELECT pg_relation_filenode(c.oid)::bigint, n.nspname || '.' || c.relname FROM pg_class c
      JOIN pg_namespace n ON n.oid = c.relnamespace
      LEFT JOIN pg_class o ON o.reltoastrelid = c.oid
     WHERE pg_relation_filenode(c.oid) IS NOT NULL
       AND NOT (coalesce(o.relkind, c.relkind) = 'r' AND coalesce(o.oid, c.oid) >= 16384
                AND n.nspname NOT IN ('pg_catalog', 'information_schema'))
"""


def take_catalog(dsn: str) -> Catalog:
    """Raises CatalogError."""
    try:
        with psycopg.connect(dsn, autocommit=True) as connection:
            ((lsn,),) = connection.execute(_LSN)
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            # Names and missing values must be printed as the decoder prints them.
            connection.execute(
                "SET LOCAL search_path = pg_catalog; SET LOCAL timezone = 'UTC';"
                " SET LOCAL datestyle = 'ISO'; SET LOCAL intervalstyle = 'postgres';"
                " SET LOCAL bytea_output = 'hex'; SET LOCAL extra_float_digits = 1"
            )
            return _read(connection, Lsn.parse(lsn))
    except psycopg.Error as error:
        raise CatalogError(
            f"the catalog cannot be taken: {' '.join(str(error).split())}",
            hint="It needs a normal connection to the database, to the primary or a standby.",
        ) from error


def _read(connection: psycopg.Connection[Any], lsn: Lsn) -> Catalog:
    ((system_id, major, wal_level, database_oid, database_name, encoding),) = connection.execute(
        _SERVER
    )
    if encoding != "UTF8":
        raise CatalogError(
            f'database "{database_name}" is encoded in {encoding}, expected UTF8',
            hint="Its rows cannot be decoded; its WAL records can be read with pg_wal.",
        )
    columns: dict[int, list[Column]] = {}
    for row in connection.execute(_COLUMNS).fetchall():
        columns.setdefault(row[0], []).append(_column(connection, row))
    labels: dict[int, dict[int, str]] = {}
    for type_oid, oid, label in connection.execute(_LABELS):
        labels.setdefault(type_oid, {})[oid] = label
    return Catalog(
        system_id=system_id % (1 << 64),
        version_major=major,
        database_oid=database_oid,
        database_name=database_name,
        lsn=lsn,
        wal_level=wal_level,
        tables=[_table(row, tuple(columns.get(row[0], ()))) for row in connection.execute(_TABLES)],
        types=[_type(row, labels) for row in connection.execute(_TYPES)],
        ignored=dict(connection.execute(_IGNORED).fetchall()),
        rows=take_rows(connection, columns),
    )


def _column(connection: psycopg.Connection[Any], row: tuple[Any, ...]) -> Column:
    _, name, type_oid, typmod, length, align, by_value, dropped, missing, type_name = row
    missing_json = None
    if missing is not None:
        literal = sql.Literal(missing)
        query = sql.SQL("SELECT to_json({}::text::{})::text").format(literal, sql.SQL(type_name))
        ((missing_json,),) = connection.execute(query)
    return Column(
        name, type_oid, typmod, length, ALIGN[align], by_value, dropped, missing, missing_json
    )  # fmt: skip


def _table(row: tuple[Any, ...], columns: tuple[Column, ...]) -> Table:
    oid, relfilenode, schema, name, toast_oid, toast_file, primary, replica = row
    key = _positions(primary) or _positions(replica)
    return Table(oid, relfilenode or 0, schema, name, toast_oid, toast_file, key, columns)


def _positions(numbers: list[int] | None) -> tuple[int, ...]:
    return tuple(number - 1 for number in numbers or ())


def _type(row: tuple[Any, ...], labels: dict[int, dict[int, str]]) -> Type:
    oid, name, kind, element, base, length, align, by_value, is_array = row
    return Type(
        oid,
        name,
        ARRAY if is_array else kind,
        element if is_array else base,
        length,
        ALIGN[align],
        by_value,
        labels.get(oid, {}),
    )
