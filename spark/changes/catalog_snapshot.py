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
from quorum_wal.spark.changes.catalog import (
    ALIGN,
    ARRAY,
    COMPOSITE,
    Attribute,
    Catalog,
    Column,
    Table,
    Type,
)
from quorum_wal.spark.changes.catalog_row_snapshot import open_transactions, take_rows
from quorum_wal.spark.changes.datum import MONEY, NAMED_OIDS, Datums
from quorum_wal.spark.changes.datum_money import SAMPLES
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

#: a missing value is the only element of an array. Of the types without a comma as delimiter, box
#: and box[], the text has no quotes.
_COLUMNS = r"""
    SELECT a.attrelid::bigint, a.attname, a.atttypid::bigint, a.atttypmod, a.attlen,
           a.attalign::text, a.attbyval, a.attisdropped OR a.attgenerated = 'v',
           CASE WHEN NOT a.atthasmissing THEN NULL
                WHEN t.typdelim = ',' THEN (a.attmissingval::text::text[])[1]
                ELSE btrim(regexp_replace(a.attmissingval::text, '^{(.*)}$', '\1'), '"') END,
           format_type(a.atttypid, a.atttypmod)
      FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
      LEFT JOIN pg_type t ON t.oid = a.atttypid
     WHERE c.relkind IN ('r', 'p') AND c.oid >= 16384 AND a.attnum > 0
     ORDER BY a.attrelid, a.attnum
"""

#: all types that are not a table's rows, and all of which the columns consist; pg_range of Postgres
#: 13 has no rngmultitypid
_TYPES = """
    WITH RECURSIVE ranges (oid, of_oid) AS (
        SELECT rngtypid, rngsubtype FROM pg_range
         UNION ALL
        SELECT (to_jsonb(r) ->> 'rngmultitypid')::oid, rngtypid FROM pg_range r
    ), used (oid) AS (
        SELECT atttypid FROM pg_attribute WHERE attrelid >= 16384 AND attnum > 0
         UNION
        SELECT part.oid FROM used JOIN pg_type t ON t.oid = used.oid CROSS JOIN LATERAL (
            SELECT t.typelem UNION ALL SELECT t.typbasetype
            UNION ALL SELECT r.of_oid FROM ranges r WHERE r.oid = t.oid
            UNION ALL SELECT a.atttypid FROM pg_attribute a
                       WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND t.typtype = 'c'
        ) part (oid)
    )
    SELECT t.oid::bigint, t.typname, t.typtype::text, t.typelem::bigint,
           coalesce(r.of_oid, t.typbasetype)::bigint, t.typlen, t.typalign::text, t.typbyval,
           t.typlen = -1 AND t.typelem <> 0
               AND EXISTS (SELECT FROM pg_type e WHERE e.typarray = t.oid),
           CASE t.typtype WHEN 'c' THEN t.typrelid ELSE 0 END::bigint,
           coalesce((SELECT e.extname FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
                      WHERE d.classid = 'pg_type'::regclass AND d.objid = t.oid
                        AND d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'), '')
      FROM pg_type t LEFT JOIN ranges r ON r.oid = t.oid
     WHERE t.typtype IN ('b', 'd', 'e', 'r', 'm') OR t.oid IN (SELECT oid FROM used)
        OR t.typrelid IN (SELECT oid FROM pg_class WHERE relkind = 'c' AND oid >= 16384)
     ORDER BY t.oid
"""

_ATTRIBUTES = """
    SELECT t.oid::bigint, a.attname, a.atttypid::bigint, a.attlen, a.attalign::text, a.attisdropped
      FROM pg_type t JOIN pg_attribute a ON a.attrelid = t.typrelid AND a.attnum > 0
     WHERE t.oid = ANY (%s::oid[])
     ORDER BY t.oid, a.attnum
"""

#: in the format of lc_monetary, which is the database's default
_MONEY = "SELECT amount::money::text FROM unnest(%s::int[]) amount"

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
            open_xids = open_transactions(connection)
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            # Names and missing values must be printed as the decoder prints them.
            connection.execute(
                "SET LOCAL search_path = pg_catalog; SET LOCAL timezone = 'UTC';"
                " SET LOCAL datestyle = 'ISO'; SET LOCAL intervalstyle = 'postgres';"
                " SET LOCAL bytea_output = 'hex'; SET LOCAL extra_float_digits = 1"
            )
            return _read(connection, Lsn.parse(lsn), open_xids)
    except psycopg.Error as error:
        raise CatalogError(
            f"the catalog cannot be taken: {' '.join(str(error).split())}",
            hint="It needs a normal connection to the database, to the primary or a standby.",
        ) from error


