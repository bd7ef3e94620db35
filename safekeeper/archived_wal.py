"""WAL that was removed from this safekeeper's disk, read back from the archive for lagging members.

    object ──pieces──> unpacked, into a file without a name ──verified as a whole──> read from there

Laws. A commit never waits for the store. Only a reader that is far behind reads here; if the store
does not answer, or there is no room to unpack, only that reader waits. No byte of a segment is
returned before the whole segment is verified, and none that has changed on the disk since.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock

from quorum_wal.objectstore.archive import TimelineArchive
from quorum_wal.objectstore.errors import ObjectNotFound, ObjectStoreError
from quorum_wal.objectstore.store import ObjectStore
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.safekeeper.errors import SafekeeperError
from quorum_wal.safekeeper.timeline import Timeline
from quorum_wal.safekeeper.unpacked_segment import UnpackedSegment
from quorum_wal.storage import durable
from quorum_wal.storage.durable import DISK_FULL
from quorum_wal.storage.errors import StorageError

IO_ERROR = "58030"
UNDEFINED_FILE = "58P01"
#: How long the segment that was read last stays on the disk.
IDLE_SECONDS = 60.0
NO_ROOM = "Free some space on the safekeeper's disk; the reader then tries again."


class ArchivedWalReader:
    """Reads one timeline's WAL. Thread-safe. Keeps the segment that was read last for a while."""

    def __init__(
        self,
        timeline: Timeline,
        store: ObjectStore,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._timeline = timeline
        self._store = store
        self._clock = clock
        self._archive: TimelineArchive | None = None
        self._lock = Lock()
        self._segno = -1
        self._segment: UnpackedSegment | None = None
        self._used_at = 0.0

    def read(self, lsn: int, length: int) -> bytes:
        """Up to `length` bytes at `lsn`, of one segment. Raises SafekeeperError."""
        segno = lsn // self._timeline.control.server.wal_seg_size
        with self._lock:
            try:
                if self._segment is None or segno != self._segno:
                    self._forget()
                    self._segment, self._segno = self._unpack(segno), segno
                wal = self._segment.read(lsn, length)
            except ObjectStoreError as error:
                raise _failure(
                    lsn, error, UNDEFINED_FILE if isinstance(error, ObjectNotFound) else IO_ERROR
                ) from error
            except StorageError as error:
                self._forget()
                raise _failure(lsn, error, error.sqlstate) from error
            self._used_at = self._clock()
            return wal

    def release(self) -> bool:
        """Removes the unpacked segment if it was not read for a while. Returns whether none is
        left. Called periodically."""
        if not self._lock.acquire(blocking=False):
            return False  # a reader has it
        try:
            if self._clock() - self._used_at >= IDLE_SECONDS:
                self._forget()
            return self._segment is None
        finally:
            self._lock.release()

    def close(self) -> None:
        """Removes the unpacked segment. No read may follow."""
        with self._lock:
            self._forget()

    def _forget(self) -> None:
        if self._segment is not None:
            self._segment.close()
            self._segment = None

    def _unpack(self, segno: int) -> UnpackedSegment:
        """Returns the segment, verified. Raises ObjectStoreError, StorageError."""
        control = self._timeline.control
        seg_size = control.server.wal_seg_size
        tli = control.tli_history.tli_at((segno + 1) * seg_size - 1)
        if self._archive is None:
            self._archive = TimelineArchive.open(self._store, control.timeline)
        self._check_room(seg_size)
        segment = UnpackedSegment(self._timeline.directory, segno * seg_size)
        try:
            for piece in self._archive.read_segment_pieces(tli, segno):
                segment.write(piece)
        except BaseException:
            segment.close()
            raise
        return segment

    def _check_room(self, seg_size: int) -> None:
        """Keeps the room that new WAL needs free. Raises StorageError."""
        needed_bytes = seg_size + self._timeline.room.bytes_to_resume
        free_bytes = durable.free_bytes(self._timeline.directory)
        if free_bytes < needed_bytes:
            raise StorageError(
                f'could not unpack a segment in "{self._timeline.directory}": No space left on '
                f"device but {free_bytes} of the {needed_bytes} bytes needed for it and for new "
                "WAL",
                sqlstate=DISK_FULL,
            )


def _failure(lsn: int, error: ObjectStoreError | StorageError, sqlstate: str) -> SafekeeperError:
    return SafekeeperError(
        f"could not read WAL at {format_lsn(lsn)} from the archive: {error}",
        hint=NO_ROOM if sqlstate == DISK_FULL else error.hint,
        sqlstate=sqlstate,
    )
