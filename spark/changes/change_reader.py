"""The changes of the transactions that commit in a range of the WAL: a task of `pg_changes`.

    1  once: the transactions that are open at the start of the range   (transaction_progress.py)
       and the changes of tables since the catalog was taken            (schema_search.py)
    2  for a window of the range: the transactions that commit in it    (transaction_commits.py)
    3  from the first of them on, through the window: their changes     (change_set.py)
    4  the rows to show, and their order                           (arranged_changes.py)
    5  Arrow batches; then the next window                              (change_batches.py)

Laws. A transaction belongs to the range in which its commit record starts, so every split of the
WAL gives the same changes. A range is read without knowledge of earlier reads: an offset is one
LSN. Memory grows with none of the range, the history and the transactions that commit: scans of a
large window are read twice (window_scans.py), changes of large transactions are gathered in a
temporary file (change_spill.py), and so are pages (heap_pages.py).
Reading backwards ends only where no older WAL exists. Damage before the range fails, or is skipped
and reported, like damage in the range. No reader gets rows past `undecoded_rows.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pyarrow as pa

from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.pgwal.errors import WalFormatError
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.pgwal.versions import wal_version
from quorum_wal.spark.changes.alteration_search import find_alterations
from quorum_wal.spark.changes.alterations import (
    Alterations,
    CatalogKeys,
    alteration_note,
    unseen_note,
)
from quorum_wal.spark.changes.arranged_changes import ChangeArranger
from quorum_wal.spark.changes.catalog import Catalog, Table
from quorum_wal.spark.changes.change_batches import ChangeBatches
from quorum_wal.spark.changes.change_files import FileMap
from quorum_wal.spark.changes.change_gatherer import (
    ChangeGatherer,
    PageStates,
    Source,
    Target,
)
from quorum_wal.spark.changes.change_rows import NO_TABLE, ChangeRows, is_stale
from quorum_wal.spark.changes.change_schema import Note
from quorum_wal.spark.changes.change_set import CODE, COMMIT, Gathered
from quorum_wal.spark.changes.change_spill import MEMORY_BYTES, ChangeSpill
from quorum_wal.spark.changes.datum_varlena import DatumError
from quorum_wal.spark.changes.heap_fields import NEW_AT, NEW_LENGTH
from quorum_wal.spark.changes.heap_scan import HeapScan, scan_heap
from quorum_wal.spark.changes.logical_messages import with_messages
from quorum_wal.spark.changes.page_folder import KeptPages, PageFolder
from quorum_wal.spark.changes.schema_history import SchemaHistory
from quorum_wal.spark.changes.schema_search import SchemaSearch
from quorum_wal.spark.changes.table_versions import TableVersions
from quorum_wal.spark.changes.toast_chunks import ChunkIndex, ToastChunks, bytes_of
from quorum_wal.spark.changes.transaction_commits import Commits, find_commits
from quorum_wal.spark.changes.transaction_progress import (
    OpenTransactions,
    begun_later,
    last_list_without,
    last_redo,
)
from quorum_wal.spark.changes.transaction_summary import TransactionSummary
from quorum_wal.spark.changes.undecoded_rows import UndecodedPolicy
from quorum_wal.spark.changes.wal_lookback import look_backwards
from quorum_wal.spark.changes.window_scans import WindowScans
from quorum_wal.spark.errors import CatalogError, WalInputError
from quorum_wal.spark.inputs.wal_input import WalInput
from quorum_wal.spark.inputs.wal_reader import Gap, OnDamage, WalRange, read_indexes
from quorum_wal.walrecords.record_index import Array, RecordIndex

#: bytes of WAL that are decoded at once
WINDOW_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class ChangeOptions:
    """`table` is the only table, with typed columns. `refresh` takes a new catalog, if the WAL has
    files or columns that the catalog lacks, or a table was altered. `history`, if it is known, has
    the changes of tables up to the end of the range. `alterations` are those before the range: of a
    catalog without rows. `messages` adds those of the database, only without a `table`. `undecoded`
    decides about rows that could not be decoded. `memory_bytes` is for each of: the WAL of a
    window, changes, and pages. What is more is read twice, or goes to temporary files. `folder` has
    the pages of earlier batches; with `stores_pages`, those of this range are added."""

    catalog: Catalog
    table: Table | None = None
    refresh: Callable[[], Catalog] | None = field(default=None, repr=False)
    alterations: Alterations | None = field(default=None, repr=False)
    history: SchemaHistory | None = field(default=None, repr=False)
    is_compiled: bool = True
    messages: bool = False
    undecoded: UndecodedPolicy = field(default_factory=UndecodedPolicy)
    memory_bytes: int = MEMORY_BYTES
    folder: PageFolder | None = None
    stores_pages: bool = False


def read_changes(
    wal_input: WalInput,
    wal_range: WalRange,
    options: ChangeOptions,
    on_damage: OnDamage = OnDamage.FAIL,
) -> Iterator[pa.RecordBatch]:
    """The changes of transactions that commit in the range, ordered by commit, then by LSN, then by
    `seq`. No batch is empty.

    Raises WalInputError, CatalogError, and the errors of `options.undecoded`.
    """
    facts = wal_input.facts()
    _check_catalog(options.catalog, facts)
    reader = _ChangeReader(wal_input, facts, wal_range, options, on_damage)
    return options.undecoded.apply(_checked(reader.read()), wal_range)


def _checked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A record whose checksum is right, but whose format is wrong, is an error of the input."""
    try:
        yield from batches
    except (WalFormatError, DatumError) as error:
        raise WalInputError(str(error)) from error


