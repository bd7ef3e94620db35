"""The archiver of one timeline: copies committed WAL from this safekeeper's disk to the store.

A whole segment is uploaded as soon as it is committed. The beginning of the last segment is
uploaded within the configured interval after its newest commit, and is deleted when the whole
segment is stored. A history is uploaded before the first WAL of its timeline.

Laws. Only WAL that is committed here is uploaded. `archived_lsn` is a position that was found in
the store or written by this member, never an assumption. If the store fails, the archiver retries
for ever, with growing pauses. No other part of the safekeeper waits for it, and no other timeline's
archiver.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor

import structlog

from quorum_wal.objectstore.archive import ArchivedTimeline, TimelineArchive
from quorum_wal.objectstore.errors import ObjectStoreError
from quorum_wal.objectstore.keys import ArchivedWal
from quorum_wal.objectstore.store import ObjectStore
from quorum_wal.pgwal.history import TimelineHistory, TimelineSwitch
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.safekeeper.archive_progress import ArchiveProgress, ArchiverState
from quorum_wal.safekeeper.archive_turn import ArchiveTurn, rank_of
from quorum_wal.safekeeper.archive_workers import UPLOADS_MAX
from quorum_wal.safekeeper.read_wal import read_wal
from quorum_wal.safekeeper.replica import committed_tli
from quorum_wal.safekeeper.timeline import Timeline
from quorum_wal.storage.errors import StorageError

log = structlog.get_logger()

COMMITS_REMEMBERED = 1000
RETRY_SECONDS_MAX = 10.0
#: Segment bytes that one turn may upload.
UPLOADS_BYTES_MAX = 64 * 1024 * 1024
#: Bytes read, checked and packed at a time, whatever the size of a segment.
PIECE_BYTES = 1024 * 1024
#: Share of the interval after which a partial segment is uploaded; the rest is for the upload.
PARTIAL_SHARE = 0.6


class Archiver:
    """A worker calls `take_turn` when `has_work` is true; one thread at a time."""

    def __init__(
        self,
        timeline: Timeline,
        store: ObjectStore,
        progress: ArchiveProgress,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._timeline = timeline
        self._store = store
        self._progress = progress
        self._clock = clock
        self._members: tuple[int, ...] = ()
        self._turn = self._take_place()
        self._archive: TimelineArchive | None = None
        self._has_seen_wal = False
        self._histories: set[int] = set()  # tlis whose history is stored
        self._partial_segnos: set[int] = set()  # segments that may have partial objects stored
        #: Times of commits that are not archived yet: (time, commit_lsn), oldest first.
        self._commits: deque[tuple[float, int]] = deque(maxlen=COMMITS_REMEMBERED)
        self._retry_at: float | None = None

    def _take_place(self) -> ArchiveTurn:
        """The place in the line of all members; of both sets if the membership is joint."""
        control = self._timeline.control
        self._members = members = control.membership.all_members
        rank = rank_of(self._timeline.safekeeper_id, members, control.timeline)
        return ArchiveTurn(rank, len(members))

    def has_work(self) -> bool:
        """Whether a turn is due. Does not ask the store."""
        if not self._timeline.is_readable or self._is_pausing():
            return False
        if self._archive is None or self._progress.error:
            return True
        return self._is_for_us(self._due(self._timeline.control.tli_history, self._commit_lsn()))

    def take_turn(self, pool: Executor) -> bool:
        """Upload what is due, once. Returns whether more may be due. A failure is logged and
        retried after a pause."""
        try:
            with self._timeline.sleep.prevented():
                is_busy = self._timeline.is_readable and self.step(pool)
        except Exception as error:  # bugs too: an archiver that died would report nothing
            self._failed(error)
            return False
        self._retry_at = None
        self._succeeded()
        return is_busy

    def _is_pausing(self) -> bool:
        return self._retry_at is not None and self._clock() < self._retry_at

    def _is_for_us(self, due: list[ArchivedWal]) -> bool:
        """Whether this member must upload it or check the store for it."""
        must_look = self._turn.must_look(self._clock(), is_due=bool(due))
        return must_look or (bool(due) and self._turn.is_ours)

    def _commit_lsn(self) -> int:
        positions = self._timeline.positions
        return min(positions.commit_lsn, positions.flush_lsn)

    def _failed(self, error: Exception) -> None:
        progress, reason = self._progress, str(error)
        retry_seconds = min(RETRY_SECONDS_MAX, max(1.0, 2 * progress.retry_seconds))
        self._retry_at = self._clock() + retry_seconds
        if not isinstance(error, ObjectStoreError | StorageError):
            reason = f"unexpected {type(error).__name__}: {error}"
        if reason != progress.error:
            log.warning(
                "archiving failed",
                timeline=str(self._timeline.control.timeline),
                archived_lsn=format_lsn(progress.archived_lsn),
                reason=reason,
            )
        progress.state = ArchiverState.RETRYING
        progress.error, progress.retry_seconds = reason, retry_seconds
        progress.failures_count += 1

    def _succeeded(self) -> None:
        progress = self._progress
        progress.retry_seconds = 0.0
        if progress.error:
            log.info("archiving resumed", timeline=str(self._timeline.control.timeline))
            progress.error = ""
        progress.state = ArchiverState.ARCHIVING if self._turn.is_ours else ArchiverState.FOLLOWING

    # ---- one turn

    def step(self, pool: Executor) -> bool:
        """Upload what is due, if this member must. Returns whether it uploaded, so that more may
        be due. Raises ObjectStoreError, StorageError."""
        if self._timeline.control.membership.all_members != self._members:
            self._turn = self._take_place()
        archive = self._archive or self._open()
        history, commit_lsn = self._timeline.control.tli_history, self._commit_lsn()
        due = self._due(history, commit_lsn)
        if self._turn.must_look(self._clock(), is_due=bool(due)):
            self._look(archive, history)
            due = self._due(history, commit_lsn)
        if due and self._turn.is_ours:
            archive.check()
            self._put_histories(archive, history, commit_lsn)
            self._upload(archive, pool, due)
            return True
        return False

    def _open(self) -> TimelineArchive:
        """At the first turn: finds how much of our WAL is in the store. If it was archived before,
        a store without it is a mistake, unless the operator wants a new archive."""
        control = self._timeline.control
        facts = ArchivedTimeline(
            system_id=control.server.system_id,
            pg_version=control.server.pg_version,
            wal_seg_size=control.server.wal_seg_size,
            tli=control.tli_history.tli_at(control.timeline_start_lsn),
            timeline_start_lsn=control.timeline_start_lsn,
        )
        settings = self._progress.settings
        if control.archived_lsn > control.timeline_start_lsn and not settings.may_begin:
            archive = TimelineArchive(self._store, control.timeline, facts, settings.level)
            archive.check()
        else:
            archive = TimelineArchive.create(self._store, control.timeline, facts, settings.level)
        archived_lsn = self._find_archived_lsn(archive)
        log.info(
            "archive opened",
            timeline=str(control.timeline),
            archive=self._store.url,
            archived_lsn=format_lsn(archived_lsn),
            rank=self._turn.rank,
        )
        if archived_lsn < control.archived_lsn:
            log.error(
                "archive has lost WAL, or is a different archive",
                timeline=str(control.timeline),
                archived_lsn=format_lsn(archived_lsn),
                seen_before=format_lsn(control.archived_lsn),
            )
        self._advance(archived_lsn)
        self._partial_segnos.add(archived_lsn // archive.facts.wal_seg_size)
        self._archive = archive
        self._progress.is_open = True
        return archive

    def _find_archived_lsn(self, archive: TimelineArchive) -> int:
        """From the oldest WAL here. If the archive begins later, the WAL that was archived before
        has been pruned, and is not uploaded again."""
        control = self._timeline.control
        history, from_lsn = control.tli_history, control.local_start_lsn
        archived_lsn = archive.archived_lsn(history, from_lsn)
        if archived_lsn == from_lsn:
            first_lsn = archive.first_lsn(history, from_lsn)
            if first_lsn is not None and first_lsn < control.archived_lsn:
                return archive.archived_lsn(history, first_lsn)
        return archived_lsn

    def _due(self, history: TimelineHistory, commit_lsn: int) -> list[ArchivedWal]:
        """The WAL that should be in the store and is not, as far as this member knows; in order."""
        archived_lsn, now = self._progress.archived_lsn, self._clock()
        while self._commits and self._commits[0][1] <= archived_lsn:
            self._commits.popleft()
        if commit_lsn <= archived_lsn:
            return []
        if not self._commits or self._commits[-1][1] < commit_lsn:
            self._commits.append((now, commit_lsn))
        seg_size = self._timeline.control.server.wal_seg_size
        due, due_max = [], max(1, min(UPLOADS_MAX, UPLOADS_BYTES_MAX // seg_size))
        for segno in range(archived_lsn // seg_size, commit_lsn // seg_size):
            end_lsn = (segno + 1) * seg_size
            due.append(ArchivedWal(history.tli_at(end_lsn - 1), segno, end_lsn))
            if len(due) == due_max:
                return due
        interval_seconds = self._progress.settings.partial_interval_seconds * PARTIAL_SHARE
        if commit_lsn % seg_size and now - self._commits[0][0] >= interval_seconds:
            tli = history.tli_at(commit_lsn - 1)
            due.append(ArchivedWal(tli, commit_lsn // seg_size, commit_lsn))
        return due

    def _look(self, archive: TimelineArchive, history: TimelineHistory) -> None:
        before_lsn = self._progress.archived_lsn
        seg_size = archive.facts.wal_seg_size
        found_lsn = archive.archived_lsn(history, before_lsn - before_lsn % seg_size)
        if found_lsn <= before_lsn and self._has_seen_wal:
            found_lsn = self._end_behind_pruned(archive, history, before_lsn)
        self._advance(max(before_lsn, found_lsn))
        self._turn.looked(self._clock(), has_progressed=found_lsn > before_lsn)
        if self._turn.is_ours:
            self._partial_segnos.add(before_lsn // seg_size)
            log.info(
                "archiving taken over",
                timeline=str(self._timeline.control.timeline),
                archived_lsn=format_lsn(before_lsn),
            )

    def _end_behind_pruned(
        self, archive: TimelineArchive, history: TimelineHistory, before_lsn: int
    ) -> int:
        """If even the WAL known to be archived last is missing, it was pruned, and the archive
        begins later. If that WAL is there, the WAL after it is only missing."""
        seg_size = archive.facts.wal_seg_size
        last_lsn = (before_lsn - 1) // seg_size * seg_size
        first_lsn = archive.first_lsn(history, last_lsn)
        if first_lsn is None or first_lsn == last_lsn:
            return before_lsn
        return archive.archived_lsn(history, first_lsn)

    # ---- uploads

    def _put_histories(
        self, archive: TimelineArchive, history: TimelineHistory, commit_lsn: int
    ) -> None:
        """Of the timelines with a commit on them: a newer history may still be replaced."""
        newest = committed_tli(history, commit_lsn)
        entries: tuple[TimelineSwitch, ...] = ()
        for tli in [*(entry.tli for entry in history.entries), history.tli]:
            if entries and tli <= newest and tli not in self._histories:
                archive.put_history(TimelineHistory(tli, entries))
                self._histories.add(tli)
            entries = history.entries[: len(entries) + 1]

    def _upload(self, archive: TimelineArchive, pool: Executor, due: list[ArchivedWal]) -> None:
        """Uploads all at once. Only the uploads before the first failure count."""
        uploads = [pool.submit(self._put, archive, wal) for wal in due]
        try:
            for wal, upload in zip(due, uploads, strict=True):
                is_new = upload.result()
                self._advance(wal.end_lsn)
                if not is_new:
                    self._turn.found_archived(self._clock())
                self._drop_partials(archive, wal)
        finally:
            for upload in uploads:
                upload.cancel()

    def _put(self, archive: TimelineArchive, wal: ArchivedWal) -> bool:
        begin_lsn = wal.segno * archive.facts.wal_seg_size
        is_new = archive.put_wal_pieces(wal, lambda: self._read(begin_lsn, wal.end_lsn))
        self._progress.uploaded_bytes += wal.end_lsn - begin_lsn
        return is_new

    def _read(self, begin_lsn: int, end_lsn: int) -> Iterator[bytes]:
        """Committed WAL in pieces, verified as the bytes written. Raises StorageError."""
        for lsn in range(begin_lsn, end_lsn, PIECE_BYTES):
            length = min(PIECE_BYTES, end_lsn - lsn)
            piece = read_wal(self._timeline, lsn, length)
            if len(piece) < length:
                raise StorageError(
                    f"WAL from {format_lsn(lsn)} to {format_lsn(lsn + length)} is not on disk"
                )
            yield piece

    def _drop_partials(self, archive: TimelineArchive, wal: ArchivedWal) -> None:
        """Deletes the partial objects that `wal` contains, of all timelines."""
        if wal.segno in self._partial_segnos:
            history = self._timeline.control.tli_history
            begin_lsn = wal.segno * archive.facts.wal_seg_size
            for tli in {history.tli_at(begin_lsn), *(e.tli for e in history.entries), wal.tli}:
                archive.drop_partials(tli, wal.segno, wal.end_lsn)
        if wal.end_lsn % archive.facts.wal_seg_size:
            self._partial_segnos.add(wal.segno)
        else:
            self._partial_segnos.discard(wal.segno)

    def _advance(self, archived_lsn: int) -> None:
        self._has_seen_wal |= archived_lsn > self._progress.archived_lsn
        self._progress.archived_lsn = archived_lsn
