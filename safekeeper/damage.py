"""Damaged segments of a timeline: taken out of the log, told, and put back when they are mended.

    wal/000000010000000000000003         a segment
    damaged/000000010000000000000003     one that was found damaged: evidence

A hole is a committed segment that is not in wal/. The log goes on above it, so this member follows
and acknowledges as before; it gives no vote and serves nothing of the hole. The names on disk are
the memory: a start finds the same holes.

Law: only committed segments become holes: there the bytes of any other member are the same ones.
"""

from __future__ import annotations

from pathlib import Path
from threading import Lock

import structlog

from pgwal.lsn import format_lsn
from pgwal.segment import format_segment_name, segno_of
from safekeeper.wal_store import WalStore
from storage import durable

log = structlog.get_logger()


class Holes:
    """Of one timeline. Thread-safe; `store` is the one that the caller uses now."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "damaged"
        #: Why, by the number of the segment.
        self._reasons: dict[int, str] = {}
        self._is_over = False
        self._lock = Lock()

    def __bool__(self) -> bool:
        return bool(self._reasons)

    def __contains__(self, segno: int) -> bool:
        return segno in self._reasons

    def all(self) -> dict[int, str]:
        return dict(self._reasons)

    def find(self, store: WalStore, begin_lsn: int, end_lsn: int) -> None:
        """After a start: the segments of [begin_lsn, end_lsn) that are not there whole. Raises
        StorageError."""
        with self._lock:
            self._reasons.clear()
            for segno in store.missing_segments(begin_lsn, end_lsn):
                reason = "it is missing"
                if self._quarantine(store, segno):
                    reason = "it is short"
                elif self._kept(store, segno):
                    reason = "it was found damaged before"
                self._reasons[segno] = reason

    def add(self, store: WalStore, segno: int, reason: str) -> None:
        """Take a segment out of the log. Raises StorageError."""
        with self._lock:
            if segno in self._reasons or self._is_over:
                return
            self._quarantine(store, segno)
            self._reasons[segno] = reason
        log.error(
            "WAL segment is damaged",
            segment=self.name(store, segno),
            lsn=format_lsn(segno * store.wal_seg_size),
            reason=reason,
        )

    def finish(self) -> None:
        """The log has gone: the files under these names may be another's from now on."""
        with self._lock:
            self._is_over = True
            self._reasons.clear()

    def close(self, store: WalStore, segno: int) -> None:
        """A mended segment is in its place: what was damaged goes. Raises StorageError."""
        with self._lock:
            for path in self._kept(store, segno):
                durable.remove_file(path)
            self._reasons.pop(segno, None)

    def forget_below(self, store: WalStore, lsn: int) -> bool:
        """The log begins at `lsn` now; whether it had holes and has none any more."""
        with self._lock:
            gone = [s for s in self._reasons if s < segno_of(lsn, store.wal_seg_size)]
            for segno in gone:
                for path in self._kept(store, segno):
                    durable.remove_file(path)
                del self._reasons[segno]
            return bool(gone) and not self._reasons

    def mended_path(self, store: WalStore, segno: int) -> Path:
        """Where a segment is put together before it takes its place."""
        return self.directory / f"{self.name(store, segno)}.mended"

    def name(self, store: WalStore, segno: int) -> str:
        """That of the file which a whole segment is read from."""
        tli = store.history.tli_at((segno + 1) * store.wal_seg_size - 1)
        return format_segment_name(tli, segno, store.wal_seg_size)

    def _quarantine(self, store: WalStore, segno: int) -> bool:
        """Whether there was anything."""
        paths = store.files_of(segno)
        if paths:
            durable.make_directory(self.directory)
            for path in paths:
                durable.publish_file(path, self.directory / path.name)
            durable.sync_directory(store.directory)
            store.checked.forget(segno)
        return bool(paths)

    def _kept(self, store: WalStore, segno: int) -> list[Path]:
        """What was taken out, under the names it had."""
        suffix = format_segment_name(0, segno, store.wal_seg_size)[8:]
        return list(self.directory.glob(f"*{suffix}")) if self.directory.is_dir() else []
