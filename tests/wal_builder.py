"""`WalBuilder`: the WAL of an imagined primary, made of named records; logs fork as servers do.

    start_lsn                                   lsn
    |page header|R1(a)|R2(b)|R3(c)| ... |R7(g)...|      the names are readable in the records
                      \\
                       |R3(e)|R4(f)|                    fork(): same bytes below, others above

Good enough for every reader in `pgwal` (pages, prev-links, checksums), written without its code.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

from crc32c import crc32c

from pgwal.errors import WalFormatError
from pgwal.walker import NEED_DATA, RecordWalker

PAGE_SIZE = 8192
WAL_SEG_SIZE = 1024 * 1024
PG_VERSION = 160004
SYSTEM_ID = 7_123_456_789_012_345_678
START_LSN = WAL_SEG_SIZE
#: A record of a script takes this much, header included, unless it says otherwise.
RECORD_BYTES = 64

_PAGE_MAGIC = 0xD113
_HEADER_BYTES = 24
_CONTRECORD, _LONG_HEADER = 0x0001, 0x0002


@dataclass(frozen=True, slots=True)
class NamedRecord:
    """One record of the log; `end_lsn` as Postgres counts it."""

    name: str
    start_lsn: int
    end_lsn: int


class WalBuilder:
    """A log that grows at `lsn`; it begins at a segment's start."""

    def __init__(
        self, start_lsn: int = START_LSN, *, tli: int = 1, wal_seg_size: int = WAL_SEG_SIZE
    ) -> None:
        assert start_lsn % wal_seg_size == 0
        self.start_lsn = start_lsn
        self.tli = tli
        self.wal_seg_size = wal_seg_size
        self.wal = bytearray()
        self.records: list[NamedRecord] = []

    @property
    def lsn(self) -> int:
        return self.start_lsn + len(self.wal)

    def append(self, name: str, length: int = RECORD_BYTES) -> bytes:
        """Adds a record of `length` bytes, header included; returns the bytes the log grew by."""
        assert length >= _HEADER_BYTES + len(name)
        return self._append(name, length, info=0x10, rmgr=10)

    def switch(self) -> bytes:
        """Adds an XLOG_SWITCH, which ends with its segment."""
        grown = self._append("", _HEADER_BYTES, info=0x40, rmgr=0)
        padding = bytes(-len(self.wal) % self.wal_seg_size)
        self.wal += padding
        self.records[-1] = replace(self.records[-1], end_lsn=self.lsn)
        return grown + padding

    def _append(self, name: str, length: int, *, info: int, rmgr: int) -> bytes:
        begin = len(self.wal)
        self._open_page(rest=0)
        start_lsn = self.lsn
        prev_lsn = self.records[-1].start_lsn if self.records else self.start_lsn - RECORD_BYTES
        body = name.encode().ljust(length - _HEADER_BYTES, b"\0")
        head = struct.pack("<IIQBBH", length, 700, prev_lsn, info, rmgr, 0)
        rest = memoryview(head + struct.pack("<I", crc32c(head, crc32c(body))) + body)
        while rest:
            self._open_page(rest=len(rest))
            room = -len(self.wal) % PAGE_SIZE
            self.wal += rest[:room]
            rest = rest[room:]
        self.wal += bytes(-len(self.wal) % 8)
        self.records.append(NamedRecord(name, start_lsn, self.lsn))
        return bytes(self.wal[begin:])

    def fill_page(self, name: str) -> bytes:
        """Adds a record that ends exactly where its page does."""
        self._open_page(rest=0)
        return self.append(name, -len(self.wal) % PAGE_SIZE)

    def _open_page(self, *, rest: int) -> None:
        if len(self.wal) % PAGE_SIZE:
            return
        is_first = self.lsn % self.wal_seg_size == 0
        info = (_LONG_HEADER if is_first else 0) | (_CONTRECORD if rest and self.wal else 0)
        rest = rest if info & _CONTRECORD else 0
        self.wal += struct.pack("<HHIQI4x", _PAGE_MAGIC, info, self.tli, self.lsn, rest)
        if is_first:
            self.wal += struct.pack("<QII", SYSTEM_ID, self.wal_seg_size, PAGE_SIZE)

    def fork(self, end_lsn: int, *, tli: int | None = None) -> WalBuilder:
        """Another log with the same records up to `end_lsn`, a record's end or the start."""
        tli = self.tli if tli is None else tli
        other = WalBuilder(self.start_lsn, tli=tli, wal_seg_size=self.wal_seg_size)
        other.wal = self.wal[: end_lsn - self.start_lsn]
        other.records = [r for r in self.records if r.end_lsn <= end_lsn]
        assert other.lsn == end_lsn == (other.records[-1].end_lsn if other.records else end_lsn)
        return other

    @classmethod
    def continuing(cls, wal: bytes, start_lsn: int = START_LSN, *, tli: int = 1) -> WalBuilder:
        """The log of a server that was restored from `wal`, which ends on a record boundary."""
        builder = cls(start_lsn, tli=tli)
        builder.wal = bytearray(wal)
        builder.records = named_records(wal, start_lsn)
        return builder

    def read(self, begin_lsn: int, end_lsn: int) -> bytes:
        return bytes(self.wal[begin_lsn - self.start_lsn : end_lsn - self.start_lsn])


def named_records(wal: bytes, start_lsn: int = START_LSN) -> list[NamedRecord]:
    """The whole, valid records at the front of `wal`."""
    walker = RecordWalker(start_lsn, wal_seg_size=WAL_SEG_SIZE, version_major=PG_VERSION // 10000)
    walker.feed(wal)
    records = []
    try:
        while (record := walker.next()) is not NEED_DATA:
            name = record.data[_HEADER_BYTES:].rstrip(b"\0").decode()
            records.append(NamedRecord(name, record.start_lsn, record.end_lsn))
    except WalFormatError:
        return records  # the rest is a torn or a zeroed tail
    return records
