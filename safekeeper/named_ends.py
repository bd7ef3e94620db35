"""The record ends that a leader named, for a log whose bytes come by a daisy chain. Pure.

    written_lsn ->|           named: 0/300  0/380  0/4A0 ...     log_end_lsn ->|
                  an end counts as soon as all WAL below it is written, and not before

Law: the bytes alone do not show where records end. So chained WAL is flushed up to the last record
end that the leader named. This class does not decide what is written or flushed.
"""

from __future__ import annotations

from collections import deque

#: If a chain lags by more records, ends in between are dropped; the newest one is kept.
ENDS_MAX = 4096
#: The source may be ahead of the leader's messages, but by much less than this.
AHEAD_BYTES_MAX = 64 * 1024 * 1024


class NamedEnds:
    """Ascending. When it is full, a newer end replaces the last one."""

    def __init__(self, log_end_lsn: int) -> None:
        self._ends: deque[int] = deque()
        #: The end of the leader's log, as sent last.
        self.log_end_lsn = log_end_lsn

    def name(self, lsn: int, log_end_lsn: int) -> None:
        self.log_end_lsn = max(self.log_end_lsn, log_end_lsn)
        if self._ends and lsn <= self._ends[-1]:
            return
        if len(self._ends) == ENDS_MAX:
            self._ends.pop()
        self._ends.append(lsn)

    def allow(self, end_lsn: int) -> bool:
        """Whether WAL up to `end_lsn` can be the leader's."""
        return end_lsn <= self.log_end_lsn + AHEAD_BYTES_MAX

    def reached(self, written_lsn: int) -> int:
        """Returns the last end at or below `written_lsn`, or 0 if there is none; forgets it and
        those before it."""
        lsn = 0
        while self._ends and self._ends[0] <= written_lsn:
            lsn = self._ends.popleft()
        return lsn
