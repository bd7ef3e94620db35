"""`RelationNames`: names of databases and relations, by the numbers that WAL records have.

    (database, relfilenode) -> RelationName(name, table, is_index)

The first file of a relation has the number of its oid, so a file from before a rewrite has a name,
too. Laws: a number without a name stays a number. Of several catalogs, the newest that has a file
names it. A file that is created after the catalogs has no name. Two files of a relation have
different labels. Source: Postgres `heap_create()`, `GetNewRelFileNumber()`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from quorum_wal.spark.changes.catalog import Catalog, CatalogRows, Table
from quorum_wal.spark.changes.catalog_rows import ClassRow
from quorum_wal.spark.errors import CatalogError

#: the database of shared catalogs, in WAL records
SHARED_DATABASE = 0
#: `pg_tablespace.oid` of pg_global, which has the shared catalogs only
_GLOBAL_TABLESPACE = 1664
_INDEX_KINDS = frozenset("iI")


@dataclass(frozen=True, slots=True)
class RelationName:
    """`table`: the table that an index or a TOAST table belongs to; of others, the name itself.
    `is_first`: the file is the first one of the relation, which has another file in the catalog."""

    name: str
    table: str
    is_index: bool
    is_first: bool = False


@dataclass(frozen=True, slots=True)
class RelationNames:
    databases: Mapping[int, str] = field(default_factory=dict)
    relations: Mapping[tuple[int, int], RelationName] = field(default_factory=dict)

    def database(self, oid: int) -> str:
        return self.databases.get(oid, str(oid))

    def relation(self, database: int, relfilenode: int) -> str:
        found = self.relations.get((database, relfilenode))
        if found is None:
            return str(relfilenode)
        return f"{found.name} (file {relfilenode})" if found.is_first else found.name


def relation_names(catalogs: Iterable[Catalog], system_id: int) -> RelationNames:
    """The names in the catalogs. Raises CatalogError if one is not of the cluster `system_id`."""
    databases: dict[int, str] = {}
    relations: dict[tuple[int, int], RelationName] = {}
    first: dict[tuple[int, int], RelationName] = {}
    parts = [part for catalog in catalogs for part in catalog.parts]
    for catalog in sorted(parts, key=lambda part: part.lsn):
        if catalog.system_id != system_id:
            raise CatalogError(
                f'the catalog of database "{catalog.database_name}" is of system identifier '
                f"{catalog.system_id}, expected {system_id}",
                hint="Take one from this cluster with sk catalog snapshot.",
            )
        databases[catalog.database_oid] = catalog.database_name
        named = dict(_names_of(catalog))
        relations.update(named)
        first.update(_first_files(catalog, named))
    return RelationNames(databases, {**first, **relations})


def _names_of(catalog: Catalog) -> Iterator[tuple[tuple[int, int], RelationName]]:
    toast = {each.toast_oid: each for each in catalog.tables if each.toast_oid}
    of_rows = _index_names(catalog, toast) if catalog.rows is not None else {}
    shared = _shared_names(catalog.rows) if catalog.rows is not None else frozenset()
    for file, name in catalog.file_names().items():
        table = catalog.by_toast_file.get(file)
        found = of_rows.get(file) or RelationName(name, str(table) if table else name, False)
        database = SHARED_DATABASE if name in shared else catalog.database_oid
        yield (database, file), found


def _first_files(
    catalog: Catalog, named: Mapping[tuple[int, int], RelationName]
) -> Iterator[tuple[tuple[int, int], RelationName]]:
    """The names of files that the catalog does not have, because their relations have others."""
    files = {each.oid: each.relfilenode for each in catalog.tables}
    files.update((each.toast_oid, each.toast_relfilenode) for each in catalog.tables)
    if catalog.rows is not None:
        files.update((row.oid, row.relfilenode) for row in catalog.rows.classes)
    for oid, file in files.items():
        found = named.get((catalog.database_oid, file))
        if found is not None and file != oid:
            yield (catalog.database_oid, oid), replace(found, is_first=True)


def _index_names(catalog: Catalog, toast: Mapping[int, Table]) -> dict[int, RelationName]:
    """The indexes by file. System catalogs are mapped to files outside of `pg_class`, so their
    indexes are not in it."""
    assert catalog.rows is not None
    named = catalog.file_names()
    table_of = {row.indexrelid: row.indrelid for row in catalog.rows.indexes}
    found = {}
    for row in catalog.rows.classes:
        if row.relkind not in _INDEX_KINDS or row.relfilenode not in named:
            continue
        name = named[row.relfilenode]
        owner = table_of.get(row.oid, 0)
        if owner in toast:
            table = str(toast[owner])
            found[row.relfilenode] = RelationName(f"{table} (TOAST index)", table, True)
        else:
            known = catalog.by_oid.get(owner)
            found[row.relfilenode] = RelationName(name, str(known) if known else name, True)
    return found


def _shared_names(rows: CatalogRows) -> frozenset[str]:
    schemas = {each.oid: each.nspname for each in rows.namespaces}
    return frozenset(
        f"{schemas.get(row.relnamespace)}.{row.relname}" for row in rows.classes if _is_shared(row)
    )


def _is_shared(row: ClassRow) -> bool:
    return row.reltablespace == _GLOBAL_TABLESPACE
