"""WAL that is checked each time it leaves this member: for a donor's reader, archive or replica.

    wal/000000010000000000000003          a segment
    checksums/0000000000000003            the checksums of its blocks, without a timeline

The checksums of the segment that is being written are in memory. Those of a full segment are saved
off the append path. If a segment has none (it was written by an older release, the file was
removed, or the process ended before it was saved), its records are checked instead, once.

Law: what `read` returns is what was written, or it raises WalDamaged.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from threading import Lock

from quorum_wal.pgwal.page import LONG_HEADER_SIZE, parse_page_header
from quorum_wal.pgwal.segment import format_segment_name
from quorum_wal.safekeeper.block_sums import (
    BLOCK_BYTES,
    BlockSums,
    decode_block_sums,
    encode_block_sums,
)
from quorum_wal.safekeeper.errors import WalDamaged
from quorum_wal.safekeeper.record_check import SLICE_BYTES, Read, WalFacts, check_records
from quorum_wal.storage import durable
from quorum_wal.storage.errors import StorageError

#: Bytes of an XLOG_SWITCH record that continue in the next segment. The rest of that segment may
#: be its padding, which holds no records.
SWITCH_REST_MAX = 16
#: Segments whose checksums are kept in memory; one reader needs one or two.
SEGMENTS_KEPT = 16


class CheckedWal:
    """`read_raw(lsn, length)` reads one segment's file. Only the writing thread calls `written`,
    `cutting` and `cut`; any thread may call the others."""

    def __init__(self, directory: Path, wal_seg_size: int, read_raw: Read) -> None:
        self.directory = directory
        self.wal_seg_size = wal_seg_size
        self._read_raw = read_raw
        self._open: BlockSums | None = None
        #: Checksums of full segments, not saved yet.
        self._full: dict[int, BlockSums] = {}
        self._kept: OrderedDict[int, BlockSums] = OrderedDict()
        self._cuts_count = 0
        self._is_cut_damaged = False
        #: Held while checksum files are written or removed: none of a cut log may be saved after.
        self._files = Lock()
        #: Held for an instant by readers. A thread that needs both locks takes `_files` first.
        self._lock = Lock()
        #: Held while all records of a segment are checked, which takes seconds.
        self._computing = Lock()

    # ---- writing

    def written(self, begin_lsn: int, data: bytes | memoryview) -> None:
        """On the append path: these bytes of one segment were written."""
        sums = self._open
        if sums is None or sums.end[0] != begin_lsn:
            assert begin_lsn % self.wal_seg_size == 0, "a log that was not cut to its end"
            sums = self._open = BlockSums(begin_lsn)
        sums.extend(data)
        if sums.end[0] % self.wal_seg_size == 0:
            self._full[sums.begin_lsn // self.wal_seg_size] = sums
            self._open = None

    def open_sums(self, end_lsn: int) -> BlockSums | None:
        """The checksums of the segment that is being written, up to `end_lsn`. The writer may
        extend them itself, but not to the segment's end."""
        sums = self._open
        return sums if sums is not None and sums.end_lsn == end_lsn else None

    def cutting(self, end_lsn: int) -> None:
        """Called before the log is cut to `end_lsn`. Durably removes the checksums of the segments
        from there on: if one came back after a power loss, the new log would look damaged. Raises
        StorageError."""
        self._cuts_count += 1
        first = end_lsn // self.wal_seg_size
        opened, self._open = self._open, None
        with self._files, self._lock:
            if opened is None or opened.begin_lsn != first * self.wal_seg_size:
                opened = self._find(first)
            self._is_cut_damaged = opened is not None and self._is_damaged_at(opened, end_lsn)
            self._open = opened.cut(end_lsn) if opened is not None else None
            for known in (self._full, self._kept):
                for segno in [segno for segno in known if segno >= first]:
                    del known[segno]
            self._remove(lambda segno: segno >= first, is_durable=True)

    def _is_damaged_at(self, sums: BlockSums, lsn: int) -> bool:
        """Whether the block that contains `lsn` is damaged. Raises StorageError."""
        begin_lsn, end = lsn - lsn % BLOCK_BYTES, sums.end
        data = self._read_raw(begin_lsn, max(0, min(BLOCK_BYTES, end[0] - begin_lsn)))
        return sums.find_damage(begin_lsn, memoryview(data), end) is not None

    def cut(self, end_lsn: int) -> None:
        """Called after the log was cut: it continues at `end_lsn`. If the last block was damaged
        before the cut, its checksum stays wrong. Raises StorageError."""
        begin_lsn = end_lsn - end_lsn % self.wal_seg_size
        sums = self._open or BlockSums(begin_lsn)
        if sums.begin_lsn != begin_lsn:
            sums = BlockSums(begin_lsn)
        while sums.end_lsn < end_lsn:
            data = self._read_raw(sums.end_lsn, min(SLICE_BYTES, end_lsn - sums.end_lsn))
            assert data, "the log was found to reach its end"
            sums.extend(data)
        if self._is_cut_damaged and end_lsn % BLOCK_BYTES:
            sums.end = (end_lsn, sums.end[1] ^ 1)
        self._is_cut_damaged = False
        self._open = sums

    # ---- off the append path

    def save(self) -> None:
        """Saves the checksums of segments that became full. Raises StorageError."""
        for segno in sorted(self._full):
            with self._files:
                self._save(segno)

    def _save(self, segno: int) -> None:
        sums = self._full.get(segno)
        if sums is None:
            return  # it was cut off, or saved by another thread
        if not self.directory.is_dir():
            durable.make_directory(self.directory)
        durable.replace_file(self._file(segno), encode_block_sums(sums))
        with self._lock:
            if self._full.get(segno) is sums:  # the segment may have been repaired
                del self._full[segno]
                self._keep(segno, sums)

    def repaired(self, sums: BlockSums) -> None:
        """A whole segment was written again."""
        with self._lock:
            self._full[sums.begin_lsn // self.wal_seg_size] = sums

    def forget(self, segno: int) -> None:
        """The segment was removed or will be replaced. Raises StorageError."""
        with self._files, self._lock:
            self._full.pop(segno, None)
            self._kept.pop(segno, None)
            self._remove(segno.__eq__, is_durable=True)

    def remove_below(self, lsn: int) -> None:
        """The segments that end at or below `lsn` were removed. Raises StorageError."""
        first = lsn // self.wal_seg_size
        with self._files:
            self._remove(lambda segno: segno < first, is_durable=False)

    def _remove(self, is_meant: Callable[[int], bool], *, is_durable: bool) -> None:
        """The caller holds `_files`."""
        if not self.directory.is_dir():
            return
        names = [entry.name for entry in self.directory.iterdir() if len(entry.name) == 16]
        meant = [name for name in names if is_meant(self._segno(name))]
        for name in meant:
            durable.remove_file(self.directory / name)
        if meant and is_durable:
            durable.sync_directory(self.directory)

    # ---- reading

    def read(self, lsn: int, length: int, facts: WalFacts) -> bytes:
        """Returns up to `length` bytes at `lsn`, of one segment; fewer only at the end of the log.
        Raises WalDamaged, StorageError."""
        segno = lsn // self.wal_seg_size
        cuts_count = self._cuts_count
        try:
            sums = self.sums_of(segno, facts)
        except WalDamaged:
            if cuts_count != self._cuts_count:
                return b""  # the log was cut during the read
            raise
        end = sums.end
        begin_lsn = lsn - lsn % BLOCK_BYTES
        end_lsn = min(-(-(lsn + length) // BLOCK_BYTES) * BLOCK_BYTES, end[0])
        if end_lsn <= lsn:
            return b""
        data = self._read_raw(begin_lsn, end_lsn - begin_lsn)
        damaged_lsn = begin_lsn
        if len(data) == end_lsn - begin_lsn:
            found_lsn = sums.find_damage(begin_lsn, memoryview(data), end)
            if found_lsn is None:
                return data[lsn - begin_lsn : lsn - begin_lsn + length]
            damaged_lsn = found_lsn
        if cuts_count != self._cuts_count:
            return b""  # the log was cut during the read
        raise WalDamaged(damaged_lsn, "its bytes are not the bytes that were written")

    def sums_of(self, segno: int, facts: WalFacts) -> BlockSums:
        """The checksums of an existing segment. Raises WalDamaged, StorageError."""
        opened = self._open
        if opened is not None and opened.begin_lsn == segno * self.wal_seg_size:
            return opened
        known = self._known(segno)
        if known is not None:
            return known
        with self._computing:
            known = self._known(segno)  # another thread may have computed it
            if known is not None:
                return known
            cuts_count = self._cuts_count
            sums = self._compute(segno, facts)
            with self._lock:
                if cuts_count != self._cuts_count:
                    return sums  # of the segment before the cut
                return self._full.setdefault(segno, sums)  # it may have been repaired

    def _known(self, segno: int) -> BlockSums | None:
        with self._lock:
            return self._find(segno)

    def _find(self, segno: int) -> BlockSums | None:
        """The caller holds `_lock`."""
        return self._full.get(segno) or self._kept.get(segno) or self._load(segno)

    def _load(self, segno: int) -> BlockSums | None:
        path = self._file(segno)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(f'could not read "{path}": {error.strerror}') from error
        sums = decode_block_sums(data, segno * self.wal_seg_size, self.wal_seg_size)
        if sums is not None:
            self._keep(segno, sums)
        return sums

    def _keep(self, segno: int, sums: BlockSums) -> None:
        self._kept[segno] = sums
        if len(self._kept) > SEGMENTS_KEPT:
            self._kept.popitem(last=False)

    def _compute(self, segno: int, facts: WalFacts) -> BlockSums:
        """Checks the records of a segment without saved checksums. Records at its edges reach into
        its neighbours, so decoding begins in the segment before and ends in the one after.
        """
        begin_lsn = segno * self.wal_seg_size
        end_lsn = begin_lsn + self.wal_seg_size
        first_lsn = begin_lsn
        while first_lsn > facts.first_lsn and self._reaches_back(first_lsn, begin_lsn):
            first_lsn -= self.wal_seg_size
        check_records(self._read_raw, first_lsn, end_lsn, facts)
        sums = BlockSums(begin_lsn)
        while sums.end_lsn < end_lsn:
            data = self._read_raw(sums.end_lsn, SLICE_BYTES)
            if not data:
                raise WalDamaged(sums.end_lsn, "it is missing")
            sums.extend(data)
        return sums

    def _reaches_back(self, first_lsn: int, begin_lsn: int) -> bool:
        """Whether decoding must begin a segment earlier, and that segment exists."""
        header = parse_page_header(self._read_raw(first_lsn, LONG_HEADER_SIZE), 0)
        is_padding = header is not None and 0 < header.remaining_length <= SWITCH_REST_MAX
        is_there = bool(self._read_raw(first_lsn - self.wal_seg_size, 1))
        return is_there and (first_lsn == begin_lsn or is_padding)

    # ---- names

    def _file(self, segno: int) -> Path:
        return self.directory / format_segment_name(0, segno, self.wal_seg_size)[8:]

    def _segno(self, name: str) -> int:
        return int(name[:8], 16) * ((1 << 32) // self.wal_seg_size) + int(name[8:], 16)