def restart_lsn(
    wal_input: WalInput, lsn: int, options: ChangeOptions, on_damage: OnDamage = OnDamage.FAIL
) -> int:
    """The start of the WAL that is needed for the changes of transactions that commit at or after
    `lsn`, a record boundary. Raises WalInputError."""
    facts = wal_input.facts()
    reader = _ChangeReader(wal_input, facts, WalRange(lsn, lsn, lsn), options, on_damage)
    try:
        return reader.restart_lsn()
    except WalFormatError as error:
        raise WalInputError(str(error)) from error


def _check_catalog(catalog: Catalog, facts: ServerFacts) -> None:
    if (catalog.system_id, catalog.version_major) != (facts.system_id, facts.pg_major):
        raise CatalogError(
            f"the catalog is of system identifier {catalog.system_id}, Postgres "
            f"{catalog.version_major}, expected {facts.system_id}, Postgres {facts.pg_major}",
            hint="Take one from this cluster with sk catalog snapshot.",
        )


class _ChangeReader:
    """Reads one range, once."""

    def __init__(
        self,
        wal_input: WalInput,
        facts: ServerFacts,
        wal_range: WalRange,
        options: ChangeOptions,
        on_damage: OnDamage,
    ) -> None:
        self._input = wal_input
        self._facts = facts
        self._version = wal_version(facts.pg_major)
        self._range = wal_range
        self._options = options
        self._on_damage = on_damage
        #: lost WAL before the range is an error for what needs it, unless damage is skipped
        self._on_older = on_damage if on_damage is OnDamage.SKIP else OnDamage.FAIL
        self._gaps: dict[int, Gap] = {}
        self._reported: set[int] = set()
        self._is_incomplete_reported = False
        self._is_refreshed = False
        self._open = OpenTransactions(wal_range.start_lsn)
        self._alterations = Alterations(wal_range.start_lsn)
        self._history = options.history
        folder = options.folder
        states = None if folder is None else PageStates(folder, facts.system_id)
        self._gatherer = ChangeGatherer(
            lambda older: self._scan(older, self._on_older), self._with_pages, wal_range.limit_lsn,
            facts.wal_seg_size, options.memory_bytes, states, stores_pages=options.stores_pages,
        )  # fmt: skip
        self._use(options.catalog)

    def _use(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._versions = TableVersions(catalog, self._history)
        self._tables = self._versions.catalog
        self._arranger = ChangeArranger(self._versions, self._history, self._options.table)
        self._keys = CatalogKeys(catalog)
        self._batches = ChangeBatches(
            self._tables,
            self._options.table,
            datums_of=self._versions.datums_of,
            is_compiled=self._options.is_compiled,
        )

    @property
    def _follows_pages(self) -> bool:
        return self._catalog.wal_level != "logical"

    def read(self) -> Iterator[pa.RecordBatch]:
        self._open = self._look_back()
        yield from self._earlier_changes()
        for window in self._windows():
            read = partial(self._scan, window, self._on_damage)
            scans = WindowScans(read, self._options.memory_bytes)
            summaries: list[TransactionSummary] = []
            commits = find_commits(self._summarized(scans.first(), summaries))
            if len(commits):
                yield from self._changes(window, scans, summaries, commits)
            scans.free()  # before those of the next window are created
            for summary in summaries:
                self._open.advance(summary)
            yield from self._report_gaps(self._range.start_lsn)

    def _summarized(
        self, scans: Iterator[HeapScan], summaries: list[TransactionSummary]
    ) -> Iterator[HeapScan]:
        """The scans. Adds their summaries, and the alterations in them."""
        for scan in scans:
            if self._history is None:
                self._alterations.add(scan, self._keys)
            summaries.append(TransactionSummary.at(scan))
            yield scan

    def _changes(
        self,
        window: WalRange,
        scans: WindowScans,
        summaries: list[TransactionSummary],
        commits: Commits,
    ) -> Iterator[pa.RecordBatch]:
        """The changes that commit in the window. Frees the memory of `scans`."""
        start_lsn, is_incomplete = self._find_start(window, summaries, commits)
        if is_incomplete and not self._is_incomplete_reported:
            self._is_incomplete_reported = True
            yield self._report_incomplete(start_lsn)
        kept = None if self._gaps else self._gatherer.kept_pages(start_lsn)
        begin = (kept.state.last.lsn, True) if kept is not None else self._with_pages(start_lsn)
        open_lsn = self._open.first_open(summaries, window.end_lsn)
        source = Source(*begin, window, scans, commits, open_lsn)
        since_lsn = min(start_lsn, self._open.since_lsn)
        yield from self._report_gaps(since_lsn)
        try:
            gathered = self._gather_known(source, kept)
        finally:
            if kept is not None:
                kept.close()
        yield from self._report_gaps(since_lsn)
        scans.free()
        toast = self._toast(gathered)
        if isinstance(gathered, ChangeSpill):
            with gathered:
                for rows, data in self._arranger.spilled(gathered, commits):
                    self._note_altered(rows, commits)
                    yield from self._batches.build(rows, data, commits, toast)
            return
        rows, data = self._arranger.whole(gathered, commits), gathered.data
        del gathered
        self._note_altered(rows, commits)
        yield from self._batches.build(rows, data, commits, toast)

    def restart_lsn(self) -> int:
        place_lsn = self._range.start_lsn
        found = self._look_back()
        first_lsn = found.first_lsn(found.first_lsns, place_lsn)
        if found.running:
            backwards = self._backwards(found.since_lsn)
            first_lsn = last_list_without(found.running, backwards) or found.since_lsn
        return self._with_pages(first_lsn)[0]

    def _with_pages(self, lsn: int) -> tuple[int, bool]:
        """A position at or before `lsn`, and whether every page that changes after `lsn` becomes
        known from there on."""
        redo_lsn = last_redo(self._backwards(lsn)) if self._follows_pages else None
        return (lsn, False) if redo_lsn is None else (redo_lsn, True)

    def _look_back(self) -> OpenTransactions:
        place_lsn = self._range.start_lsn
        return OpenTransactions.look_back(place_lsn, self._backwards(place_lsn))

    def _windows(self) -> Iterator[WalRange]:
        """The windows that are decoded at once. They end at segments, or at the end of the range.
        With page following there is one window, so that the WAL from the checkpoint to the range
        is read once.
        """
        whole, seg_size = self._range, self._facts.wal_seg_size
        if self._follows_pages:
            yield whole
            return
        step = max(1, WINDOW_BYTES // seg_size) * seg_size
        begin_lsn = whole.start_lsn
        while begin_lsn < whole.end_lsn:
            end_lsn = min(whole.end_lsn, begin_lsn - begin_lsn % seg_size + step)
            is_boundary = whole.is_boundary and begin_lsn == whole.start_lsn
            yield WalRange(begin_lsn, end_lsn, whole.limit_lsn, is_boundary)
            begin_lsn = end_lsn

    def _scan(self, wal_range: WalRange, on_damage: OnDamage) -> Iterator[HeapScan]:
        for found in read_indexes(self._input, self._facts, wal_range, on_damage):
            if isinstance(found, RecordIndex):
                scan = scan_heap(found, self._version, with_images=self._follows_pages)
                messages = self._options.messages
                yield with_messages(scan, self._catalog.database_oid) if messages else scan
            else:
                self._gaps.setdefault(found.lsn, found)

    def _report_incomplete(self, lsn: int) -> pa.RecordBatch:
        return self._batches.note(
            Note.INCOMPLETE,
            lsn,
            f"the WAL begins at {format_lsn(lsn)} and does not list the open transactions: changes "
            "of transactions that began before are missing",
        )

    def _report_gaps(self, from_lsn: int) -> Iterator[pa.RecordBatch]:
        """The gaps after `from_lsn` that are not reported yet. The task of an earlier range also
        reports its own gaps, but that range may not be read."""
        for gap in self._gaps.values():
            if gap.lsn in self._reported or gap.end_lsn <= from_lsn:
                continue
            self._reported.add(gap.lsn)
            yield self._batches.note(
                Note.LOST_WAL,
                gap.lsn,
                f"the WAL from {format_lsn(gap.lsn)} to {format_lsn(gap.end_lsn)} is lost, with it "
                f"changes, also of transactions that commit later: {gap.reason}",
            )

    # ---- history

    def _find_start(
        self, window: WalRange, summaries: list[TransactionSummary], commits: Commits
    ) -> tuple[int, bool]:
        """(start of their changes, whether transactions may have changes before all WAL)."""
        first_lsn = self._open.first_lsn(commits.member_xids.tolist(), window.start_lsn)
        early = self._open.begun_before(commits) & ~begun_later(summaries, commits)
        is_incomplete = False
        if early.any():
            backwards = self._backwards(self._open.since_lsn)
            found = last_list_without(frozenset(commits.xid[early].tolist()), backwards)
            first_lsn = self._oldest_lsn() if found is None else found
            is_incomplete = found is None
        return first_lsn, is_incomplete

    def _oldest_lsn(self) -> int:
        begins = [begin_lsn for begin_lsn, _ in self._backwards(self._open.since_lsn)]
        return min(begins, default=self._open.since_lsn)

    def _backwards(self, lsn: int) -> Iterator[tuple[int, list[TransactionSummary]]]:
        """The segments before `lsn`, one at a time, as far as WAL exists. Raises WalInputError."""
        limit_lsn = self._range.limit_lsn
        return look_backwards(self._input, lsn, limit_lsn, self._scan, self._on_older)

    # ---- tables that were altered

    def _earlier_changes(self) -> Iterator[pa.RecordBatch]:
        """The changes of tables up to the end of the range, or, of a catalog without rows, the
        alterations before the range; the windows add their own."""
        base = self._catalog.followed(self._range.start_lsn)
        if base is None:
            yield from self._earlier_alterations()
            return
        if self._history is None:
            search = SchemaSearch(self._input, base, self._on_damage)
            self._history = search.follow(self._range)
            self._use(self._catalog)
        for problem in self._history.problems_of(self._range.start_lsn, self._range.end_lsn):
            yield self._batches.note(problem.kind, problem.lsn, problem.text)

    def _earlier_alterations(self) -> Iterator[pa.RecordBatch]:
        start_lsn = self._range.start_lsn
        before = WalRange(start_lsn, start_lsn, self._range.limit_lsn)
        known = find_alterations(
            self._input, self._catalog, before, self._on_damage, self._options.alterations
        )
        self._alterations = known.joined(Alterations(start_lsn))
        for lsn, end_lsn in known.unseen:
            yield self._batches.note(Note.NOT_SEARCHED, lsn, unseen_note(lsn, end_lsn))

    def _altered_rows(self, tables: Array, lsns: Array) -> Iterator[tuple[int, int, Array]]:
        """(table, LSN of its alteration, its rows that commit from there on)."""
        if self._history is not None:
            return
        for number, lsn in self._alterations.altered(self._catalog).items():
            rows = np.flatnonzero((tables == number) & (lsns >= lsn))
            if len(rows):
                yield number, lsn, rows

    def _has_altered(self, gathered: Gathered, commits: Commits) -> bool:
        code, lsns = gathered.changes[CODE], commits.lsn[gathered.changes[COMMIT]]
        tables = np.where(code & 1 == 0, code // 2, NO_TABLE)
        return any(True for _ in self._altered_rows(tables, lsns))

    def _note_altered(self, rows: ChangeRows, commits: Commits) -> None:
        lsns = commits.lsn[rows.changes[COMMIT]]
        for number, lsn, altered in self._altered_rows(rows.table, lsns):
            note = alteration_note(self._catalog.tables[number], lsn, self._catalog)
            _add_note(rows, altered, note)
        for number, doubt in self._versions.doubts().items():
            _add_note(rows, np.flatnonzero(rows.table == number), doubt)

    # ---- changes

    def _gather_known(self, source: Source, kept: KeptPages | None) -> Gathered | ChangeSpill:
        """The changes; with a new catalog if this one lacks files and `refresh` can take one."""
        gathered = self._gather(source, kept)
        refresh = None if self._is_refreshed else self._options.refresh
        if refresh is None:
            return gathered
        commits = source.commits
        if not is_stale(_parts(gathered), self._tables) and not any(
            self._has_altered(part, commits) for part in _parts(gathered)
        ):
            return gathered
        if isinstance(gathered, ChangeSpill):
            gathered.close()
        self._is_refreshed = True
        self._use(self._catalog.merged(refresh()))
        return self._gather(source, kept)

    def _gather(self, source: Source, kept: KeptPages | None) -> Gathered | ChangeSpill:
        target = Target(
            FileMap(self._tables, self._options.table), self._toast_oids(), self._versions,
            follows_pages=self._follows_pages,
        )  # fmt: skip
        return self._gatherer.gather(source, target, kept)

    def _toast(self, gathered: Gathered | ChangeSpill) -> ToastChunks:
        is_whole = not self._gaps
        if isinstance(gathered, ChangeSpill):
            return ToastChunks(gathered.chunks(), gathered.read, is_whole=is_whole)
        changes = gathered.changes
        chunks = changes[:, (changes[CODE] >= 0) & (changes[CODE] & 1 == 1)]
        index = ChunkIndex.of(
            gathered.data, chunks[NEW_AT], chunks[NEW_LENGTH], chunks[COMMIT],
            self._toast_oids()[chunks[CODE] // 2],
        )  # fmt: skip
        return ToastChunks(index, bytes_of(gathered.data), is_whole=is_whole)

    def _toast_oids(self) -> Array:
        return np.array([table.toast_oid for table in self._tables.tables] or [0], np.int64)


def _parts(gathered: Gathered | ChangeSpill) -> Iterator[Gathered]:
    if isinstance(gathered, ChangeSpill):
        return gathered.everything()
    return iter([gathered])


def _add_note(rows: ChangeRows, altered: Array, note: str) -> None:
    for row in altered.tolist():
        rows.notes[row] = f"{rows.notes[row]}; {note}" if row in rows.notes else note
