"""The record ends that a leader named, of a log whose bytes come by a daisy chain. Pure.

    written_lsn ->|           named: 0/300  0/380  0/4A0 ...
                  an end counts as soon as all below it is written, and not before

Law: bytes alone tell of no record's end, so what the chain brings is flushed up to the last end
that the leader named. It may not decide what is written or flushed.
"""

from __future__ import annotations

from collections import deque

#: A chain that is so many records late lacks nothing but ends in between: the newest one is kept.
ENDS_MAX = 4096


class NamedEnds:
    """Ascending. When it is full, a newer end takes the place of the last one."""

    def __init__(self) -> None:
        self._ends: deque[int] = deque()

    def name(self, lsn: int) -> None:
        if self._ends and lsn <= self._ends[-1]:
            return
        if len(self._ends) == ENDS_MAX:
            self._ends.pop()
        self._ends.append(lsn)

    def reached(self, written_lsn: int) -> int:
        """The last one at or below, which is forgotten with those before it; 0: none is new."""
        lsn = 0
        while self._ends and self._ends[0] <= written_lsn:
            lsn = self._ends.popleft()
        return lsn
