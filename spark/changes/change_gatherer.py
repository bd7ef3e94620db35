"""`ChangeGatherer`: the changes of the transactions that commit in a window of the WAL.

    pages of an earlier batch --+
    WAL before the window     --+--> changes in memory, or in a temporary file
    scans of the window       --+    pages for the next batch

Laws. Memory does not grow with the changes. The changes are the same with and without the pages of
an earlier batch: if these cannot be used, older WAL is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import chain

import structlog

from quorum_wal.spark.changes.change_files import FileMap
from quorum_wal.spark.changes.change_set import ChangeSet, Gathered
from quorum_wal.spark.changes.change_spill import ChangeSpill
from quorum_wal.spark.changes.heap_pages import HeapPages
from quorum_wal.spark.changes.heap_scan import HeapScan
from quorum_wal.spark.changes.page_file import PagesLost
from quorum_wal.spark.changes.page_folder import KeptPages, PageFolder
from quorum_wal.spark.changes.page_keeper import PageKeeper
from quorum_wal.spark.changes.table_versions import TableVersions
from quorum_wal.spark.changes.transaction_commits import Commits
from quorum_wal.spark.changes.window_scans import WindowScans
from quorum_wal.spark.inputs.wal_input import LostWal
from quorum_wal.spark.inputs.wal_reader import WalRange
from quorum_wal.walrecords.record_index import Array

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Source:
    """Where the changes of a window are: from `start_lsn` on, before the window and in `scans`.
    `has_pages`: all pages that change become known. With kept pages `start_lsn` is their last
    record, which is followed again and has the same effect. `open_lsn` is the first change of the
    transactions that are open after the window, or its end."""

    start_lsn: int
    has_pages: bool
    window: WalRange
    scans: WindowScans
    commits: Commits
    open_lsn: int


@dataclass(frozen=True, slots=True)
class Target:
    """What is gathered: changes of `files`. `toast_oids` are the TOAST tables by table."""

    files: FileMap
    toast_oids: Array
    versions: TableVersions
    follows_pages: bool


@dataclass(frozen=True, slots=True)
class PageStates:
    """The pages of earlier batches, of one cluster."""

    folder: PageFolder
    system_id: int

    def newest(self, lsn: int) -> KeptPages | None:
        """The last state at or before `lsn`."""
        try:
            return self.folder.newest(lsn, self.system_id)
        except PagesLost as error:
            self.forget(error)
            return None

    def forget(self, error: Exception) -> None:
        log.info("pages of an earlier batch are not used", reason=str(error))
        self.folder.remove()


@dataclass(frozen=True, slots=True)
class ChangeGatherer:
    """`read_older` reads WAL before a window. `with_pages` returns a position at or before another
    one, and whether every page that changes after that one becomes known from there on."""

    read_older: Callable[[WalRange], Iterator[HeapScan]]
    with_pages: Callable[[int], tuple[int, bool]]
    limit_lsn: int
    wal_seg_size: int
    memory_bytes: int
    states: PageStates | None
    stores_pages: bool

    def kept_pages(self, lsn: int) -> KeptPages | None:
        """The pages that an earlier batch has left, as they were at or before `lsn`."""
        return None if self.states is None else self.states.newest(lsn)

    def gather(
        self, source: Source, target: Target, kept: KeptPages | None
    ) -> Gathered | ChangeSpill:
        """The changes, in a temporary file if they are too many. Raises WalInputError,
        SpillError."""
        if kept is None:
            return self._gather(source, target, None)
        try:
            return self._gather(source, target, kept)
        except (PagesLost, LostWal) as error:
            assert self.states is not None
            self.states.forget(error)
        start_lsn, has_pages = self.with_pages(source.start_lsn)
        older = replace(source, start_lsn=start_lsn, has_pages=has_pages)
        return self._gather(older, target, None)

    def _gather(
        self, source: Source, target: Target, kept: KeptPages | None
    ) -> Gathered | ChangeSpill:
        """Raises PagesLost, only with `kept`."""
        if kept is not None:
            kept.check_files(target.files.followed)
        commits, start_lsn = source.commits, source.start_lsn
        # It begins at a record or at a segment.
        is_boundary = start_lsn % self.wal_seg_size != 0
        before = WalRange(start_lsn, source.window.start_lsn, self.limit_lsn, is_boundary)
        with ExitStack() as stack, closing(HeapPages(self.memory_bytes, kept)) as pages:
            spill: ChangeSpill | None = None
            changes = ChangeSet(
                target.files, commits, pages if target.follows_pages else None,
                self._keeper(source, kept), None if kept is None else kept.state.last,
            )  # fmt: skip
            for scan in chain(self.read_older(before), source.scans.again()):
                changes.add(scan)
                if changes.size_bytes > (self.memory_bytes // 2 if spill else self.memory_bytes):
                    spill = spill or stack.enter_context(self._spill(len(commits), target))
                    spill.put(_assigned(changes, commits, target))
            changes.keep_pages()
            rest = _assigned(changes, commits, target)
            if spill is None:
                return rest
            spill.put(rest)
            stack.pop_all()
            return spill

    def _keeper(self, source: Source, kept: KeptPages | None) -> PageKeeper | None:
        if self.states is None or not self.stores_pages or not source.has_pages:
            return None
        folder, system_id = self.states.folder, self.states.system_id
        return PageKeeper(folder, system_id, source.open_lsn, source.start_lsn, kept)

    def _spill(self, commits: int, target: Target) -> ChangeSpill:
        """Its pieces are half as large, because several copies of one are in memory."""
        return ChangeSpill(commits, target.toast_oids, self.memory_bytes // 2)


def _assigned(changes: ChangeSet, commits: Commits, target: Target) -> Gathered:
    gathered = changes.gathered()
    target.versions.assign(gathered.changes, commits)
    return gathered