def _read(connection: psycopg.Connection[Any], lsn: Lsn, open_xids: frozenset[int]) -> Catalog:
    ((system_id, major, wal_level, database_oid, database_name, encoding),) = connection.execute(
        _SERVER
    )
    if encoding != "UTF8":
        raise CatalogError(
            f'database "{database_name}" is encoded in {encoding}, expected UTF8',
            hint="Its rows cannot be decoded; its WAL records can be read with pg_wal.",
        )
    types = _read_types(connection)
    datums = Datums({each.oid: each for each in types})
    columns: dict[int, list[Column]] = {}
    for row in connection.execute(_COLUMNS).fetchall():
        columns.setdefault(row[0], []).append(_column(connection, datums, row))
    return Catalog(
        system_id=system_id % (1 << 64),
        version_major=major,
        database_oid=database_oid,
        database_name=database_name,
        lsn=lsn,
        wal_level=wal_level,
        tables=[_table(row, tuple(columns.get(row[0], ()))) for row in connection.execute(_TABLES)],
        types=types,
        ignored=dict(connection.execute(_IGNORED).fetchall()),
        rows=take_rows(connection, columns, open_xids),
    )


def _column(connection: psycopg.Connection[Any], datums: Datums, row: tuple[Any, ...]) -> Column:
    _, name, type_oid, typmod, length, align, by_value, dropped, missing, type_name = row
    missing_json = None
    if missing is not None:
        missing, missing_json = _missing(connection, datums.base_oid(type_oid), missing, type_name)
    return Column(
        name, type_oid, typmod, length, ALIGN[align], by_value, dropped, missing, missing_json
    )  # fmt: skip


def _missing(
    connection: psycopg.Connection[Any], base_oid: int, text: str, type_name: str
) -> tuple[str, str]:
    """The value as text of a typed column, and as JSON."""
    value: sql.Composable = sql.SQL("{}::text::{}").format(sql.Literal(text), sql.SQL(type_name))
    printed: sql.Composable = sql.Literal(text)
    if base_oid in NAMED_OIDS:
        value = printed = sql.SQL("{}::oid").format(value)
    elif base_oid == MONEY:
        printed = sql.SQL("{}::numeric").format(value)
    query = sql.SQL("SELECT {}::text, to_json({})::text").format(printed, value)
    ((text, json),) = connection.execute(query)
    return text, json


def _table(row: tuple[Any, ...], columns: tuple[Column, ...]) -> Table:
    oid, relfilenode, schema, name, toast_oid, toast_file, primary, replica = row
    key = _positions(primary) or _positions(replica)
    return Table(oid, relfilenode or 0, schema, name, toast_oid, toast_file, key, columns)


def _positions(numbers: list[int] | None) -> tuple[int, ...]:
    return tuple(number - 1 for number in numbers or ())


def _read_types(connection: psycopg.Connection[Any]) -> list[Type]:
    labels: dict[int, dict[int, str]] = {}
    for type_oid, oid, label in connection.execute(_LABELS):
        labels.setdefault(type_oid, {})[oid] = label
    rows = connection.execute(_TYPES).fetchall()
    attributes: dict[int, list[Attribute]] = {}
    composite = [row[0] for row in rows if row[2] == COMPOSITE]
    for type_oid, name, oid, length, align, dropped in connection.execute(
        _ATTRIBUTES, (composite,)
    ):
        attribute = Attribute(name, oid, length, ALIGN[align], dropped)
        attributes.setdefault(type_oid, []).append(attribute)
    samples = tuple(text for (text,) in connection.execute(_MONEY, (list(SAMPLES),)))
    return [
        _type(row, labels.get(row[0], {}), tuple(attributes.get(row[0], ())), samples)
        for row in rows
    ]


def _type(
    row: tuple[Any, ...],
    labels: dict[int, str],
    attributes: tuple[Attribute, ...],
    samples: tuple[str, ...],
) -> Type:
    oid, name, kind, element, of_oid, length, align, by_value, is_array, relation, extension = row
    return Type(
        oid,
        name,
        ARRAY if is_array else kind,
        element if is_array else of_oid,
        length,
        ALIGN[align],
        by_value,
        labels,
        relation,
        attributes,
        extension,
        samples if oid == MONEY else (),
    )
