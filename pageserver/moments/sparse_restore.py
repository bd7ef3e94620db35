"""One table, or one database, as of a moment: a sparse server with the pages that a dump reads.

    cut C_i          target X
    |--- WAL --------|         replayed from the redo of C_i by stock Postgres over sparse files,
    frame + FileSet  |         promoted at X, asked, dumped, thrown away
                     `--> the table's files at X: in the set, or made by the WAL?
                          no: once more, with them; still no: an error

Laws. Nothing is handed out unless all files that the dump reads are whole (`FileSet.is_whole`): the
relation maps first, read from the disk, because pg_class is found by them; then all that pg_class
names. In none of them may the replay have met a page that is not there: it goes on, because for the
files that are empty it must, and only its log says so. The files are guessed from the catalogs of
the cut, and the server says what they are at X: a table that was renamed, or attached as a
partition, costs a second replay, never rows.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from pageserver.epochs.file_set import FileSet, copied_from
from pageserver.epochs.in_place_tablespaces import link_range
from pageserver.epochs.redo import RedoServer
from pageserver.epochs.sparse_files import SparseFiles
from pageserver.epochs.touch_survey import TouchSurveyor
from pageserver.epochs.wal_folder import WalFolder
from pageserver.errors import PageNotFound, RedoError, SurveyError, TableIncomplete
from pageserver.layers.fork import Fork, ForkKind
from pageserver.layers.frame import Frame
from pageserver.layers.page_stack import PageBase
from pageserver.layers.touches import Touches
from pageserver.moments.catalog_files import (
    CatalogPages,
    DatabaseCatalogs,
    pages_at_cut,
    pages_in_directory,
)
from pageserver.moments.promoted_server import PromotedServer, ServerLimits, StopPoint
from pageserver.moments.restored_table import DumpFormat, Relation, RelationFile, RestoredDatabase
from pageserver.moments.table_name import TableName, quote_name
from pgwal.lsn import format_lsn

#: One is enough, unless the WAL has renamed or attached; each finds more, or is the last.
ROUNDS_MAX = 4
NAMED_MAX = 5
SIMILAR_MAX = 5


@dataclass(frozen=True, slots=True)
class RestorePoint:
    """The cut of `frame`, whose pages `source` has, ends at `cut_lsn`; its recovery begins at
    `redo_lsn`. Wanted is what all records have done that begin before `target_lsn`, of `tli`."""

    frame: Frame
    source: PageBase
    wal: WalFolder
    redo_lsn: int
    cut_lsn: int
    target_lsn: int
    tli: int

    @property
    def moment(self) -> str:
        return format_lsn(self.target_lsn)


@dataclass(frozen=True, slots=True)
class Restored:
    """While its server runs. `family`: the table and its partitions; None: all of the database.
    `rounds`: how often the WAL was replayed."""

    family: tuple[Relation, ...] | None
    files: FileSet
    rounds: int
    _database: RestoredDatabase

    def dump(self, path: Path, dump_format: DumpFormat = DumpFormat.PLAIN) -> None:
        """By pg_dump, into a new file. Raises PageserverError."""
        self._database.dump(self.family, path, dump_format)

    def copy_csv(self, path: Path) -> int:
        """The rows of a table as CSV, into a new file; their number. Raises PageserverError."""
        assert self.family is not None, "of a table"
        return self._database.copy_csv(self.family, path)


@dataclass(frozen=True, slots=True)
class _Wanted:
    database: str
    table: TableName | None


@dataclass(frozen=True, slots=True)
class _Round:
    """What one server is made of; `databases`: oids whose files have been guessed."""

    files: FileSet
    databases: frozenset[int]


@dataclass(frozen=True, slots=True)
class _Missing:
    """What the next round needs: files that are not whole, or databases not known of before."""

    relations: Sequence[RelationFile] = ()
    databases: frozenset[int] = field(default_factory=frozenset)


@dataclass(frozen=True, slots=True)
class _Whole:
    """All that a dump reads is here."""

    family: tuple[Relation, ...] | None
    database: RestoredDatabase


class SparseRestore:
    """Works in `work_dir`, which is empty, and empty again behind it."""

    def __init__(self, work_dir: Path, server: RedoServer, *, rounds_max: int = ROUNDS_MAX) -> None:
        self._work_dir = work_dir
        self._server = server
        self._rounds_max = rounds_max

    @contextmanager
    def table(self, point: RestorePoint, name: TableName) -> Iterator[Restored]:
        """A table with its partitions and TOAST. Raises PageserverError: PageNotFound when there is
        no such table or moment, TableIncomplete when its pages are not all here."""
        with self._restored(point, _Wanted(name.database, name)) as restored:
            yield restored

    @contextmanager
    def database(self, point: RestorePoint, name: str) -> Iterator[Restored]:
        """A whole database, large objects and all. Raises PageserverError, as table()."""
        with self._restored(point, _Wanted(name, None)) as restored:
            yield restored

    @contextmanager
    def _restored(self, point: RestorePoint, wanted: _Wanted) -> Iterator[Restored]:
        touches, stop = survey_up_to(point)
        attempt = _Attempt(point, wanted, touches)
        current = attempt.first_round()
        missing = _Missing()
        for number in range(1, self._rounds_max + 1):
            with self._replayed(point, touches, stop, current.files, number) as server:
                found = attempt.examine(server, self._server, current)
                if isinstance(found, _Whole):
                    yield Restored(found.family, current.files, number, found.database)
                    return
            missing = found
            following = attempt.next_round(current, missing)
            if following == current:
                break
            current = following
        raise _incomplete(wanted, point, missing)

    @contextmanager
    def _replayed(
        self, point: RestorePoint, touches: Touches, stop: StopPoint, files: FileSet, number: int
    ) -> Iterator[PromotedServer]:
        data_dir = self._work_dir / f"data-{number}"
        locks = 2 * (len(files.forks) + len(touches.limits))
        with promoted_at(
            point, touches, stop, data_dir, self._server, locks,
            lambda sparse: sparse.build_set(files, touches, point.source),
        ) as server:  # fmt: skip
            yield server


@contextmanager
def promoted_at(
    point: RestorePoint,
    touches: Touches,
    stop: StopPoint,
    data_dir: Path,
    redo: RedoServer,
    locks: int,
    build: Callable[[SparseFiles], None],
) -> Iterator[PromotedServer]:
    """In `data_dir`, which is made and removed, with the files that `build` makes; one transaction
    may lock `locks` relations. Raises PageserverError."""
    data_dir.mkdir(mode=0o700)
    redo.give(data_dir)
    try:
        control = point.frame.control_file()
        point.frame.unpack(data_dir, give=redo.give, with_kept=False)
        folder = control.version_folder(point.wal.server.pg_major)
        build(SparseFiles(data_dir, folder, redo.give))
        link_range(
            point.wal, point.redo_lsn, stop.end_lsn, stop.tli,
            touches.tablespaces_created, data_dir, redo.give,
        )  # fmt: skip
        limits = ServerLimits(max(control.prepared_max, touches.prepared_max), locks)
        with PromotedServer(redo, data_dir, stop, limits) as server:
            yield server
    finally:
        shutil.rmtree(data_dir)


def survey_up_to(point: RestorePoint) -> tuple[Touches, StopPoint]:
    """Of the records from the cut's redo up to the target.

    Raises PageNotFound: the target lies before the cut; SurveyError: WAL is missing, or not valid.
    """
    if point.target_lsn < point.cut_lsn:
        raise PageNotFound(
            f"{point.moment} lies before the cut at {format_lsn(point.cut_lsn)}",
            hint="The first moment that can be restored is that of the first cut.",
        )
    surveyor = TouchSurveyor(point.wal.server.pg_major)
    last_lsn = point.redo_lsn
    try:
        for index in point.wal.records(point.redo_lsn, point.target_lsn, point.tli):
            surveyor.feed(index)
            if len(index):
                last_lsn = int(index.start_lsn[-1])
    except SurveyError as error:
        raise SurveyError(
            f"the WAL cannot be replayed up to {point.moment}: {error}",
            hint=error.hint or "Name an earlier moment, or wait until the WAL is archived.",
        ) from error
    return surveyor.finish(), StopPoint(last_lsn, surveyor.end_lsn, point.tli)


class _Attempt:
    """The guess, the questions, and what follows from the answers."""

    def __init__(self, point: RestorePoint, wanted: _Wanted, touches: Touches) -> None:
        self._point = point
        self._wanted = wanted
        self._touches = touches
        self._cut = pages_at_cut(point.frame, point.source, point.wal.server.pg_major)

    def first_round(self) -> _Round:
        """By the names of the cut."""
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
    ) -> _Whole | _Missing:
        """The proof, or what it lacks. Raises PageserverError."""
        pages = pages_in_directory(server.data_dir, self._cut.pg_major, self._cut.version_folder)
        oids = _databases_named(pages, self._wanted.database)
        if not oids:
            raise self._no_database(pages)
        if not oids <= current.databases:
            return _Missing(databases=oids)
        invalid = server.invalid_relations()
        lost = self._not_whole(current.files, invalid, _mapped_files(pages, oids))
        if lost:
            return _Missing(lost)
        database = self._connect(server, redo, pages)
        database.roll_back_prepared()
        table = self._wanted.table
        family = None if table is None else database.resolve(table, self._point.moment)
        lost = self._not_whole(current.files, invalid, database.files(family))
        return _Missing(lost) if lost else _Whole(family, database)

    def _not_whole(
        self, files: FileSet, invalid: frozenset[Fork], named: Iterable[RelationFile]
    ) -> list[RelationFile]:
        """`invalid`: the replay passed over changes to them, which it may do to all others only."""
        return [
            each
            for each in named
            if each.fork in invalid or not files.is_whole(each.fork, self._touches)
        ]

    def _connect(
        self, server: PromotedServer, redo: RedoServer, pages: CatalogPages
    ) -> RestoredDatabase:
        """As a superuser; the first one of the cluster may have been renamed, or may not log in."""
        refusal = RedoError("the cluster has no superuser that may log in")
        for user in pages.superusers():
            database = RestoredDatabase(redo.binaries, server.conninfo(self._wanted.database, user))
            try:
                database.check()
            except RedoError as error:
                refusal = error
            else:
                return database
        if f'database "{self._wanted.database}" does not exist' in str(refusal):
            raise self._no_database(pages) from refusal  # dropped or renamed by then
        raise refusal

    def _no_database(self, pages: CatalogPages) -> PageNotFound:
        wanted = self._wanted.database
        names = {row.name.decode(errors="replace") for row in pages.databases()} - {wanted}
        similar = get_close_matches(wanted, sorted(names), SIMILAR_MAX) or sorted(names)
        return PageNotFound(
            f"there is no database {quote_name(wanted)} at {self._point.moment}",
            hint=f"There are: {', '.join(similar[:SIMILAR_MAX])}.",
        )


def _databases_named(pages: CatalogPages, name: str) -> frozenset[int]:
    """By all versions of all rows: the server knows which of them counts."""
    wanted = name.encode(errors="surrogateescape")
    return frozenset(row.oid for row in pages.databases() if row.name == wanted)


def _mapped_files(pages: CatalogPages, databases: Iterable[int]) -> Iterator[RelationFile]:
    """pg_class and its like, of which the server itself finds all else."""
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
        f"not all pages of {what} at {point.moment} are here: missing are {', '.join(lost)}",
        hint="Nothing was handed out. A restore of the whole cluster to that moment has them.",
    )
