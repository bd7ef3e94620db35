"""The standby feedback for the primary: what queries on replicas of the safekeepers need. Pure.

Every answer of a safekeeper has the needs of its replicas. The oldest of all is sent to the primary
as that of one standby, whenever it changes. The needs of a disconnected safekeeper are kept for a
grace time, because its replicas need that long to reconnect, to it or to another one. For the same
time a new incarnation does not send "no feedback": the slot still has what a predecessor sent.
"""

from __future__ import annotations

from collections.abc import Sequence

from quorum_wal.consensus.messages import NO_FEEDBACK, HotStandbyFeedback
from quorum_wal.consensus.standby_feedback import oldest_feedback
from quorum_wal.walproposer.stream.progress import Progress

# wal_retrieve_retry_interval and wal_receiver_status_interval, 5 and 10 s, have passed by then.
GRACE_MS = 30_000


class StandbyFeedback:
    """For one incarnation. `due` is called on every tick."""

    def __init__(self) -> None:
        self._begun_ms: int | None = None
        #: The last feedback sent to the primary; None: nothing yet.
        self._sent: HotStandbyFeedback | None = None

    def due(self, peers: Sequence[Progress], now_ms: int) -> HotStandbyFeedback | None:
        """The feedback to send to the primary now, if it has changed."""
        if self._begun_ms is None:
            self._begun_ms = now_ms
        feedback = oldest_feedback(
            p.feedback for p in peers if p.is_following or now_ms - p.last_heard_ms < GRACE_MS
        )
        may_still_come = self._sent is None and now_ms - self._begun_ms < GRACE_MS
        if feedback == self._sent or (feedback == NO_FEEDBACK and may_still_come):
            return None
        self._sent = feedback
        return feedback
