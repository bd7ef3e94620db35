"""The history of one page: the WAL records that touch it, and the cuts that contain it.

    base    cut 1        cut 2        cut 3
    |-------|------------|------------|--------- ...     a layer lists all pages that its WAL
            [no layer of cut 2 has it: skipped]          touches, so other WAL is not read

Laws. Missing WAL is reported, never ignored. The end of a transaction is searched up to
ENDS_BYTES_MAX after the page's last touch; a time that is not found is None.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import numpy as np

from quorum_wal.backup.backup_catalog import BackupCatalog
from quorum_wal.backup.wal_source import WalSource
from quorum_wal.objectstore.archive import TimelineArchive
from quorum_wal.pageserver.cuts.cut_pages import open_layers
from quorum_wal.pageserver.cuts.no_cuts import no_cuts
from quorum_wal.pageserver.cuts.page_objects import PageObjects
from quorum_wal.pageserver.errors import SurveyError
from quorum_wal.pageserver.layers.fork import Fork
from quorum_wal.pageserver.objects.page_index import Cut, PageIndex
from quorum_wal.pageserver.pitr.end_times import EndTimes
from quorum_wal.pageserver.pitr.page_touch_scan import Touch, page_touches
from quorum_wal.pageserver.pitr.restore_points import RecoveryTarget
from quorum_wal.pageserver.pitr.sourced_wal import SourcedWal
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.pgwal.rmgr import rmgr_name
from quorum_wal.pgwal.versions import wal_version
from quorum_wal.walrecords.filter_tables import pass_all
from quorum_wal.walrecords.loads import load_u32
from quorum_wal.walrecords.operation import operation_name
from quorum_wal.walrecords.record_index import RecordIndex, as_boundary
from quorum_wal.walrecords.record_survey import RecordSurvey, RecordSurveyor
from quorum_wal.walrecords.transaction import (
    ENDS,
    ROW,
    SUBXIDS,
    SUBXIDS_AT,
    TIME_US,
    TOP_XID,
    read_ends,
)

ENDS_BYTES_MAX = 256 << 20
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_OUTCOMES = {0: "committed", 2: "aborted", 3: "committed", 4: "aborted"}
_OPMASK, _ABORT = 0x7, 0x2


@dataclass(frozen=True, slots=True)
class PageEvent:
    """One record. `time` and `outcome` describe the end of its transaction. They are None and ""
    while unknown, or if `xid` is 0: the record belongs to no transaction."""

    lsn: int
    end_lsn: int
    xid: int
    rmgr: str
    operation: str
    touch: Touch
    time: datetime | None = None
    outcome: str = ""


@dataclass(slots=True)
class PageHistory:
    """`cuts`: the end positions of cuts that contain the page. `missing`: ranges [begin, end) of
    missing WAL."""

    cuts: list[int] = field(default_factory=list)
    events: list[PageEvent] = field(default_factory=list)
    missing: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Epoch:
    """WAL [begin_lsn, end_lsn) of `cut`. Without `end_lsn` it reaches to the end of the WAL."""

    begin_lsn: int
    end_lsn: int | None
    cut: Cut | None
    may_touch: bool


class HistoryReader:
    """For one archive. Every method raises PageserverError, ObjectStoreError, BackupError."""

    def __init__(self, archive: TimelineArchive, sources: Sequence[WalSource]) -> None:
        self._archive = archive
        self._objects = PageObjects(archive.store, archive.timeline)
        server = archive.facts.server
        self._wal = SourcedWal(server, archive.newest_history(), sources)
        self._major = server.pg_major

    def read(
        self, fork: Fork, block: int, begin: RecoveryTarget, end: RecoveryTarget
    ) -> PageHistory:
        """The history from `begin`, or from the oldest WAL, up to `end`. Raises PageNotFound if
        there are no cuts."""
        index = self._objects.newest_index()
        if not index.cuts:
            raise no_cuts(self._objects)
        history = PageHistory()
        scan = _Scan(history, fork, block, self._major, begin, end)
        for epoch in self._epochs(index, fork, block, history):
            if scan.is_done:
                break
            if epoch.cut is not None and scan.is_before(epoch.cut):
                continue
            if epoch.may_touch or scan.is_waiting:
                self._read(scan, epoch)
            else:
                scan.skip_epoch()
        return history

    def _epochs(
        self, index: PageIndex, fork: Fork, block: int, history: PageHistory
    ) -> Iterator[_Epoch]:
        begin_lsn = BackupCatalog(self._archive).get(index.base_backup_id).start_lsn
        for cut in index.cuts:
            refs = [ref for ref in index.layers if ref.end_lsn == cut.end_lsn]
            may_touch = not refs
            for layer in open_layers(self._objects, refs):
                limit = layer.limits.of(fork)
                has_page = bool(np.isin(block, layer.blocks(fork)))
                if has_page:
                    history.cuts.append(cut.end_lsn)
                may_touch |= has_page or (limit is not None and limit <= block)
            yield _Epoch(begin_lsn, cut.redo_lsn, cut, may_touch)
            begin_lsn = cut.redo_lsn
        yield _Epoch(begin_lsn, None, None, True)

    def _read(self, scan: _Scan, epoch: _Epoch) -> None:
        reached_lsn = epoch.begin_lsn
        for index in self._wal.records(epoch.begin_lsn, epoch.end_lsn):
            if len(index):
                reached_lsn = int(index.end_lsn[-1])
                scan.feed(index)
            if scan.is_done:
                return
        if epoch.end_lsn is not None:
            # The redo position may be behind a page header, where no record ends.
            end_lsn = as_boundary(epoch.end_lsn, self._archive.facts.wal_seg_size)
            if reached_lsn < end_lsn:
                scan.history.missing.append((reached_lsn, end_lsn))
        scan.skip_epoch()


class _Scan:
    """Scans WAL records in order. Ranges may be skipped."""

    def __init__(
        self,
        history: PageHistory,
        fork: Fork,
        block: int,
        major: int,
        begin: RecoveryTarget,
        end: RecoveryTarget,
    ) -> None:
        self.history = history
        self.is_done = False
        self._fork, self._block = fork, block
        self._major = major
        self._surveyor = RecordSurveyor(wal_version(major), pass_all())
        self._times = EndTimes(major)
        self._begin_lsn, self._begin_time = begin.lsn or 0, begin.time
        self._end_lsn, self._end_time = end.lsn, end.time
        self._is_open: dict[int, list[int]] = {}  # xid -> its events
        self._last_touch_lsn = 0

    @property
    def is_waiting(self) -> bool:
        """Whether the end of a transaction is still unknown."""
        return bool(self._is_open)

    def is_before(self, cut: Cut) -> bool:
        """Whether all WAL of the cut is before the requested range."""
        if self._begin_time is not None:
            return cut.time_unix_s < self._begin_time.timestamp()
        return cut.end_lsn < self._begin_lsn

    def skip_epoch(self) -> None:
        """Called after each epoch within the requested range: its start has been reached."""
        self._begin_time = None

    def feed(self, index: RecordIndex) -> None:
        """Takes the next records."""
        survey = self._surveyor.survey(index)
        if survey.bad >= 0:
            raise SurveyError(
                f"could not decode the record at {format_lsn(int(index.start_lsn[survey.bad]))}",
                hint="Run sk archive verify to check the copy in the archive.",
            )
        if self._begin_time is not None:
            found = self._times.first_after(index, self._begin_time)
            if found is None:
                return
            self._begin_lsn, self._begin_time = found, None
        if self._end_lsn is None and self._end_time is not None:
            self._end_lsn = self._times.first_after(index, self._end_time)
        self._note_touches(index, survey)
        self._note_ends(index, survey)
        lsn = int(index.start_lsn[-1])
        is_past = self._end_lsn is not None and lsn >= self._end_lsn
        is_far = lsn - max(self._last_touch_lsn, self._begin_lsn) > ENDS_BYTES_MAX
        if is_far:
            self._is_open.clear()
        self.is_done = is_past and not self._is_open

    def _note_touches(self, index: RecordIndex, survey: RecordSurvey) -> None:
        facts = survey.facts
        for row, touch in page_touches(index, survey, self._fork, self._block):
            record = int(facts.record[row])
            lsn = int(index.start_lsn[record])
            if lsn < self._begin_lsn or (self._end_lsn is not None and lsn >= self._end_lsn):
                continue
            rmgr, op = divmod(int(facts.operation[row]), 16)
            event = PageEvent(
                lsn,
                int(index.end_lsn[record]),
                int(facts.xid[row]),
                rmgr_name(rmgr, self._major),
                operation_name(rmgr, op << 4, self._major),
                touch,
            )
            self._last_touch_lsn = lsn
            if event.xid:
                self._is_open.setdefault(event.xid, []).append(len(self.history.events))
            self.history.events.append(event)

    def _note_ends(self, index: RecordIndex, survey: RecordSurvey) -> None:
        if not self._is_open:
            return
        facts, rows = survey.facts, survey.xact_rows
        ends = np.empty((len(rows), ENDS), np.int64)
        count, bad = read_ends(
            index.data, index.at, facts.main_length, rows, self._surveyor.xact_format, ends
        )
        if bad >= 0:
            raise SurveyError(
                f"could not decode the record at {format_lsn(int(index.start_lsn[bad]))}"
            )
        for end in ends[:count]:
            op = int(facts.operation[end[ROW]]) & _OPMASK
            outcome = _OUTCOMES.get(op)
            if outcome is None:
                continue  # a PREPARE does not end a transaction
            xid = int(facts.xid[end[ROW]]) if op == _ABORT else int(end[TOP_XID])
            first, subxids = int(end[SUBXIDS_AT]), int(end[SUBXIDS])
            xids = [xid, *(int(load_u32(index.data, first + 4 * n)) for n in range(subxids))]
            time = _EPOCH + timedelta(microseconds=int(end[TIME_US]))
            for each in xids:
                for position in self._is_open.pop(each, ()):
                    event = self.history.events[position]
                    self.history.events[position] = replace(event, time=time, outcome=outcome)
