"""Restores one table or one database to a position: a sparse server with the pages of a dump.

    cut C_i          target X
    |--- WAL --------|         stock Postgres replays from the redo of C_i over sparse files,
    frame + FileSet  |         is promoted at X, dumped, and removed
                     `--> are all files of the table at X in the set, or created by the WAL?
                          no: repeat with these files added; if that does not help: an error

Laws. No result is returned unless all files that the dump reads are complete
(`FileSet.is_complete`). First the relation maps are read from disk and checked, because pg_class is
found by them; then all files listed in pg_class. The replay must not have found a missing page in
any of these files. Replay continues after a missing page, because it must ignore files with holes,
and only its log reports it. The first file set is derived from the catalogs of the cut, and the
server then returns the actual files at X. So a table that was renamed or attached as a partition
costs a second replay, but never rows.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from quorum_wal.pageserver.epochs.file_set import FileSet, copied_from
from quorum_wal.pageserver.epochs.page_files import Give
from quorum_wal.pageserver.epochs.redo import RedoServer
from quorum_wal.pageserver.epochs.sparse_files import SparseFiles
from quorum_wal.pageserver.errors import PageNotFound, RedoError, TableIncomplete
from quorum_wal.pageserver.layers.fork import Fork, ForkKind
from quorum_wal.pageserver.pitr.catalog_files import (
    CatalogPages,
    DatabaseCatalogs,
    pages_at_cut,
    pages_in_directory,
)
from quorum_wal.pageserver.pitr.dump_roles import DumpRoles
from quorum_wal.pageserver.pitr.promoted_server import PromotedServer, ServerLimits, StopPoint
from quorum_wal.pageserver.pitr.restore_point import RestorePoint
from quorum_wal.pageserver.pitr.restored_table import (
    DumpFormat,
    Relation,
    RelationFile,
    RestoredDatabase,
)
from quorum_wal.pageserver.pitr.table_name import TableName, quote_name

#: One is sufficient unless the WAL renames or attaches tables. Each round adds files, or is last.
ROUNDS_MAX = 4
NAMED_MAX = 5
SIMILAR_MAX = 5


@dataclass(frozen=True, slots=True)
class Restored:
    """Usable while its server runs. `family`: the table and its partitions, or None for the whole
    database. `rounds`: how many times the WAL was replayed."""

    family: tuple[Relation, ...] | None
    files: FileSet
    rounds: int
    _database: RestoredDatabase

    def dump(
        self,
        path: Path,
        dump_format: DumpFormat = DumpFormat.PLAIN,
        arguments: Sequence[str] = (),
    ) -> None:
        """Runs pg_dump into a new file, with more `arguments`. Raises PageserverError."""
        self._database.dump(self.family, path, dump_format, arguments)

    def roles(self) -> DumpRoles:
        """The roles that the dump names. Raises PageserverError."""
        return self._database.roles(self.family)

    def copy_csv(self, path: Path) -> int:
        """Writes the rows of a table as CSV to a new file, and returns their number. Raises
        PageserverError."""
        assert self.family is not None, "only a table has rows"
        return self._database.copy_csv(self.family, path)


@dataclass(frozen=True, slots=True)
class _Wanted:
    database: str
    table: TableName | None


@dataclass(frozen=True, slots=True)
class _Round:
    """The files of one server. `databases`: oids whose files were derived from the catalogs."""

    files: FileSet
    databases: frozenset[int]


@dataclass(frozen=True, slots=True)
class _Missing:
    """What the next round must add: incomplete files, or databases that were unknown before."""

    relations: Sequence[RelationFile] = ()
    databases: frozenset[int] = field(default_factory=frozenset)


@dataclass(frozen=True, slots=True)
class _Complete:
    """All files that a dump reads are complete."""

    family: tuple[Relation, ...] | None
    database: RestoredDatabase


class SparseRestore:
    """Works in `work_dir`, which is empty before and after each call."""

    def __init__(self, work_dir: Path, server: RedoServer, *, rounds_max: int = ROUNDS_MAX) -> None:
        self._work_dir = work_dir
        self._server = server
        self._rounds_max = rounds_max

    @contextmanager
    def table(self, point: RestorePoint, name: TableName) -> Iterator[Restored]:
        """A table with its partitions and TOAST. Raises PageserverError: PageNotFound if the table
        or the position does not exist, TableIncomplete if pages are missing."""
        with self._restored(point, _Wanted(name.database, name)) as restored:
            yield restored

    @contextmanager
    def database(self, point: RestorePoint, name: str) -> Iterator[Restored]:
        """A whole database with large objects. Raises PageserverError, as table() does."""
        with self._restored(point, _Wanted(name, None)) as restored:
            yield restored

    @contextmanager
    def _restored(self, point: RestorePoint, wanted: _Wanted) -> Iterator[Restored]:
        plan = _RestorePlan(point, wanted)
        current = plan.first_round()
        missing = _Missing()
        for number in range(1, self._rounds_max + 1):
            with self._replayed(point, current.files, number) as server:
                found = plan.examine(server, self._server, current)
                if isinstance(found, _Complete):
                    yield Restored(found.family, current.files, number, found.database)
                    return
            missing = found
            following = plan.next_round(current, missing)
            if following == current:
                break
            current = following
        raise _incomplete(wanted, point, missing)

    @contextmanager
    def _replayed(
        self, point: RestorePoint, files: FileSet, number: int
    ) -> Iterator[PromotedServer]:
        data_dir = self._work_dir / f"data-{number}"
        locks = 2 * (len(files.forks) + len(point.touches.limits))
        with promoted_at(
            point, data_dir, self._server, locks,
            lambda sparse: sparse.build_set(files, point.touches, point.source),
            point.link_wal,
        ) as server:  # fmt: skip
            yield server


@contextmanager
def promoted_at(
    point: RestorePoint,
    data_dir: Path,
    redo: RedoServer,
    locks: int,
    build: Callable[[SparseFiles], None],
    link_wal: Callable[[Path, Give], StopPoint],
) -> Iterator[PromotedServer]:
    """Creates `data_dir` with the files that `build` writes and the WAL that `link_wal` links, and
    removes it. One transaction may lock `locks` relations. Raises PageserverError."""
    data_dir.mkdir(mode=0o700)
    redo.give(data_dir)
    try:
        point.frame.unpack(data_dir, give=redo.give, with_kept=False)
        folder = point.frame.control_file().version_folder(point.wal.server.pg_major)
        build(SparseFiles(data_dir, folder, redo.give))
        stop = link_wal(data_dir, redo.give)
        limits = ServerLimits(point.prepared_max, locks)
        with PromotedServer(redo, data_dir, stop, limits) as server:
            yield server
    finally:
        shutil.rmtree(data_dir)


class _RestorePlan:
    """Derives the files of each round from the catalogs, and checks the result of a round."""

    def __init__(self, point: RestorePoint, wanted: _Wanted) -> None:
        self._point = point
        self._wanted = wanted
        self._touches = point.touches
        self._cut = pages_at_cut(point.frame, point.source, point.wal.server.pg_major)

    def first_round(self) -> _Round:
        """Derived from the catalogs of the cut."""
        return self._guessed(_databases_named(self._cut, self._wanted.database))

    def next_round(self, before: _Round, missing: _Missing) -> _Round:
        guessed = self._guessed(before.databases | missing.databases)
        numbers = {(each.fork.database, each.fork.number) for each in missing.relations}
        files = before.files.more(guessed.files.numbers | numbers, guessed.files.databases)
        return _Round(files, guessed.databases)

    def _guessed(self, databases: Iterable[int]) -> _Round:
        oids = frozenset(databases)
        files = FileSet(self._point.frame.forks).more((), copied_from(self._touches, oids))
        for oid in oids:
            if self._wanted.table is None:
                files = files.more((), self._cut.tablespaces_of(oid))
            else:
                files = files.more(
                    DatabaseCatalogs(self._cut, oid).table_numbers(self._wanted.table)
                )
        return _Round(files, oids)

    def examine(
        self, server: PromotedServer, redo: RedoServer, current: _Round
    ) -> _Complete | _Missing:
        """Whether all files are complete, or what is missing. Raises PageserverError."""
        pages = pages_in_directory(server.data_dir, self._cut.pg_major, self._cut.version_folder)
        oids = _databases_named(pages, self._wanted.database)
        if not oids:
            raise self._no_database(pages)
        if not oids <= current.databases:
            return _Missing(databases=oids)
        invalid = server.invalid_relations()
        lost = self._incomplete_files(current.files, invalid, _mapped_files(pages, oids))
        if lost:
            return _Missing(lost)
        database = self._connect(server, redo, pages)
        database.roll_back_prepared()
        table = self._wanted.table
        family = None if table is None else database.resolve(table, self._point.target)
        lost = self._incomplete_files(current.files, invalid, database.files(family))
        return _Missing(lost) if lost else _Complete(family, database)

    def _incomplete_files(
        self, files: FileSet, invalid: frozenset[Fork], named: Iterable[RelationFile]
    ) -> list[RelationFile]:
        """`invalid`: forks with ignored changes, which are allowed only outside the file set."""
        return [
            each
            for each in named
            if each.fork in invalid or not files.is_complete(each.fork, self._touches)
        ]

    def _connect(
        self, server: PromotedServer, redo: RedoServer, pages: CatalogPages
    ) -> RestoredDatabase:
        """Connects as a superuser. The first one found may be renamed or unable to log in."""
        refusal = RedoError("the cluster has no superuser that can log in")
        for user in pages.superusers():
            database = RestoredDatabase(redo.binaries, server.conninfo(self._wanted.database, user))
            try:
                database.check()
            except RedoError as error:
                refusal = error
            else:
                return database
        if f'database "{self._wanted.database}" does not exist' in str(refusal):
            raise self._no_database(pages) from refusal  # dropped or renamed at that position
        raise refusal

    def _no_database(self, pages: CatalogPages) -> PageNotFound:
        wanted = self._wanted.database
        names = {row.name.decode(errors="replace") for row in pages.databases()} - {wanted}
        similar = get_close_matches(wanted, sorted(names), SIMILAR_MAX) or sorted(names)
        return PageNotFound(
            f"database {quote_name(wanted)} does not exist at {self._point.target}",
            hint=f"Existing databases: {', '.join(similar[:SIMILAR_MAX])}.",
        )


def _databases_named(pages: CatalogPages, name: str) -> frozenset[int]:
    """Uses all versions of all rows: the server decides which of them is visible."""
    wanted = name.encode(errors="surrogateescape")
    return frozenset(row.oid for row in pages.databases() if row.name == wanted)


def _mapped_files(pages: CatalogPages, databases: Iterable[int]) -> Iterator[RelationFile]:
    """The mapped catalogs, pg_class among them, in which the server finds all other files."""
    for oid in databases:
        for folder in pages.tablespaces_of(oid):
            for catalog, number in pages.relation_map(folder).items():
                fork = Fork(folder.tablespace, oid, number, ForkKind.MAIN)
                yield RelationFile(f"catalog {catalog}", fork.path(pages.version_folder), fork)


def _incomplete(wanted: _Wanted, point: RestorePoint, missing: _Missing) -> TableIncomplete:
    what = quote_name(wanted.database) if wanted.table is None else str(wanted.table)
    lost = [f"{each.relation} ({each.path})" for each in missing.relations[:NAMED_MAX]]
    lost += [f"database {oid}" for oid in sorted(missing.databases)[:NAMED_MAX]]
    return TableIncomplete(
        f"pages of {what} at {point.target} are missing: {', '.join(lost)}",
        hint="No data was written. Restore the whole cluster to that position with sk restore.",
    )
