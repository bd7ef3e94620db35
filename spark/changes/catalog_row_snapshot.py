"""Reads the rows of the system catalogs, from which their changes are followed in the WAL.

All queries run in the snapshot of `catalog_snapshot.py`. The snapshot decides which transactions it
has seen: `pg_current_snapshot()` on a primary. A standby does not list running transactions there,
but has replayed all commits before its replay position.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import psycopg

from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.spark.changes.catalog import ALIGN, CatalogLayout, CatalogRows, Column
from quorum_wal.spark.changes.catalog_rows import (
    ROW_OF,
    AttributeRow,
    ClassRow,
    DependRow,
    ExtensionRow,
    IndexRow,
    InheritsRow,
    LabelRow,
    NamespaceRow,
    RangeRow,
    TypeRow,
)

_PLACE = """
    SELECT pg_is_in_recovery(), redo_lsn::text, pg_snapshot_xmax(pg_current_snapshot())::text,
           ARRAY(SELECT x::text FROM pg_snapshot_xip(pg_current_snapshot()) x)
      FROM pg_control_checkpoint()
"""

_OPEN = """
    SELECT transactionid::text FROM pg_locks
     WHERE locktype = 'transactionid' AND mode = 'ExclusiveLock' AND granted
"""

_AFTER = """
    SELECT (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
                 ELSE pg_current_wal_insert_lsn() END)::text
"""

_LAYOUTS = """
    SELECT a.attrelid::bigint, pg_relation_filenode(a.attrelid)::bigint, a.attname,
           a.atttypid::bigint, a.attlen, a.attalign::text, a.attbyval, a.attisdropped
      FROM pg_attribute a WHERE a.attrelid = ANY(%s) AND a.attnum > 0
     ORDER BY a.attrelid, a.attnum
"""

_CLASSES = """
    SELECT oid::bigint, relname, relnamespace::bigint, relfilenode::bigint, reltablespace::bigint,
           reltoastrelid::bigint, relkind::text, relpersistence::text, relnatts,
           relrewrite::bigint
      FROM pg_class
"""

_ATTRIBUTES = """
    SELECT a.attrelid::bigint, a.attnum, a.attname, a.atttypid::bigint, a.attlen, a.atttypmod,
           a.attalign::text, a.attbyval, a.attnotnull, a.attgenerated::text, a.attisdropped
      FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
     WHERE c.relkind IN ('r', 'p', 'c') AND c.oid >= 16384 AND a.attnum > 0
"""

_TYPES = """
    SELECT oid::bigint, typname, typnamespace::bigint, typlen, typbyval, typtype::text,
           typalign::text, typrelid::bigint, typelem::bigint, typarray::bigint, typbasetype::bigint
      FROM pg_type
"""

_LABELS = "SELECT oid::bigint, enumtypid::bigint, enumsortorder, enumlabel FROM pg_enum"
_NAMESPACES = "SELECT oid::bigint, nspname FROM pg_namespace"

_INDEXES = """
    SELECT indexrelid::bigint, indrelid::bigint, indnkeyatts, indisprimary, indisreplident,
           indkey::int2[] FROM pg_index WHERE indrelid >= 16384
"""

_INHERITS = "SELECT inhrelid::bigint, inhparent::bigint, inhseqno FROM pg_inherits"

_RANGES = """
    SELECT rngtypid::bigint, rngsubtype::bigint,
           coalesce((to_jsonb(r) ->> 'rngmultitypid')::bigint, 0) FROM pg_range r
"""

#: only the membership of types in extensions
_DEPENDS = """
    SELECT classid::bigint, objid::bigint, refclassid::bigint, refobjid::bigint, deptype::text
      FROM pg_depend WHERE classid = 1247 AND refclassid = 3079 AND deptype = 'e'
"""

_EXTENSIONS = "SELECT oid::bigint, extname FROM pg_extension"


def open_transactions(connection: psycopg.Connection[Any]) -> frozenset[int]:
    """The transactions that are open now, also prepared ones. A snapshot does not list those that
    are younger than all that have ended. Raises psycopg.Error."""
    return frozenset(int(xid) for (xid,) in connection.execute(_OPEN))


def take_rows(
    connection: psycopg.Connection[Any],
    columns: Mapping[int, Sequence[Column]],
    open_xids: frozenset[int],
) -> CatalogRows:
    """`columns` are those of the tables, by oid; `open_xids` the transactions that were open after
    the catalog's LSN and before the snapshot. Raises psycopg.Error."""

    def rows(query: str) -> list[tuple[Any, ...]]:
        return connection.execute(query.encode()).fetchall()

    ((is_standby, redo_lsn, xmax, running),) = rows(_PLACE)
    ((after_lsn,),) = rows(_AFTER)
    return CatalogRows(
        redo_lsn=int(Lsn.parse(redo_lsn)),
        after_lsn=int(Lsn.parse(after_lsn)),
        xmax=None if is_standby else int(xmax),
        running=() if is_standby else tuple(map(int, running)),
        open=tuple(sorted({*open_xids, *(int(xid) % (1 << 32) for xid in running)})),
        layouts=_layouts(connection),
        classes=tuple(ClassRow(*row) for row in rows(_CLASSES)),
        attributes=tuple(_attribute(columns, row) for row in rows(_ATTRIBUTES)),
        types=tuple(TypeRow(*row) for row in rows(_TYPES)),
        labels=tuple(LabelRow(*row) for row in rows(_LABELS)),
        namespaces=tuple(NamespaceRow(*row) for row in rows(_NAMESPACES)),
        indexes=tuple(IndexRow(*(*row[:-1], tuple(row[-1]))) for row in rows(_INDEXES)),
        inherits=tuple(InheritsRow(*row) for row in rows(_INHERITS)),
        ranges=tuple(RangeRow(*row) for row in rows(_RANGES)),
        depends=tuple(DependRow(*row) for row in rows(_DEPENDS)),
        extensions=tuple(ExtensionRow(*row) for row in rows(_EXTENSIONS)),
    )


def _layouts(connection: psycopg.Connection[Any]) -> dict[int, CatalogLayout]:
    files: dict[int, int] = {}
    columns: dict[int, list[Column]] = {}
    for oid, file, name, type_oid, length, align, by_value, is_dropped in connection.execute(
        _LAYOUTS, (list(ROW_OF),)
    ):
        files[oid] = file
        columns.setdefault(oid, []).append(
            Column(name, type_oid, -1, length, ALIGN[align], by_value, is_dropped, None, None)
        )
    return {oid: CatalogLayout((file,), tuple(columns[oid])) for oid, file in files.items()}


def _attribute(columns: Mapping[int, Sequence[Column]], row: tuple[Any, ...]) -> AttributeRow:
    found = AttributeRow(*row)
    mine = columns.get(found.attrelid)
    if mine is None:
        return found
    column = mine[found.attnum - 1]
    if column.missing is None or column.missing_json is None:
        return found
    return found._replace(missing=(column.missing, column.missing_json))
