"""A catalog at a later LSN, made from the followed rows instead of a new snapshot.

Law: it is what `sk catalog snapshot` would take at that LSN, except for types: those that were
dropped remain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from quorum_wal.spark.changes.catalog import Catalog, CatalogLayout, CatalogRows
from quorum_wal.spark.changes.catalog_state import CatalogState
from quorum_wal.spark.changes.schema_history import SchemaHistory

_Row = TypeVar("_Row")


def advanced_catalog(
    catalog: Catalog, state: CatalogState, files: Mapping[int, int], history: SchemaHistory,
    lsn: int, redo_lsn: int,
) -> Catalog:  # fmt: skip
    """`files` are those of the system catalogs. Transactions that are open at `lsn` are found when
    the new catalog is followed."""
    assert catalog.rows is not None
    shown = (state.table(oid) for oid in sorted(state.classes))
    tables = [table for table in shown if table is not None]
    known = {file for table in tables for file in (table.relfilenode, table.toast_relfilenode)}
    ignored = {**catalog.ignored, **history.ignored}
    return Catalog(
        system_id=catalog.system_id,
        version_major=catalog.version_major,
        database_oid=catalog.database_oid,
        database_name=catalog.database_name,
        lsn=lsn,
        wal_level=catalog.wal_level,
        tables=tables,
        types={**catalog.types, **history.epochs[-1]}.values(),
        ignored={file: name for file, name in ignored.items() if file not in known},
        rows=_rows(catalog.rows, state, files, lsn, redo_lsn),
    )


def _rows(
    rows: CatalogRows, state: CatalogState, files: Mapping[int, int], lsn: int, redo_lsn: int
) -> CatalogRows:
    layouts = {
        oid: CatalogLayout(tuple(file for file, of in files.items() if of == oid), layout.columns)
        for oid, layout in rows.layouts.items()
    }
    return replace(
        rows,
        redo_lsn=redo_lsn,
        after_lsn=lsn,
        xmax=None,
        running=(),
        open=(),
        layouts=layouts,
        classes=tuple(state.classes.values()),
        attributes=_all(state.attributes.values()),
        types=tuple(state.types.values()),
        labels=_all(state.labels.values()),
        namespaces=tuple(state.namespaces.values()),
        indexes=_all(state.indexes.values()),
        inherits=_all(state.parents.values()),
        ranges=tuple(state.ranges.values()),
        depends=tuple(state.depends.values()),
        extensions=tuple(state.extensions.values()),
    )


def _all(groups: Iterable[Mapping[int, _Row]]) -> tuple[_Row, ...]:
    return tuple(row for group in groups for row in group.values())
