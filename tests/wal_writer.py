"""`WalWriter`: writes WAL as Postgres would, for tests of the readers.

It shares no code with `pgwal`, so that an error there is not made twice: it lays down one run of
bytes after another and opens a page whenever one begins. What it wrote is listed in `records`.
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass

from crc32c import crc32c

MIB = 1 << 20
PAGE = 8192
MAGIC = {13: 0xD106, 14: 0xD10D, 15: 0xD110, 16: 0xD113, 17: 0xD116, 18: 0xD118}
PATTERN = bytes(at * 7 % 251 + 1 for at in range(251))
SYSTEM_ID = 7_555_555_555_555_555_555


@dataclass(frozen=True, slots=True)
class Written:
    """A whole record as it went out; ends as Postgres counts them."""

    start_lsn: int
    end_lsn: int
    prev_lsn: int
    xid: int
    rmgr_id: int
    info: int
    data: bytes


class WalWriter:
    """Appends to the log from `start_lsn`, a page address, on."""

    def __init__(
        self, start_lsn: int = 2 * MIB, *, wal_seg_size: int = MIB, major: int = 16, tli: int = 1
    ) -> None:
        assert start_lsn % PAGE == 0
        self.start_lsn = start_lsn
        self.wal_seg_size = wal_seg_size
        self.major = major
        self.tli = tli
        self.wal = bytearray()
        self.records: list[Written] = []
        self.prev_lsn = start_lsn - 64

    @property
    def lsn(self) -> int:
        return self.start_lsn + len(self.wal)

    @property
    def boundaries(self) -> list[int]:
        return [self.start_lsn, *(record.end_lsn for record in self.records)]

    def last_boundary(self, lsn: int) -> int:
        """The greatest record boundary at or below `lsn`."""
        return max(boundary for boundary in self.boundaries if boundary <= lsn)

    def room(self) -> int:
        """Bytes left for a record on the page where the next one starts."""
        rest = -self.lsn % PAGE
        return rest or PAGE - self._header_size(self.lsn)

    def record(self, length: int, *, rmgr_id: int = 10, info: int = 0x10, xid: int = 700) -> int:
        """A record of `length` bytes, header included; returns its start."""
        body = (PATTERN * (length // len(PATTERN) + 1))[: length - 24]
        return self.record_with(body, rmgr_id=rmgr_id, info=info, xid=xid)

    def record_with(
        self, body: bytes, *, rmgr_id: int = 10, info: int = 0x10, xid: int = 700
    ) -> int:
        """A record with this body; returns its start."""
        self._open_page(info=0, rest=0)
        start_lsn = self.lsn
        data = self._assemble(body, rmgr_id, info, xid)
        self._lay(data)
        self.wal += bytes(-len(self.wal) % 8)
        self._written(start_lsn, data, rmgr_id, info, xid)
        return start_lsn

    def fill_page_to(self, room: int) -> int:
        """A record that ends `room` bytes before its page does, or before the next one does."""
        length = self.room() - room
        if length < 26:
            length += PAGE - self._header_size(self.lsn - self.lsn % PAGE + PAGE)
        return self.record(length)

    def switch(self, padding: bytes = b"\0") -> int:
        """XLOG_SWITCH, and the rest of the segment filled with `padding`, repeated."""
        self._open_page(info=0, rest=0)
        start_lsn = self.lsn
        data = self._assemble(b"", 0, 0x40, 0)
        self._lay(data)
        missing = -self.lsn % self.wal_seg_size
        self.wal += (padding * (missing // len(padding) + 1))[:missing]
        self._written(start_lsn, data, 0, 0x40, 0)
        return start_lsn

    def abandon(self, length: int, pages: int) -> int:
        """A record that a crash cut after `pages` page ends, and the one that makes it void."""
        self._open_page(info=0, rest=0)
        void_lsn = self.lsn
        keep = void_lsn - void_lsn % PAGE + pages * PAGE - self.start_lsn
        self._lay(self._assemble(bytes(length - 24), 10, 0, 700))
        assert len(self.wal) > keep
        del self.wal[keep:]
        self._open_page(info=0x0008, rest=0)
        self.record_with(b"\xff\x10" + struct.pack("<QQ", void_lsn, 0), rmgr_id=0, info=0xD0)
        return void_lsn

    def _assemble(self, body: bytes, rmgr_id: int, info: int, xid: int) -> bytes:
        head = struct.pack("<IIQBBH", 24 + len(body), xid, self.prev_lsn, info, rmgr_id, 0)
        return head + struct.pack("<I", crc32c(head, crc32c(body))) + body

    def _written(self, start_lsn: int, data: bytes, rmgr_id: int, info: int, xid: int) -> None:
        self.records.append(Written(start_lsn, self.lsn, self.prev_lsn, xid, rmgr_id, info, data))
        self.prev_lsn = start_lsn

    def _lay(self, data: bytes) -> None:
        while data:
            self._open_page(info=0x0001, rest=len(data))
            room = -self.lsn % PAGE
            self.wal += data[:room]
            data = data[room:]

    def _open_page(self, *, info: int, rest: int) -> None:
        if self.lsn % PAGE:
            return
        is_first = self.lsn % self.wal_seg_size == 0
        info |= 0x0002 if is_first else 0
        self.wal += struct.pack("<HHIQI4x", MAGIC[self.major], info, self.tli, self.lsn, rest)
        if is_first:
            self.wal += struct.pack("<QII", SYSTEM_ID, self.wal_seg_size, PAGE)

    def _header_size(self, lsn: int) -> int:
        return 24 if lsn % self.wal_seg_size else 40


def random_log(rng: random.Random, length: int) -> WalWriter:
    """A log of at least `length` bytes with every shape of record, the odd ones far too often."""
    writer = WalWriter(2 * MIB - 3 * PAGE)
    while writer.lsn - writer.start_lsn < length:
        shape = rng.random()
        if shape < 0.01:
            writer.fill_page_to(rng.choice([8, 16, 24, 32, 2000]))
            writer.switch(padding=rng.choice([b"\0", bytes(writer.wal[PAGE : 3 * PAGE])]))
        elif shape < 0.03:
            pages = rng.choice([1, 1, 2, 5])
            writer.abandon((pages + 1) * PAGE + rng.randrange(PAGE), pages)
        elif shape < 0.06:
            writer.record(rng.randrange(PAGE - 100, 10 * PAGE))
        elif shape < 0.10:
            writer.fill_page_to(rng.choice([0, 8, 16, 24]))
        else:
            writer.record(rng.randrange(26, 1500))
    return writer
