"""Which member archives. Pure; every member decides for itself, and asks nobody.

The store is the one place all members see, so it is what they agree by: whoever is first in line
uploads at once; the next one looks whether anything arrives, and when nothing has for a while, it
uploads itself. The line begins with another member for every timeline, so that many timelines share
the work. Two at once write equal bytes under equal names: that costs, and harms nothing.

    rank 0   uploads what is due
    rank r   when nothing new was archived for r / (members - 1) of TAKEOVER_SECONDS, looks; and
             uploads when there was nothing to see; until it sees another one at work
"""

from __future__ import annotations

from collections.abc import Sequence

from consensus.ids import TimelineId

#: The last in line waits so long; twice as long when its first look shows what it did not know yet.
TAKEOVER_SECONDS = 4.0


def rank_of(safekeeper_id: int, members: Sequence[int], timeline: TimelineId) -> int:
    """The place in the line, from 0; one that is no member any more is behind all."""
    line = sorted(members)
    if safekeeper_id not in line:
        return len(line)
    first = int.from_bytes(timeline.timeline_id[:8], "big") % len(line)
    return (line.index(safekeeper_id) - first) % len(line)


class ArchiveTurn:
    """`now` is a monotonic clock's, in seconds."""

    def __init__(self, rank: int, members_count: int) -> None:
        self.rank = rank
        self.patience_seconds = TAKEOVER_SECONDS * rank / max(1, members_count - 1)
        #: We upload; for the first in line this is always so.
        self.is_ours = rank == 0
        self._waiting_since: float | None = None

    def must_look(self, now: float, *, is_due: bool) -> bool:
        """Something should have been archived by now, and was not as far as we know."""
        if self.is_ours or not is_due:
            self._waiting_since = None
            return False
        if self._waiting_since is None:
            self._waiting_since = now
        return now - self._waiting_since >= self.patience_seconds

    def looked(self, now: float, *, has_progressed: bool) -> None:
        """What the look showed: somebody is at work, or it is for us to do."""
        self.is_ours = not has_progressed
        self._waiting_since = now if has_progressed else None

    def met_another(self, now: float) -> None:
        """What we wanted to write was there already."""
        if self.rank > 0:
            self.is_ours = False
            self._waiting_since = now
