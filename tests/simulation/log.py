"""`Log`: WAL with the structure Postgres gives it, written without the code under test.

    |long page header|R1|R2| .. |R7 (first part)||page header|R7 (rest)|R8| ...
    .. |R9|XLOG_SWITCH|zeros .. ||long page header|R10| ...

Also the ghost that a run keeps of each ballot's log: which bytes it has, where its records begin
and end, and which ballot brought which byte first.
"""

from __future__ import annotations

import struct
from bisect import bisect_right

from crc32c import crc32c

PAGE_SIZE = 8192
#: Smaller than Postgres allows, so that a run of kilobytes has many (`limits.py`).
WAL_SEG_SIZE = 64 * 1024
PG_VERSION = 160004
SYSTEM_ID = 7_123_456_789_012_345_678
START_LSN = WAL_SEG_SIZE

_PAGE_MAGIC = 0xD113
#: Of a record, and of a page that does not begin a segment.
HEADER_BYTES = 24
_LONG_HEADER_BYTES = 40
_XLOG, _SWITCH = 0, 0x40
_CONTRECORD, _LONG_HEADER = 0x0001, 0x0002
_PAGE = struct.Struct("<HHIQI4x")
_LONG = struct.Struct("<QII")
_HEAD = struct.Struct("<IIQBBH")
_CRC = struct.Struct("<I")


class Log:
    """Grows at `lsn`; `ends[i]` is the end of record i as Postgres counts it."""

    __slots__ = ("ends", "starts", "tli", "wal")

    def __init__(self, tli: int = 1) -> None:
        self.tli = tli
        self.wal = bytearray()
        self.starts: list[int] = []
        self.ends: list[int] = []

    @property
    def lsn(self) -> int:
        return START_LSN + len(self.wal)

    def append(self, name: str, length: int) -> None:
        """A record of `length` bytes, filled with its name; no two names are equal."""
        text = name.encode() + b"."
        size = max(length - HEADER_BYTES, len(text))
        self._append((text * (size // len(text) + 1))[:size])

    def fill_page(self, name: str) -> None:
        """A record that ends exactly where its page does, if there is room for one."""
        self._open_page(0)
        room = -len(self.wal) % PAGE_SIZE
        self.append(name, room if room > 64 else room + PAGE_SIZE - HEADER_BYTES)

    def switch(self) -> None:
        """XLOG_SWITCH, unless the segment has just begun: zeros up to its end belong to it."""
        if self.lsn % WAL_SEG_SIZE:
            self._append(b"", _SWITCH, _XLOG)
            self.wal += bytes(-len(self.wal) % WAL_SEG_SIZE)
            self.ends[-1] = self.lsn

    def complete_switch(self, end_lsn: int) -> None:
        """A log that was cut in the zeros behind an XLOG_SWITCH goes on to its segment's end: who
        has the record, below `end_lsn`, has the zeros too."""
        lsn = start_lsn = self.boundary_at(self.lsn)
        head = b""
        while len(head) < HEADER_BYTES:
            if lsn % PAGE_SIZE == 0:
                lsn += _LONG_HEADER_BYTES if lsn % WAL_SEG_SIZE == 0 else HEADER_BYTES
                start_lsn = start_lsn if head else lsn
            length = min(HEADER_BYTES - len(head), -lsn % PAGE_SIZE or PAGE_SIZE)
            head += self.read(lsn, lsn + length)
            lsn += length
            if lsn > min(end_lsn, self.lsn):
                return
        length, _, _, info, rmgr, _ = _HEAD.unpack_from(head)
        if (length, info, rmgr) == (HEADER_BYTES, _SWITCH, _XLOG):
            self.wal += bytes(-len(self.wal) % WAL_SEG_SIZE)
            self.starts.append(start_lsn)
            self.ends.append(self.lsn)

    def _append(self, body: bytes, info: int = 0x10, rmgr: int = 10) -> None:
        self._open_page(0)
        start_lsn = self.lsn
        prev_lsn = self.starts[-1] if self.starts else START_LSN - 64
        head = _HEAD.pack(len(body) + HEADER_BYTES, 700, prev_lsn, info, rmgr, 0)
        rest = head + _CRC.pack(crc32c(head, crc32c(body))) + body
        while rest:
            self._open_page(len(rest))
            room = -len(self.wal) % PAGE_SIZE
            self.wal += rest[:room]
            rest = rest[room:]
        self.wal += bytes(-len(self.wal) % 8)
        self.starts.append(start_lsn)
        self.ends.append(self.lsn)

    def _open_page(self, rest: int) -> None:
        if len(self.wal) % PAGE_SIZE:
            return
        is_first = self.lsn % WAL_SEG_SIZE == 0
        is_inside = rest > 0 and bool(self.wal) and (not self.ends or self._is_inside_record())
        info = (_LONG_HEADER if is_first else 0) | (_CONTRECORD if is_inside else 0)
        self.wal += _PAGE.pack(_PAGE_MAGIC, info, self.tli, self.lsn, rest if is_inside else 0)
        if is_first:
            self.wal += _LONG.pack(SYSTEM_ID, WAL_SEG_SIZE, PAGE_SIZE)

    def _is_inside_record(self) -> bool:
        """Bytes were written since the last record's end: the rest of one follows."""
        return self.lsn > self.ends[-1]

    # ---- copies

    def cut(self, end_lsn: int, tli: int | None = None) -> Log:
        """Another log with the same bytes up to `end_lsn`."""
        other = Log(self.tli if tli is None else tli)
        other.wal = self.wal[: end_lsn - START_LSN]
        count = bisect_right(self.ends, end_lsn)
        other.starts, other.ends = self.starts[:count], self.ends[:count]
        return other

    def extend(self, source: Log, end_lsn: int) -> None:
        """Takes the bytes of `source` up to `end_lsn`, which continue this log."""
        begin_lsn = self.lsn
        self.wal += source.wal[begin_lsn - START_LSN : end_lsn - START_LSN]
        first = bisect_right(source.ends, self.ends[-1] if self.ends else START_LSN)
        last = bisect_right(source.ends, end_lsn)
        self.starts += source.starts[first:last]
        self.ends += source.ends[first:last]

    def read(self, begin_lsn: int, end_lsn: int) -> bytes:
        return bytes(self.wal[begin_lsn - START_LSN : end_lsn - START_LSN])

    # ---- questions

    def boundary_at(self, lsn: int) -> int:
        """The greatest record end at or below `lsn`; START_LSN if there is none."""
        count = bisect_right(self.ends, lsn)
        return self.ends[count - 1] if count else START_LSN

    def boundary_after(self, lsn: int) -> int:
        """The least record end above `lsn`; `lsn` if there is none."""
        count = bisect_right(self.ends, lsn)
        return self.ends[count] if count < len(self.ends) else lsn


def common_bytes(one: bytes | bytearray, other: bytes | bytearray) -> int:
    """The length of the common prefix."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
