"""Damaged segments of a timeline: taken out of the log, logged, and put back when repaired.

    wal/000000010000000000000003         a segment
    damaged/000000010000000000000003     a damaged segment, kept as evidence

A hole is a committed segment that is not in wal/. The log continues above it, so this member
follows and acknowledges as before; it grants no vote and serves nothing of the hole. The file names
are the durable record: a start finds the same holes.

Law: only committed segments become holes: every other member has the same bytes for them.
"""

from __future__ import annotations

from pathlib import Path
from threading import Lock

import structlog

from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.pgwal.segment import format_segment_name, segno_of
from quorum_wal.safekeeper.wal_store import WalStore
from quorum_wal.storage import durable

log = structlog.get_logger()


class Holes:
    """The holes of one timeline. Thread-safe; `store` is the timeline's present WAL store."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "damaged"
        #: The reason for each hole, by segment number.
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
        """At a start: finds the segments of [begin_lsn, end_lsn) that are missing or short. Raises
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
        """The log was removed: files under these names may belong to another log from now on."""
        with self._lock:
            self._is_over = True
            self._reasons.clear()

    def close(self, store: WalStore, segno: int) -> None:
        """A repaired segment is in its place: removes the damaged files. Raises StorageError."""
        with self._lock:
            for path in self._kept(store, segno):
                durable.remove_file(path)
            self._reasons.pop(segno, None)

    def forget_below(self, store: WalStore, lsn: int) -> bool:
        """The log begins at `lsn` now. Returns whether this removed the last hole."""
        with self._lock:
            removed = [s for s in self._reasons if s < segno_of(lsn, store.wal_seg_size)]
            for segno in removed:
                for path in self._kept(store, segno):
                    durable.remove_file(path)
                del self._reasons[segno]
            return bool(removed) and not self._reasons

    def repair_path(self, store: WalStore, segno: int) -> Path:
        """The file in which a segment is assembled before it is moved to its place."""
        return self.directory / f"{self.name(store, segno)}.mended"

    def name(self, store: WalStore, segno: int) -> str:
        """The name of the file that holds the whole segment."""
        tli = store.history.tli_at((segno + 1) * store.wal_seg_size - 1)
        return format_segment_name(tli, segno, store.wal_seg_size)

    def _quarantine(self, store: WalStore, segno: int) -> bool:
        """Moves the segment's files to `damaged/`. Returns whether there were any."""
        paths = store.files_of(segno)
        if paths:
            durable.make_directory(self.directory)
            for path in paths:
                durable.publish_file(path, self.directory / path.name)
            durable.sync_directory(store.directory)
            store.checked.forget(segno)
        return bool(paths)

    def _kept(self, store: WalStore, segno: int) -> list[Path]:
        """The files that were taken out; they keep their names."""
        suffix = format_segment_name(0, segno, store.wal_seg_size)[8:]
        return list(self.directory.glob(f"*{suffix}")) if self.directory.is_dir() else []
