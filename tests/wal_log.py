"""`WalLog`: the WAL of an imagined server, laid down as Postgres does, without the code under test.

    start_lsn                                   lsn
    |page header|R1(a)|R2(b)|R3(c)| ... |R7(g)...|      records are filled with their names
                      \\
                       |R3(e)|R4(f)|                    cut(), append(): same bytes below

The one writer of WAL for tests. Those of the readers want stranger logs: `odd_wal.py`; the
simulator's are of small segments: `simulation/log.py`. Both build on this one.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from copy import copy
from dataclasses import dataclass
from typing import Self

from crc32c import crc32c

from quorum_wal.pgwal.errors import WalFormatError
from quorum_wal.pgwal.walker import NEED_DATA, RecordWalker

PAGE_SIZE = 8192
WAL_SEG_SIZE = 1024 * 1024
PG_VERSION = 160004
SYSTEM_ID = 7_123_456_789_012_345_678
START_LSN = WAL_SEG_SIZE
#: The default size of a record, header included.
RECORD_BYTES = 64
#: Of a record, and of a page that does not begin a segment.
HEADER_BYTES = 24
LONG_HEADER_BYTES = 40

XLOG, SWITCH = 0, 0x40
CONTRECORD, LONG_HEADER, OVERWRITE_CONTRECORD = 0x0001, 0x0002, 0x0008

_PAGE_MAGIC = {13: 0xD106, 14: 0xD10D, 15: 0xD110, 16: 0xD113, 17: 0xD116, 18: 0xD118}
_PAGE = struct.Struct("<HHIQI4x")
_LONG = struct.Struct("<QII")
#: A record's header: total length, xid, the previous record, info, resource manager; the checksum.
HEAD = struct.Struct("<IIQBBH")
_CRC = struct.Struct("<I")
#: Ends a name; the name is repeated after it.
_END_OF_NAME = b"."


class WalLog:
    """Grows at `lsn`; `starts[i]` and `ends[i]` are those of record i, as Postgres counts them."""

    __slots__ = ("ends", "major", "start_lsn", "starts", "tli", "wal", "wal_seg_size")

    def __init__(
        self,
        start_lsn: int = START_LSN,
        *,
        wal_seg_size: int = WAL_SEG_SIZE,
        major: int = PG_VERSION // 10000,
        tli: int = 1,
    ) -> None:
        assert start_lsn % PAGE_SIZE == 0
        self.start_lsn = start_lsn
        self.wal_seg_size = wal_seg_size
        self.major = major
        self.tli = tli
        self.wal = bytearray()
        self.starts: list[int] = []
        self.ends: list[int] = []

    @property
    def lsn(self) -> int:
        return self.start_lsn + len(self.wal)

    # ---- writing

    def append(self, name: str, length: int = RECORD_BYTES) -> bytes:
        """A record of `length` bytes, header included, or more if its name needs them; returns the
        bytes the log grew by. Records of two names differ from their first bytes on."""
        begin = len(self.wal)
        text = name.encode() + _END_OF_NAME
        size = max(length - HEADER_BYTES, len(text))
        self.write((text * (size // len(text) + 1))[:size])
        return bytes(self.wal[begin:])

    def fill_page(self, name: str) -> None:
        """A record that ends exactly where its page does, or the next one, if there is no room."""
        self._open_page()
        room = -len(self.wal) % PAGE_SIZE
        self.append(name, room if room > 64 else room + PAGE_SIZE - HEADER_BYTES)

    def switch(self, padding: bytes = b"\0") -> int:
        """XLOG_SWITCH, which covers the rest of the segment: `padding`, repeated. Returns its
        start."""
        start_lsn = self.write(b"", rmgr_id=XLOG, info=SWITCH)
        missing = -self.lsn % self.wal_seg_size
        self.wal += (padding * (missing // len(padding) + 1))[:missing]
        self.ends[-1] = self.lsn
        return start_lsn

    def write(self, body: bytes, *, rmgr_id: int = 10, info: int = 0x10, xid: int = 700) -> int:
        """A record with this body; returns its start."""
        self._open_page()
        start_lsn, record = self.lsn, self._assemble(body, rmgr_id, info, xid)
        self._lay(record)
        self.wal += bytes(-len(self.wal) % 8)
        self._wrote(start_lsn, record)
        return start_lsn

    def _wrote(self, start_lsn: int, record: bytes) -> None:
        self.starts.append(start_lsn)
        self.ends.append(self.lsn)

    def _assemble(self, body: bytes, rmgr_id: int, info: int, xid: int) -> bytes:
        prev_lsn = self.starts[-1] if self.starts else self.start_lsn - RECORD_BYTES
        head = HEAD.pack(HEADER_BYTES + len(body), xid, prev_lsn, info, rmgr_id, 0)
        return head + _CRC.pack(crc32c(head, crc32c(body))) + body

    def _lay(self, record: bytes) -> None:
        rest = memoryview(record)
        while rest:
            self._open_page(CONTRECORD, len(rest))
            room = -self.lsn % PAGE_SIZE
            self.wal += rest[:room]
            rest = rest[room:]

    def _open_page(self, info: int = 0, rest: int = 0) -> None:
        """The header, if the log ends at a page boundary; `rest` of a record will follow it."""
        if self.lsn % PAGE_SIZE:
            return
        is_first = self.lsn % self.wal_seg_size == 0
        info |= LONG_HEADER if is_first else 0
        self.wal += _PAGE.pack(_PAGE_MAGIC[self.major], info, self.tli, self.lsn, rest)
        if is_first:
            self.wal += _LONG.pack(SYSTEM_ID, self.wal_seg_size, PAGE_SIZE)

    # ---- copies and questions

    def cut(self, end_lsn: int, tli: int | None = None) -> Self:
        """Another log with the same bytes up to `end_lsn`."""
        other = copy(self)
        other.tli = self.tli if tli is None else tli
        other.wal = self.wal[: end_lsn - self.start_lsn]
        count = bisect_right(self.ends, end_lsn)
        other.starts, other.ends = self.starts[:count], self.ends[:count]
        return other

    def read(self, begin_lsn: int, end_lsn: int) -> bytes:
        return bytes(memoryview(self.wal)[begin_lsn - self.start_lsn : end_lsn - self.start_lsn])

    def boundary_at(self, lsn: int) -> int:
        """The greatest record end at or below `lsn`; the log's start if there is none."""
        count = bisect_right(self.ends, lsn)
        return self.ends[count - 1] if count else self.start_lsn

    def boundary_after(self, lsn: int) -> int:
        """The least record end above `lsn`; `lsn` if there is none."""
        count = bisect_right(self.ends, lsn)
        return self.ends[count] if count < len(self.ends) else lsn


@dataclass(frozen=True, slots=True)
class NamedRecord:
    """A record that `WalLog.append` wrote."""

    name: str
    start_lsn: int
    end_lsn: int


def named_records(
    wal: bytes | bytearray, start_lsn: int = START_LSN, *, wal_seg_size: int = WAL_SEG_SIZE
) -> list[NamedRecord]:
    """The whole, valid records at the front of `wal`, as the project's own reader finds them."""
    walker = RecordWalker(start_lsn, wal_seg_size=wal_seg_size, version_major=PG_VERSION // 10000)
    walker.feed(bytes(wal))
    records = []
    try:
        while (record := walker.next()) is not NEED_DATA:
            name = record.data[HEADER_BYTES:].partition(_END_OF_NAME)[0].decode()
            records.append(NamedRecord(name, record.start_lsn, record.end_lsn))
    except WalFormatError:
        return records  # the rest is a torn or a zeroed tail
    return records
