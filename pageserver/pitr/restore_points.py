"""`RestorePoints`: finds the cut before a position or a time, and fetches the WAL up to it.

cut 1      cut 2          target
  |----------|--------------X            RestorePoint: the pages of cut 2, WAL from its redo to X
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TypeAlias

from quorum_wal.backup.wal_source import WalSource
from quorum_wal.objectstore.archive import TimelineArchive
from quorum_wal.pageserver.cuts.cut_files import CutFiles
from quorum_wal.pageserver.cuts.cut_pages import fetch_frame, open_files, open_stack
from quorum_wal.pageserver.cuts.no_cuts import no_cuts
from quorum_wal.pageserver.cuts.page_objects import PageObjects
from quorum_wal.pageserver.epochs.wal_folder import WalFolder
from quorum_wal.pageserver.errors import PageNotFound, SurveyError
from quorum_wal.pageserver.layers.fork import Fork
from quorum_wal.pageserver.objects.page_index import Cut, PageIndex
from quorum_wal.pageserver.pitr.end_times import EndTimes
from quorum_wal.pageserver.pitr.page_wal import PageWal
from quorum_wal.pageserver.pitr.restore_point import RestorePoint, WalSurvey
from quorum_wal.pageserver.pitr.sourced_wal import SourcedWal
from quorum_wal.pgwal.history import TimelineHistory, history_file_name
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.walrecords.record_index import as_boundary

#: The number of a block of a fork.
PageName: TypeAlias = tuple[Fork, int]


@dataclass(frozen=True, slots=True)
class RecoveryTarget:
    """A position, or a time, or else the end of the available WAL. With `may_end` the end of the
    WAL is used if it is before the position."""

    lsn: int | None = None
    time: datetime | None = None
    may_end: bool = False


def point_opener(
    archive: TimelineArchive,
    sources: Sequence[WalSource],
    work: Path,
    page: PageName | None = None,
) -> Callable[[RecoveryTarget], RestorePoint]:
    """Opens each point in a new folder in `work`, and removes the folder of the previous one."""
    folders: list[tempfile.TemporaryDirectory[str]] = []

    def open_point(target: RecoveryTarget) -> RestorePoint:
        while folders:
            folders.pop().cleanup()
        folders.append(tempfile.TemporaryDirectory(prefix="point-", dir=work))
        return RestorePoints(archive, sources, Path(folders[-1].name)).open(target, page)

    return open_point


def before_first_cut(index: PageIndex) -> PageNotFound:
    """The error for a target that is before all cuts of the index, which has at least one."""
    first = index.cuts[0]
    at = datetime.fromtimestamp(first.time_unix_s).astimezone()
    where = f"at {format_lsn(first.end_lsn)}, {at.isoformat(' ')}"
    if not index.horizon_lsn:
        return PageNotFound(
            "the requested position is before the first cut", hint=f"The first cut is {where}."
        )
    return PageNotFound(
        "the requested position is before the horizon: older cuts have been deleted",
        hint=f"The oldest cut is {where}. Set the retention with sk pageserver run --history-days.",
    )


class RestorePoints:
    """Works in `folder`, which is empty. `sources` are searched for WAL in their order. Every
    method raises PageserverError, ObjectStoreError, BackupError.

    `is_wal_end`: the available WAL has no commit after the requested time. WAL with more commits
    before that time may be missing."""

    def __init__(
        self, archive: TimelineArchive, sources: Sequence[WalSource], folder: Path
    ) -> None:
        self._archive = archive
        self._folder = folder
        self._objects = PageObjects(archive.store, archive.timeline)
        self._history = archive.newest_history()
        self._wal = WalFolder(folder / "wal", archive.facts.server)
        self._sources = sources
        self._index = PageIndex()
        self.is_wal_end = False

    def open(self, target: RecoveryTarget, page: PageName | None = None) -> RestorePoint:
        """With `page`, only that page may be read at the point. Then the WAL is kept only if all of
        it must be replayed."""
        self._wal.path.mkdir()
        self._index = self._objects.newest_index()
        cuts = self._index.cuts
        if not cuts:
            raise no_cuts(self._objects)
        for cut in reversed(cuts):
            if self._is_before(cut, target):
                of_page = None if page is None else PageWal(self._archive.facts.server, *page)
                survey = WalSurvey(self._archive.facts.server.pg_major, cut.redo_lsn, of_page)
                wal = self._wal_of_sources(is_kept=page is None)
                target_lsn = self._target_lsn(cut, target, wal, survey)
                if target_lsn >= cut.end_lsn:
                    point = self._point(cut, target_lsn, survey)
                    if page is not None and point.wal_of_page(*page) is None:
                        self._keep_wal(point)
                    return point
        raise before_first_cut(self._index)

    def files(self, point: RestorePoint) -> CutFiles:
        """All files of the cut of a point returned by open(), for a caller that writes them all."""
        (cut,) = (cut for cut in self._index.cuts if cut.end_lsn == point.cut_lsn)
        return open_files(self._archive, self._objects, self._index, cut, point.frame)

    def _is_before(self, cut: Cut, target: RecoveryTarget) -> bool:
        if target.lsn is not None:
            return cut.end_lsn <= target.lsn
        return target.time is None or cut.time_unix_s <= target.time.timestamp()

    def _wal_of_sources(self, *, is_kept: bool) -> SourcedWal:
        kept_in = self._wal.path if is_kept else None
        return SourcedWal(self._archive.facts.server, self._history, self._sources, kept_in)

    def _keep_wal(self, point: RestorePoint) -> None:
        wal = self._wal_of_sources(is_kept=True)
        for _ in wal.records(point.redo_lsn, point.target_lsn):
            continue  # the segments are in the folder

    def _target_lsn(
        self, cut: Cut, target: RecoveryTarget, wal: SourcedWal, survey: WalSurvey
    ) -> int:
        """The position of the target. Surveys all WAL from the cut to it."""
        limit_lsn = target.lsn
        if limit_lsn is not None:  # a position after a page header means the end before it
            limit_lsn = as_boundary(limit_lsn, self._archive.facts.wal_seg_size)
        self.is_wal_end = False
        times = EndTimes(self._archive.facts.server.pg_major)
        for index in wal.records(cut.redo_lsn, limit_lsn):
            if target.time is not None:
                later_lsn = times.first_after(index, target.time)
                if later_lsn is not None:
                    survey.feed(index.before(later_lsn))
                    return later_lsn
            survey.feed(index)
        if limit_lsn is None or (target.may_end and survey.end_lsn < limit_lsn):
            self.is_wal_end = target.time is not None
            return survey.end_lsn
        if survey.end_lsn < limit_lsn:
            raise SurveyError(
                f"the WAL ends at {format_lsn(survey.end_lsn)}, before {format_lsn(limit_lsn)}",
                hint="Specify an earlier target, or safekeepers with WAL that is not archived yet.",
            )
        return limit_lsn

    def _point(self, cut: Cut, target_lsn: int, survey: WalSurvey) -> RestorePoint:
        objects, index, folder = self._objects, self._index, self._folder
        stack = open_stack(self._archive, objects, index, cut, folder)
        frame = fetch_frame(objects, index, cut, folder / "frame.tar")
        tli = self._history.tli_at(target_lsn - 1)
        self._write_history(tli)
        return RestorePoint(
            frame, stack, self._wal, cut.redo_lsn, cut.end_lsn, target_lsn, tli, survey.finish(tli)
        )

    def _write_history(self, tli: int) -> None:
        """Writes the history file of that timeline. The first timeline has none."""
        before = tuple(entry for entry in self._history.entries if entry.tli < tli)
        if before:
            text = TimelineHistory(tli, before).format()
            (self._wal.path / history_file_name(tli)).write_text(text)
