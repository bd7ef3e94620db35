"""Which member archives. Pure; every member decides alone, without messages to the others.

The members agree through the store, which all of them see. The first member in the line uploads at
once. The next one checks whether new WAL arrives, and uploads if none has arrived for a while. The
line begins with another member for every timeline, so the members share the work of many timelines.
Two members that upload at once write equal bytes under equal names: wasted work, but no harm.

    rank 0   uploads what is due
    rank r   checks the store when nothing new was archived for r / (members - 1) of
             TAKEOVER_SECONDS; uploads if the check finds nothing, until another member uploads
"""

from __future__ import annotations

from collections.abc import Sequence

from quorum_wal.consensus.ids import TimelineId

#: Wait of the last in line; twice as long if its first check finds WAL that it did not know of.
TAKEOVER_SECONDS = 4.0


def rank_of(safekeeper_id: int, members: Sequence[int], timeline: TimelineId) -> int:
    """The place in the line, from 0. A safekeeper that is not a member comes after all members."""
    line = sorted(members)
    if safekeeper_id not in line:
        return len(line)
    first = int.from_bytes(timeline.timeline_id[:8], "big") % len(line)
    return (line.index(safekeeper_id) - first) % len(line)


class ArchiveTurn:
    """`now` is a monotonic clock's, in seconds."""

    def __init__(self, rank: int, members_count: int) -> None:
        self.rank = rank
        self.wait_seconds = TAKEOVER_SECONDS * rank / max(1, members_count - 1)
        #: This member uploads. Always true for the first in line.
        self.is_ours = rank == 0
        self._waiting_since: float | None = None

    def must_look(self, now: float, *, is_due: bool) -> bool:
        """True if WAL is due and was not archived in time, as far as this member knows."""
        if self.is_ours or not is_due:
            self._waiting_since = None
            return False
        if self._waiting_since is None:
            self._waiting_since = now
        return now - self._waiting_since >= self.wait_seconds

    def looked(self, now: float, *, has_progressed: bool) -> None:
        """Takes the result of a check: another member uploads, or this one must."""
        self.is_ours = not has_progressed
        self._waiting_since = now if has_progressed else None

    def found_archived(self, now: float) -> None:
        """The object that this member wanted to write exists: another member uploads."""
        if self.rank > 0:
            self.is_ours = False
            self._waiting_since = now
