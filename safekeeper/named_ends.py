"""The record ends that a leader named, of a log whose bytes come by a daisy chain. Pure.

    written_lsn ->|           named: 0/300  0/380  0/4A0 ...     log_end_lsn ->|
                  an end counts as soon as all below it is written, and not before

Law: bytes alone tell of no record's end, so what the chain brings is flushed up to the last end
that the leader named. It may not decide what is written or flushed.
"""

from __future__ import annotations

from collections import deque

#: A chain that is so many records late lacks nothing but ends in between: the newest one is kept.
ENDS_MAX = 4096
#: The source may hear of WAL before us, but not of so much more: it is sent far less at a time.
AHEAD_BYTES_MAX = 64 * 1024 * 1024


class NamedEnds:
    """Ascending. When it is full, a newer end takes the place of the last one."""

    def __init__(self, log_end_lsn: int) -> None:
        self._ends: deque[int] = deque()
        #: Where the leader's log ends, as it said last.
        self.log_end_lsn = log_end_lsn

    def name(self, lsn: int, log_end_lsn: int) -> None:
        self.log_end_lsn = max(self.log_end_lsn, log_end_lsn)
        if self._ends and lsn <= self._ends[-1]:
            return
        if len(self._ends) == ENDS_MAX:
            self._ends.pop()
        self._ends.append(lsn)

    def allow(self, end_lsn: int) -> bool:
        """WAL up to there may be the leader's."""
        return end_lsn <= self.log_end_lsn + AHEAD_BYTES_MAX

    def reached(self, written_lsn: int) -> int:
        """The last one at or below, which is forgotten with those before it; 0: none is new."""
        lsn = 0
        while self._ends and self._ends[0] <= written_lsn:
            lsn = self._ends.popleft()
        return lsn
