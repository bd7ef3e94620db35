"""When the primary gets the needs of replicas: changes at once, their absence after a grace
time."""

from __future__ import annotations

from quorum_wal.consensus.ids import NodeId
from quorum_wal.consensus.messages import NO_FEEDBACK, AppendResponse, HotStandbyFeedback
from quorum_wal.walproposer.stream.progress import PeerState, Progress
from quorum_wal.walproposer.stream.standby_feedback import GRACE_MS, StandbyFeedback

BEGIN_MS = 1_000_000
OLD, NEW = HotStandbyFeedback(1, 700), HotStandbyFeedback(2, 800)


def peers(*feedbacks: HotStandbyFeedback) -> list[Progress]:
    return [
        Progress(peer, state=PeerState.STREAMING, feedback=feedback)
        for peer, feedback in enumerate(feedbacks)
    ]


def test_an_answer_brings_it() -> None:
    (progress,) = peers(NO_FEEDBACK)
    progress.maybe_update(AppendResponse(1, NodeId(1, bytes(16)), 0, 0, 0, 0, OLD))
    assert progress.feedback == OLD
    progress.maybe_update(AppendResponse(1, NodeId(1, bytes(16)), 0, 0, 0))
    assert progress.feedback == NO_FEEDBACK


def test_a_change_is_sent_once() -> None:
    relay = StandbyFeedback()
    assert relay.due(peers(OLD, NEW), BEGIN_MS) == HotStandbyFeedback(2, 700)
    assert relay.due(peers(OLD, NEW), BEGIN_MS + 1) is None
    assert relay.due(peers(NO_FEEDBACK, NEW), BEGIN_MS + 2) == NEW
    assert relay.due(peers(NO_FEEDBACK, NO_FEEDBACK), BEGIN_MS + 3) == NO_FEEDBACK
    assert relay.due(peers(NO_FEEDBACK, NO_FEEDBACK), BEGIN_MS + 4) is None


def test_at_first_all_members_get_time_to_report() -> None:
    """The slot on the primary still has the report of a predecessor."""
    relay = StandbyFeedback()
    assert relay.due(peers(NO_FEEDBACK), BEGIN_MS) is None
    assert relay.due(peers(NO_FEEDBACK), BEGIN_MS + GRACE_MS - 1) is None
    assert relay.due(peers(NO_FEEDBACK), BEGIN_MS + GRACE_MS) == NO_FEEDBACK


def test_a_safekeeper_that_is_away_is_remembered_for_a_while() -> None:
    relay = StandbyFeedback()
    away, here = peers(OLD, NEW)
    away.last_heard_ms = BEGIN_MS
    assert relay.due([away, here], BEGIN_MS) == HotStandbyFeedback(2, 700)
    away.become_offline("lost")
    assert relay.due([away, here], BEGIN_MS + GRACE_MS - 1) is None
    assert relay.due([away, here], BEGIN_MS + GRACE_MS) == NEW
