"""What the primary is told of the queries that run on replicas of the safekeepers. Pure.

A safekeeper says in every answer what its replicas need; the oldest of all goes to the primary as
that of one standby, again whenever it changes. A safekeeper that is away is remembered for a grace
time: its replicas need that long to come back, to it or to another one. So is, at the start, what a
predecessor has told the primary, whose slot remembers it: the first "nobody needs anything" waits.
"""

from __future__ import annotations

from collections.abc import Sequence

from consensus.messages import NO_FEEDBACK, HotStandbyFeedback
from consensus.standby_feedback import oldest_feedback
from walproposer.stream.progress import Progress

# wal_retrieve_retry_interval and wal_receiver_status_interval, 5 and 10 s, have passed then.
GRACE_MS = 30_000


class StandbyFeedback:
    """Of one incarnation. `due` is asked on every tick."""

    def __init__(self) -> None:
        self._begun_ms: int | None = None
        #: What the primary was told last; None: nothing yet.
        self._told: HotStandbyFeedback | None = None

    def due(self, peers: Sequence[Progress], now_ms: int) -> HotStandbyFeedback | None:
        """What to tell the primary now, if that is news."""
        if self._begun_ms is None:
            self._begun_ms = now_ms
        feedback = oldest_feedback(
            p.feedback for p in peers if p.is_following or now_ms - p.last_heard_ms < GRACE_MS
        )
        may_still_come = self._told is None and now_ms - self._begun_ms < GRACE_MS
        if feedback == self._told or (feedback == NO_FEEDBACK and may_still_come):
            return None
        self._told = feedback
        return feedback
