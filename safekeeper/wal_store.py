"""The WAL of one timeline on disk: Postgres segment files under their Postgres names.

    wal/000000010000000000000003     full size from the start, zeros behind the end of the log
    wal/000000010000000000000004
    wal/next-segment                 zeros, synced, for the next segment

Bytes are written only in order; only flushed bytes are durable. The caller holds the timeline's
lock for every method but `read`, `prepare_next_segment` and `remove_below`. After a StorageError
the object is not used again.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.pgwal.end_of_wal import EndOfWal, find_end_of_wal
from quorum_wal.pgwal.errors import SegmentNameError
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.pgwal.segment import SegmentName, format_segment_name, parse_segment_name, segno_of
from quorum_wal.safekeeper.checked_wal import CheckedWal
from quorum_wal.safekeeper.record_check import WalFacts
from quorum_wal.storage import durable

SPARE_NAME = "next-segment"

# Zeros are written into segments up to this size, and into tails up to this length, so that later
# flushes write no metadata. Writing more would delay appends: larger segments are only allocated,
# and longer tails are discarded, which takes the same time for a byte and for a GiB.
ZEROS_BYTES_MAX = 16 * 1024 * 1024
#: No log reaches this.
LSN_MAX = (1 << 64) - 1


class WalStore:
    """`end_lsn` is the position of the next write. Call `recover` before using a new store."""

    def __init__(
        self,
        directory: Path,
        server: ServerFacts,
        history: TimelineHistory,
        check_room: Callable[[], None] = lambda: None,
    ) -> None:
        """`check_room` is called before the log grows by a file; it raises StorageError if the log
        may not grow."""
        self.directory = directory
        self._check_room = check_room
        self.wal_seg_size = server.wal_seg_size
        self.pg_major = server.pg_major
        self.system_id = server.system_id
        self.history = history
        self.end_lsn = 0
        self._fd = -1
        self._path = directory
        #: The open file takes bytes up to here: to its segment's end, or to a timeline switch.
        self._file_end_lsn = 0
        self._removed_below_lsn = 0
        #: WAL that leaves this member is read through this.
        self.checked = CheckedWal(
            directory.parent / "checksums",
            self.wal_seg_size,
            lambda lsn, length: self.read(lsn, length),
        )

    # ---- at a start

    def recover(
        self,
        start_lsn: int,
        known_lsn: int,
        first_lsn: int | None = None,
        valid_lsn: int | None = None,
    ) -> EndOfWal:
        """Finds the end of the log from `start_lsn` on (a boundary or a segment's start). Syncs the
        bytes read, and zeroes the rest, so that no stale tail can be taken for WAL.

        An end below `known_lsn` is damage: then nothing is zeroed. If no record is valid behind
        `start_lsn`, the search first goes back, at most to `first_lsn`: the segment may be the
        padding of an XLOG_SWITCH that begins in the one before. From `valid_lsn` on nothing is
        trusted. Raises StorageError.
        """
        durable.make_directory(self.directory)
        self.remove_spares()
        valid_lsn = LSN_MAX if valid_lsn is None else valid_lsn
        end = self._find_end(start_lsn, valid_lsn)
        first_lsn = start_lsn if first_lsn is None else first_lsn
        while not end.last_record_lsn and end.end_lsn < known_lsn and start_lsn > first_lsn:
            start_lsn = max(first_lsn, start_lsn - self.wal_seg_size)
            end = self._find_end(start_lsn, valid_lsn)
        first, last = (segno_of(lsn, self.wal_seg_size) for lsn in (start_lsn, end.end_lsn))
        for name in self._names():
            if first <= name.segno <= last:
                durable.sync_file(self._file(name.tli, name.segno))
        if end.end_lsn >= known_lsn:
            self._cut(end.end_lsn, LSN_MAX)
        else:
            self.end_lsn = LSN_MAX  # the bytes behind are unknown until they are truncated
            self.checked.cut(int(end.end_lsn))
        return end

    def _find_end(self, start_lsn: int, valid_lsn: int) -> EndOfWal:
        return find_end_of_wal(
            lambda lsn, length: self.read(lsn, max(0, min(length, valid_lsn - lsn))),
            start_lsn,
            wal_seg_size=self.wal_seg_size,
            version_major=self.pg_major,
            system_id=self.system_id,
            tli_at=self.history.tli_at,
        )

    def remove_spares(self) -> None:
        """Spares may be incomplete after a crash, and a timeline that sleeps needs none. Raises
        StorageError."""
        for spare in self.directory.glob(SPARE_NAME + "*"):
            durable.remove_file(spare)

    def missing_segments(self, begin_lsn: int, end_lsn: int) -> list[int]:
        """The segments of [begin_lsn, end_lsn) that are missing or too short."""
        missing = []
        for segno in range(
            segno_of(begin_lsn, self.wal_seg_size), -(-end_lsn // self.wal_seg_size)
        ):
            path = self.newest_file(segno * self.wal_seg_size)
            with durable.storage_errors(path, "read"):
                if not path.exists() or path.stat().st_size < min(
                    self.wal_seg_size, end_lsn - segno * self.wal_seg_size
                ):
                    missing.append(segno)
        return missing

    def is_whole(self, begin_lsn: int, end_lsn: int) -> bool:
        """Whether `missing_segments` would find none; reads the folder only once, because a start
        checks all timelines. Raises StorageError."""
        seg_size, sizes = self.wal_seg_size, dict[tuple[int, int], int]()
        with durable.storage_errors(self.directory, "read"), os.scandir(self.directory) as entries:
            for entry in entries:
                name = self._name_of(entry.name)
                if name is not None:
                    sizes[name.segno, name.tli] = entry.stat().st_size
        for segno in range(segno_of(begin_lsn, seg_size), -(-end_lsn // seg_size)):
            size = next((sizes[segno, t] for t in self._tlis_of(segno) if (segno, t) in sizes), 0)
            if size < min(seg_size, end_lsn - segno * seg_size):
                return False
        return True

    # ---- writing

    def write(self, begin_lsn: int, wal: bytes | memoryview) -> None:
        """Hands bytes to the OS. A full segment is flushed before the next one begins."""
        assert begin_lsn == self.end_lsn
        end_lsn = begin_lsn + len(wal)
        if self._fd >= 0 and end_lsn <= self._file_end_lsn:  # nearly always
            durable.write_all(self._fd, wal, begin_lsn % self.wal_seg_size, self._path)
            self.checked.written(begin_lsn, wal)
            self.end_lsn = end_lsn
            return
        view = memoryview(wal)
        while view:
            if self._fd < 0 or self.end_lsn == self._file_end_lsn:
                self._open_segment()
            room = self._file_end_lsn - self.end_lsn
            assert room > 0
            part = view[:room]
            durable.write_all(self._fd, part, self.end_lsn % self.wal_seg_size, self._path)
            self.checked.written(self.end_lsn, part)
            self.end_lsn += len(part)
            view = view[room:]

    @property
    def open_file(self) -> tuple[int, Path, int]:
        """The open segment, its path, and the end of the WAL it takes; -1 if none is open."""
        return self._fd, self._path, self._file_end_lsn

    def adopt(self, history: TimelineHistory) -> None:
        """The log continues under this history; another file may have to be opened."""
        if history != self.history:
            self.close()
            self.history = history

    def flush(self) -> None:
        """Makes everything written durable."""
        if self._fd >= 0:
            durable.sync_data(self._fd, self._path)

    def truncate(self, end_lsn: int) -> None:
        """Durably removes everything at and above `end_lsn`.

        Later segments are removed first, from the last one down, so that an interruption leaves a
        shorter log and never one with a hole. Then the written part of the segment's tail is
        zeroed.
        """
        self.close()
        self._cut(end_lsn, self.end_lsn)

    def _cut(self, end_lsn: int, dirty_end_lsn: int) -> None:
        """Zeros follow `dirty_end_lsn` already."""
        end_lsn = int(end_lsn)  # with an Lsn, every sum would be a call
        self.checked.cutting(end_lsn)
        tli, segno = self.history.tli_at(max(end_lsn - 1, 0)), segno_of(end_lsn, self.wal_seg_size)
        offset = end_lsn % self.wal_seg_size
        beyond = [
            name
            for name in self._names()
            if (name.segno, name.tli) > (segno, tli) or (name.segno == segno and offset == 0)
        ]
        for name in sorted(beyond, key=lambda n: (n.segno, n.tli), reverse=True):
            durable.remove_file(self._file(name.tli, name.segno))
        if beyond:
            durable.sync_directory(self.directory)
        if offset and self._file(tli, segno).exists():
            dirty_end = min(dirty_end_lsn - (end_lsn - offset), self.wal_seg_size)
            self._zero_tail(self._file(tli, segno), offset, dirty_end)
        self.end_lsn = end_lsn
        self.checked.cut(end_lsn)

    def _zero_tail(self, path: Path, begin: int, end: int) -> None:
        """Writes zeros in [begin, end) of a segment and gives it its full size. Durably."""
        with durable.storage_errors(path, "open"):
            fd = os.open(path, os.O_RDWR)
        try:
            is_short = os.fstat(fd).st_size < self.wal_seg_size
            if is_short:
                durable.extend(fd, self.wal_seg_size, path)
            if end - begin > ZEROS_BYTES_MAX:
                durable.discard_tail(fd, begin, path)
                durable.sync_data(fd, path)
            elif durable.clear_range(fd, begin, end, path) or is_short:
                durable.sync_data(fd, path)
        finally:
            os.close(fd)

    def close(self) -> None:
        """Flushes and closes the open segment."""
        if self._fd >= 0:
            try:
                durable.sync_data(self._fd, self._path)
            finally:
                self.abandon()

    def abandon(self) -> None:
        """Closes the open segment without a flush: after a failure no flush proves anything."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            try:
                os.close(fd)
            except OSError:
                pass  # it is closed nevertheless; the next start reads and checks what was written

    def _open_segment(self) -> None:
        """Opens the segment that contains `end_lsn`; creates it if it does not exist."""
        is_next = self._fd >= 0
        self.close()
        tli, segno = self.history.tli_at(self.end_lsn), segno_of(self.end_lsn, self.wal_seg_size)
        path = self._file(tli, segno)
        if not path.exists():
            self._create_segment(path, segno, is_next=is_next)
        with durable.storage_errors(path, "open"):
            self._fd = os.open(path, os.O_RDWR)
        self._path = path
        ends = [int(entry.switch_lsn) for entry in self.history.entries]
        ends.append((segno + 1) * self.wal_seg_size)
        self._file_end_lsn = min(lsn for lsn in ends if lsn > self.end_lsn)

    def _create_segment(self, path: Path, segno: int, *, is_next: bool) -> None:
        """Uses the spare if there is one. The next segment does not wait for a spare: WAL comes
        faster than zeros are written, in pieces so long that the metadata of flushes matters
        little."""
        self._check_room()
        begin_lsn = segno * self.wal_seg_size
        # At a switch inside a segment, the new timeline's file also has the old one's bytes.
        source = self.newest_file(begin_lsn)
        spare = self.directory / SPARE_NAME
        taken = self.directory / (SPARE_NAME + ".taken")
        with durable.storage_errors(spare, "rename"):
            try:
                spare.rename(taken)
            except FileNotFoundError:
                self._create_zeros(taken, is_allocated=is_next)
        if self.end_lsn > begin_lsn:
            self._write_prefix(source, taken, self.end_lsn - begin_lsn)
        durable.publish_file(taken, path)

    def _create_zeros(self, path: Path, *, is_allocated: bool = False) -> None:
        if is_allocated or self.wal_seg_size > ZEROS_BYTES_MAX:
            durable.create_allocated(path, self.wal_seg_size)
        else:
            durable.create_zeroed(path, self.wal_seg_size)

    def _write_prefix(self, source: Path, path: Path, length: int) -> None:
        with durable.storage_errors(path, "open"):
            fd = os.open(path, os.O_WRONLY)
        try:
            durable.copy_range(source, 0, length, fd, path)
            durable.sync_data(fd, path)
        finally:
            os.close(fd)

    def prepare_next_segment(self) -> None:
        """Off the append path: creates the next segment's file. Raises StorageError."""
        spare = self.directory / SPARE_NAME
        if not spare.exists():
            temporary = self.directory / (SPARE_NAME + ".tmp")
            self._create_zeros(temporary)
            durable.publish_file(temporary, spare)

    def remove_below(self, lsn: int) -> None:
        """Off the append path: removes the segments that end at or below `lsn`, oldest first. The
        caller has made durable that the log begins there. Raises StorageError."""
        if lsn <= self._removed_below_lsn:
            return
        first = segno_of(lsn, self.wal_seg_size)
        old = sorted((n for n in self._names() if n.segno < first), key=lambda n: (n.segno, n.tli))
        for name in old:
            durable.remove_file(self._file(name.tli, name.segno))
        if old:
            durable.sync_directory(self.directory)
        self.checked.remove_below(lsn)
        self._removed_below_lsn = lsn

    # ---- reading

    def read(self, lsn: int, length: int) -> bytes:
        """Up to `length` bytes at `lsn`, of one segment; fewer only where no more exist."""
        offset = lsn % self.wal_seg_size
        length = min(length, self.wal_seg_size - offset)
        path = self.newest_file(lsn)
        with durable.storage_errors(path, "read"):
            try:
                fd = os.open(path, os.O_RDONLY)
            except FileNotFoundError:
                return b""
            try:
                return os.pread(fd, length, offset)
            finally:
                os.close(fd)

    def facts(self, first_lsn: int) -> WalFacts:
        """The facts by which records are checked; the log here begins at `first_lsn`. They use the
        history of the moment: a promotion may extend it during a check."""
        return WalFacts(self.wal_seg_size, self.pg_major, self.system_id, self._tli_at, first_lsn)

    def _tli_at(self, lsn: int) -> int:
        return self.history.tli_at(lsn)

    def size_bytes(self) -> int:
        """The size of the segments. Raises StorageError."""
        return sum(1 for _ in self._names()) * self.wal_seg_size

    # ---- names

    def _file(self, tli: int, segno: int) -> Path:
        return self.directory / format_segment_name(tli, segno, self.wal_seg_size)

    def files_of(self, segno: int) -> list[Path]:
        """All files of a segment, one for each timeline."""
        return [self._file(n.tli, n.segno) for n in self._names() if n.segno == segno]

    def newest_file(self, lsn: int) -> Path:
        """The file to read `lsn` from: that of the newest timeline, which repeats the bytes of the
        older ones from the segment's start."""
        segno, oldest = segno_of(lsn, self.wal_seg_size), self.history.tli_at(lsn)
        for tli in self._tlis_of(segno):
            if oldest <= tli and self._file(tli, segno).exists():
                return self._file(tli, segno)
        return self._file(oldest, segno)

    def _tlis_of(self, segno: int) -> list[int]:
        """The timelines whose name a segment may have, the newest first."""
        history, begin_lsn = self.history, segno * self.wal_seg_size
        oldest, newest = (
            history.tli_at(lsn) for lsn in (begin_lsn, begin_lsn + self.wal_seg_size - 1)
        )
        tlis = [newest, *(entry.tli for entry in reversed(history.entries)), oldest]
        return [tli for tli in tlis if oldest <= tli <= newest]

    def _names(self) -> list[SegmentName]:
        """Raises StorageError."""
        with durable.storage_errors(self.directory, "read"):
            names = map(self._name_of, os.listdir(self.directory))
            return [name for name in names if name is not None]

    def _name_of(self, name: str) -> SegmentName | None:
        """None for the spare, a foreign file, or a partial segment: our segments are whole."""
        try:
            parsed = parse_segment_name(name, self.wal_seg_size)
        except SegmentNameError:
            return None
        return None if parsed.partial else parsed
