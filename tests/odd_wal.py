"""`OddWal`: a `WalLog` with everything that a server may leave behind, for the tests of the
readers.

Records of any resource manager and any body, records that a crash cut and the next start made void,
stale pages after an XLOG_SWITCH. `records` lists everything written.
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, replace

from tests.wal_log import (
    HEAD,
    HEADER_BYTES,
    LONG_HEADER_BYTES,
    OVERWRITE_CONTRECORD,
    XLOG,
    WalLog,
)
from tests.wal_log import PAGE_SIZE as PAGE
from tests.wal_log import WAL_SEG_SIZE as MIB

__all__ = ["MIB", "PAGE", "OddWal", "Written", "random_log"]

PATTERN = bytes(at * 7 % 251 + 1 for at in range(251))
_XLOG_OVERWRITE_CONTRECORD = 0xD0


@dataclass(frozen=True, slots=True)
class Written:
    """A whole record as written; positions as Postgres counts them."""

    start_lsn: int
    end_lsn: int
    prev_lsn: int
    xid: int
    rmgr_id: int
    info: int
    data: bytes


class OddWal(WalLog):
    """Never cut: `records` covers the whole log."""

    def __init__(
        self,
        start_lsn: int = 2 * MIB,
        *,
        wal_seg_size: int = MIB,
        major: int = 16,
        tli: int = 1,
    ) -> None:
        super().__init__(start_lsn, wal_seg_size=wal_seg_size, major=major, tli=tli)
        self.records: list[Written] = []

    @property
    def boundaries(self) -> list[int]:
        return [self.start_lsn, *self.ends]

    def room(self) -> int:
        """Bytes left for a record on the page where the next one starts."""
        rest = -self.lsn % PAGE
        return rest or PAGE - self._header_size(self.lsn)

    def record(self, length: int, *, rmgr_id: int = 10, info: int = 0x10, xid: int = 700) -> int:
        """A record of `length` bytes, header included; returns its start."""
        body = (PATTERN * (length // len(PATTERN) + 1))[: length - HEADER_BYTES]
        return self.write(body, rmgr_id=rmgr_id, info=info, xid=xid)

    def fill_page_to(self, room: int) -> int:
        """A record that ends `room` bytes before its page does, or before the next one does."""
        length = self.room() - room
        if length < 26:
            length += PAGE - self._header_size(self.lsn - self.lsn % PAGE + PAGE)
        return self.record(length)

    def switch(self, padding: bytes = b"\0") -> int:
        start_lsn = super().switch(padding)
        self.records[-1] = replace(self.records[-1], end_lsn=self.lsn)
        return start_lsn

    def abandon(self, length: int, pages: int) -> int:
        """A record that a crash cut after `pages` page ends, and the record that makes it void."""
        self._open_page()
        void_lsn = self.lsn
        keep = void_lsn - void_lsn % PAGE + pages * PAGE - self.start_lsn
        self._lay(self._assemble(bytes(length - HEADER_BYTES), 10, 0, 700))
        assert len(self.wal) > keep
        del self.wal[keep:]
        self._open_page(OVERWRITE_CONTRECORD)
        body = b"\xff\x10" + struct.pack("<QQ", void_lsn, 0)
        self.write(body, rmgr_id=XLOG, info=_XLOG_OVERWRITE_CONTRECORD)
        return void_lsn

    def _wrote(self, start_lsn: int, record: bytes) -> None:
        super()._wrote(start_lsn, record)
        _, xid, prev_lsn, info, rmgr_id, _ = HEAD.unpack_from(record)
        self.records.append(Written(start_lsn, self.lsn, prev_lsn, xid, rmgr_id, info, record))

    def _header_size(self, lsn: int) -> int:
        return HEADER_BYTES if lsn % self.wal_seg_size else LONG_HEADER_BYTES


def random_log(rng: random.Random, length: int) -> OddWal:
    """A log of at least `length` bytes with every kind of record, the odd ones far more often than
    in practice."""
    log = OddWal(2 * MIB - 3 * PAGE)
    while log.lsn - log.start_lsn < length:
        shape = rng.random()
        if shape < 0.01:
            log.fill_page_to(rng.choice([8, 16, 24, 32, 2000]))
            log.switch(padding=rng.choice([b"\0", bytes(log.wal[PAGE : 3 * PAGE])]))
        elif shape < 0.03:
            pages = rng.choice([1, 1, 2, 5])
            log.abandon((pages + 1) * PAGE + rng.randrange(PAGE), pages)
        elif shape < 0.06:
            log.record(rng.randrange(PAGE - 100, 10 * PAGE))
        elif shape < 0.10:
            log.fill_page_to(rng.choice([0, 8, 16, 24]))
        else:
            log.record(rng.randrange(26, 1500))
    return log
