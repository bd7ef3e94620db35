"""WAL that has left this safekeeper's disk, read back from the archive: for a member that was away.

Law: a store is no part of what a commit waits for. Only who is far behind reads here, and when the
store does not answer, only he waits.
"""

from __future__ import annotations

from threading import Lock

from objectstore.archive import TimelineArchive
from objectstore.errors import ObjectNotFound, ObjectStoreError
from objectstore.store import ObjectStore
from pgwal.lsn import format_lsn
from safekeeper.errors import SafekeeperError
from safekeeper.timeline import Timeline

IO_ERROR = "58030"
UNDEFINED_FILE = "58P01"


class ArchivedWalReader:
    """Of one timeline. Thread-safe; it remembers the segment that was read last."""

    def __init__(self, timeline: Timeline, store: ObjectStore) -> None:
        self._timeline = timeline
        self._store = store
        self._archive: TimelineArchive | None = None
        self._lock = Lock()
        self._segno = -1
        self._segment = b""

    def read(self, lsn: int, length: int) -> bytes:
        """Up to `length` bytes at `lsn`, of one segment. Raises SafekeeperError."""
        control = self._timeline.control
        seg_size = control.server.wal_seg_size
        segno, offset = divmod(lsn, seg_size)
        with self._lock:
            if segno != self._segno:
                self._segment = self._read_segment(segno, seg_size)
                self._segno = segno
            return self._segment[offset : offset + length]

    def _read_segment(self, segno: int, seg_size: int) -> bytes:
        control = self._timeline.control
        tli = control.tli_history.tli_at((segno + 1) * seg_size - 1)
        try:
            if self._archive is None:
                self._archive = TimelineArchive.open(self._store, control.timeline)
            return self._archive.read_segment(tli, segno)
        except ObjectStoreError as error:
            is_gone = isinstance(error, ObjectNotFound)
            raise SafekeeperError(
                f"could not read WAL at {format_lsn(segno * seg_size)} from the archive: {error}",
                hint=error.hint,
                sqlstate=UNDEFINED_FILE if is_gone else IO_ERROR,
            ) from error
