"""`Log`: the `WalLog` of the simulator: small segments, and logs that go on from each other.

    |long page header|R1|R2| .. |R7 (first part)||page header|R7 (rest)|R8| ...
    .. |R9|XLOG_SWITCH|zeros .. ||long page header|R10| ...

Also the ghost that a run keeps of each ballot's log: which bytes it has, where its records begin
and end, and which ballot brought which byte first.
"""

from __future__ import annotations

from bisect import bisect_right

from tests.wal_log import (
    HEAD,
    HEADER_BYTES,
    LONG_HEADER_BYTES,
    PAGE_SIZE,
    PG_VERSION,
    SWITCH,
    SYSTEM_ID,
    XLOG,
    WalLog,
)

__all__ = [
    "HEADER_BYTES", "PAGE_SIZE", "PG_VERSION", "START_LSN", "SYSTEM_ID", "WAL_SEG_SIZE", "Log",
    "common_bytes",
]  # fmt: skip

#: Smaller than Postgres allows, so that a run of kilobytes has many (`limits.py`).
WAL_SEG_SIZE = 64 * 1024
START_LSN = WAL_SEG_SIZE


class Log(WalLog):
    """Begins at START_LSN, as all logs of a run do."""

    __slots__ = ()

    def __init__(self, tli: int = 1) -> None:
        super().__init__(START_LSN, wal_seg_size=WAL_SEG_SIZE, tli=tli)

    def maybe_switch(self) -> None:
        """XLOG_SWITCH, unless the segment has just begun."""
        if self.lsn % WAL_SEG_SIZE:
            self.switch()

    def complete_switch(self, end_lsn: int) -> None:
        """A log that was truncated in the zeros after an XLOG_SWITCH is extended to the end of its
        segment: a node that has the record, below `end_lsn`, has the zeros, too."""
        lsn = start_lsn = self.boundary_at(self.lsn)
        head = b""
        while len(head) < HEADER_BYTES:
            if lsn % PAGE_SIZE == 0:
                lsn += LONG_HEADER_BYTES if lsn % WAL_SEG_SIZE == 0 else HEADER_BYTES
                start_lsn = start_lsn if head else lsn
            length = min(HEADER_BYTES - len(head), -lsn % PAGE_SIZE or PAGE_SIZE)
            head += self.read(lsn, lsn + length)
            lsn += length
            if lsn > min(end_lsn, self.lsn):
                return
        length, _, _, info, rmgr, _ = HEAD.unpack_from(head)
        if (length, info, rmgr) == (HEADER_BYTES, SWITCH, XLOG):
            self.wal += bytes(-len(self.wal) % WAL_SEG_SIZE)
            self.starts.append(start_lsn)
            self.ends.append(self.lsn)

    def extend(self, source: WalLog, end_lsn: int) -> None:
        """Append the bytes of `source` up to `end_lsn`, which continue this log."""
        begin_lsn = self.lsn
        self.wal += source.wal[begin_lsn - START_LSN : end_lsn - START_LSN]
        first = bisect_right(source.ends, self.ends[-1] if self.ends else START_LSN)
        last = bisect_right(source.ends, end_lsn)
        self.starts += source.starts[first:last]
        self.ends += source.ends[first:last]


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
