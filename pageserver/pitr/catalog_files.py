"""Finds the files that a table may have from the pages of its catalogs, without a server.

    pg_filenode.map --> pg_class --> oid, name, schema, file number, toast of every version
                             `-----> pg_namespace, pg_inherits, pg_index

Law: too many files do no harm, but a missing file makes a table silently too short. So all versions
of all rows count, including those of transactions that are open at the cut. VACUUM FULL and ALTER
TYPE write the new heap under the name pg_temp_<oid>, and it becomes the table's heap on commit. The
WAL after the cut may rename tables or attach partitions. That cannot be seen here; `restored_table`
queries the server for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from quorum_wal.pageserver.epochs.page_files import READ_BLOCKS, PageFiles
from quorum_wal.pageserver.errors import LayerDamaged
from quorum_wal.pageserver.layers.fork import GLOBAL_TABLESPACE, Fork, ForkKind, database_path
from quorum_wal.pageserver.layers.fork_table import ForkTable, read_fork_table
from quorum_wal.pageserver.layers.frame import Frame
from quorum_wal.pageserver.layers.page_run import PageRun
from quorum_wal.pageserver.layers.page_stack import PageBase
from quorum_wal.pageserver.layers.touches import Database
from quorum_wal.pageserver.pitr.catalog_rows import (
    FIRST_NORMAL_OID,
    LARGE_OBJECTS,
    PG_AUTHID,
    PG_CLASS,
    PG_DATABASE,
    PG_INDEX,
    PG_INHERITS,
    PG_NAMESPACE,
    TEMPORARY_HEAP,
    ClassRow,
    NamedRow,
    RoleRow,
    parse_class_row,
    parse_named_row,
    parse_pair_row,
    parse_role_row,
)
from quorum_wal.pageserver.pitr.heap_page import heap_rows
from quorum_wal.pageserver.pitr.relation_map import MAP_FILE, parse_relation_map
from quorum_wal.pageserver.pitr.table_name import TableName

_SEQUENCE, _TOAST, _MATVIEW = b"S", b"t", b"m"


@dataclass(frozen=True)
class CatalogPages:
    """Of a cut or a data directory. `read_file` returns None for a file that does not exist."""

    pg_major: int
    version_folder: str
    forks: ForkTable
    source: PageBase
    read_file: Callable[[str], bytes | None]

    def relation_map(self, database: Database) -> Mapping[int, int]:
        """Empty if the database has none. Raises LayerDamaged."""
        folder = database_path(database.tablespace, database.database, self.version_folder)
        data = self.read_file(f"{folder}/{MAP_FILE}")
        return {} if data is None else parse_relation_map(data)

    def rows(self, fork: Fork) -> Iterator[bytes]:
        """All versions of all rows; none if the fork does not exist. Raises PageserverError."""
        length = self.forks.get(fork, 0)
        for first in range(0, length, READ_BLOCKS):
            last = min(first + READ_BLOCKS, length)
            for blocks, data in self.source.read(fork, np.arange(first, last, dtype=np.uint32)):
                for _, page in PageRun(fork, blocks, data).pages():
                    yield from heap_rows(bytes(page))

    def databases(self) -> list[NamedRow]:
        """All row versions of pg_database. Raises PageserverError."""
        return [parse_named_row(row) for row in self._global_rows(PG_DATABASE)]

    def roles(self) -> list[RoleRow]:
        """Raises PageserverError."""
        return [parse_role_row(row) for row in self._global_rows(PG_AUTHID)]

    def superusers(self) -> list[str]:
        """Names of superusers with LOGIN, the oldest first. All row versions count, so some may not
        be able to log in. Raises PageserverError."""
        roles = sorted(self.roles(), key=lambda role: role.oid)
        able = [role.name for role in roles if role.is_superuser and role.may_log_in]
        return [name.decode(errors="surrogateescape") for name in dict.fromkeys(able)]

    def _global_rows(self, catalog: int) -> Iterator[bytes]:
        number = self.relation_map(Database(GLOBAL_TABLESPACE, 0)).get(catalog)
        if number is None:
            raise LayerDamaged(f"global/{MAP_FILE} does not list catalog {catalog}")
        return self.rows(Fork(GLOBAL_TABLESPACE, 0, number, ForkKind.MAIN))

    def tablespaces_of(self, database: int) -> list[Database]:
        """The tablespaces in which the database has files."""
        found = {
            Database(fork.tablespace, database)
            for fork in self.forks
            if fork.database == database and fork.tablespace != GLOBAL_TABLESPACE
        }
        return sorted(found)


def pages_at_cut(frame: Frame, source: PageBase, pg_major: int) -> CatalogPages:
    """Raises LayerDamaged."""
    names = frame.names()
    return CatalogPages(
        pg_major,
        frame.control_file().version_folder(pg_major),
        frame.forks,
        source,
        lambda name: frame.read(name) if name in names else None,
    )


def pages_in_directory(data_dir: Path, pg_major: int, version_folder: str) -> CatalogPages:
    """The server must have written all its pages."""

    def read_file(name: str) -> bytes | None:
        path = data_dir / name
        return path.read_bytes() if path.exists() else None

    return CatalogPages(
        pg_major,
        version_folder,
        read_fork_table(data_dir),
        PageFiles(data_dir, version_folder, lambda path: None),
        read_file,
    )


class DatabaseCatalogs:
    """The catalogs of one database. Every method raises PageserverError."""

    def __init__(self, pages: CatalogPages, database: int) -> None:
        self._pages = pages
        self._database = database
        self._map: dict[int, set[int]] = defaultdict(set)
        for folder in pages.tablespaces_of(database):
            for oid, number in pages.relation_map(folder).items():
                self._map[oid].add(number)

    def table_numbers(self, name: TableName) -> frozenset[tuple[int, int]]:
        """(database, file number) of all files that a dump of the table reads: the table, its
        children and TOAST tables, all sequences, and all catalogs but large objects."""
        schemas = {
            row.oid
            for row in map(parse_named_row, self._rows(PG_NAMESPACE))
            if row.name == name.schema.encode()
        }
        table = name.table.encode()
        roots = {row.oid for row in self._classes if row.name == table and row.namespace in schemas}
        catalogs = {row.oid for row in self._classes if row.oid < FIRST_NORMAL_OID} - LARGE_OBJECTS
        sequences = {row.oid for row in self._classes if row.kind == _SEQUENCE}
        return self._files(self._with_parts(roots | catalogs) | sequences)

    def map_numbers(self) -> frozenset[tuple[int, int]]:
        """The catalogs that have no file number in pg_class."""
        return frozenset(
            (self._database, number) for numbers in self._map.values() for number in numbers
        )

    def _files(self, oids: Iterable[int]) -> frozenset[tuple[int, int]]:
        numbers = {number for oid in oids for number in self._numbers[oid]}
        return self.map_numbers() | {(self._database, number) for number in numbers}

    def _with_parts(self, roots: set[int]) -> set[int]:
        """Adds children, heaps that are being rewritten, and TOAST with indexes, recursively."""
        found: set[int] = set()
        pending = set(roots)
        while pending:
            oid = pending.pop()
            found.add(oid)
            more = self._children[oid] | self._heaps_by_name[TEMPORARY_HEAP % oid]
            for row in self._by_oid[oid]:
                more |= {row.toast} if row.toast else set()
                more |= self._indexes[oid] if row.kind in (_TOAST, _MATVIEW) else set()
            pending |= more - found
        return found

    def _rows(self, catalog: int) -> Iterator[bytes]:
        for number in self._numbers[catalog]:
            yield from self._number_rows(number)

    def _number_rows(self, number: int) -> Iterator[bytes]:
        for folder in self._pages.tablespaces_of(self._database):
            fork = Fork(folder.tablespace, self._database, number, ForkKind.MAIN)
            yield from self._pages.rows(fork)

    @cached_property
    def _classes(self) -> list[ClassRow]:
        return [
            parse_class_row(row, self._pages.pg_major)
            for number in self._map[PG_CLASS]
            for row in self._number_rows(number)
        ]

    @cached_property
    def _numbers(self) -> defaultdict[int, set[int]]:
        found: defaultdict[int, set[int]] = defaultdict(set, self._map)
        for row in self._classes:
            if row.number:
                found[row.oid].add(row.number)
        return found

    @cached_property
    def _by_oid(self) -> defaultdict[int, list[ClassRow]]:
        found: defaultdict[int, list[ClassRow]] = defaultdict(list)
        for row in self._classes:
            found[row.oid].append(row)
        return found

    @cached_property
    def _heaps_by_name(self) -> defaultdict[bytes, set[int]]:
        found: defaultdict[bytes, set[int]] = defaultdict(set)
        for row in self._classes:
            found[row.name].add(row.oid)
        return found

    @cached_property
    def _children(self) -> defaultdict[int, set[int]]:
        found: defaultdict[int, set[int]] = defaultdict(set)
        for child, parent in map(parse_pair_row, self._rows(PG_INHERITS)):
            found[parent].add(child)
        return found

    @cached_property
    def _indexes(self) -> defaultdict[int, set[int]]:
        found: defaultdict[int, set[int]] = defaultdict(set)
        for index, table in map(parse_pair_row, self._rows(PG_INDEX)):
            found[table].add(index)
        return found
