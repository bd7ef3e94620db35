"""Changes that go back, and joint memberships that another leader left behind."""

from __future__ import annotations

from change_steps import Change, ask, found, leave, present, sets, state, view
from proposer_steps import (
    answer,
    of_kind,
)
from wal_log import START_LSN

from quorum_wal.walproposer.stream.events import (
    ChangeCancelled,
    ChangeState,
    Leave,
    Left,
)
from quorum_wal.walproposer.stream.membership_change import FOUND_PATIENCE_MS, SILENT_MS
from quorum_wal.walproposer.stream.progress import PeerState

# ---- going back


def test_it_is_cancelled_before_it_entered(change: Change) -> None:
    change.begin(1, 2, 3, 4)
    actions = change.proposer.step(ChangeCancelled())
    assert state(change.proposer) is ChangeState.GONE_BACK
    assert sets(change.proposer) == (1, (1, 2, 3), ())
    assert change.proposer.peers[3].state is PeerState.OUTSIDE
    assert of_kind([*actions, *change.tick()], Leave) == [leave(3, change.proposer)]


def test_the_leader_that_entered_it_can_go_back_at_any_time(change: Change) -> None:
    change.enter(4, 5, 6)
    change.proposer.step(ChangeCancelled())
    assert sets(change.proposer) == (3, (1, 2, 3), ())
    assert [m.id for m in present(change.proposer).roster] == [1, 2, 3]
    actions = change.inform(0, 1, 2)
    assert {leave.peer for leave in of_kind(actions, Leave)} == {3, 4, 5}
    for peer in (3, 4, 5):
        change.proposer.step(Left(peer))
    assert state(change.proposer) is ChangeState.GONE_BACK


def test_it_is_too_late_to_cancel_what_was_left_forward(change: Change) -> None:
    change.enter(1, 2, 4)
    change.inform(0, 1, 2)
    change.proposer.step(ChangeCancelled())
    assert sets(change.proposer) == (3, (1, 2, 4), ())


def test_a_new_set_that_is_silent_for_10_s_is_left_again(change: Change) -> None:
    change.enter(4, 5, 6)
    change.pass_time(SILENT_MS - 1000, 0)
    assert present(change.proposer).is_joint
    change.pass_time(2000, 0)
    assert sets(change.proposer) == (3, (1, 2, 3), ())
    assert "no quorum of answers" in view(change.proposer).error


def test_a_new_set_that_answers_is_waited_for(change: Change) -> None:
    change.enter(4, 5, 6)
    for _ in range(3 * SILENT_MS // 1000):
        change.tick(1000)
        for peer in (3, 4):
            answer(change.proposer, peer, START_LSN)
        answer(change.proposer, 0, START_LSN)
    assert sets(change.proposer) == (2, (1, 2, 3), (4, 5, 6))


# ---- a joint membership that was found


def test_found_it_is_left_forward_when_the_new_set_has_the_data() -> None:
    change = found()
    change.answer(0, 1)
    assert present(change.proposer).is_joint
    change.answer(3)
    assert sets(change.proposer) == (5, (1, 4, 5), ())


def test_found_it_needs_a_quorum_of_the_old_set_to_know() -> None:
    change = found()
    change.answer(0, 3, 4)
    change.tick()
    assert present(change.proposer).is_joint
    change.answer(1)
    assert sets(change.proposer) == (5, (1, 4, 5), ())


def test_l1_back_a_quorum_of_the_new_set_must_know() -> None:
    """Trace 4: another leader may have left it forward before."""
    change = found()
    change.answer(0, 1)
    for _ in range(5):
        change.tick(FOUND_PATIENCE_MS)
        change.answer_last(0, 1)
    assert present(change.proposer).is_joint


def test_l2_back_the_old_set_must_have_the_data() -> None:
    change = found()
    change.answer(0)
    for peer in (1, 3, 4):
        answer(change.proposer, peer, START_LSN)
    change.pass_time(2 * FOUND_PATIENCE_MS, 0)
    assert present(change.proposer).is_joint


def test_found_it_goes_back_when_only_the_old_set_has_the_data() -> None:
    change = found()
    change.answer(0, 1)
    for peer in (3, 4):
        answer(change.proposer, peer, START_LSN)
    change.tick()
    assert present(change.proposer).is_joint
    change.tick(FOUND_PATIENCE_MS)
    assert sets(change.proposer) == (5, (1, 2, 3), ())
    assert "lacked a part of the log" in view(change.proposer).error


def test_a_found_change_cannot_be_cancelled() -> None:
    change = found()
    change.proposer.step(ChangeCancelled())
    change.tick()
    assert sets(change.proposer) == (4, (1, 2, 3), (1, 4, 5))


def test_found_the_request_for_it_is_the_same_change() -> None:
    change = found()
    ask(change.proposer, 1, 4, 5, generation=3)
    assert (state(change.proposer), view(change.proposer).wanted) == (
        ChangeState.ENTERED,
        (1, 4, 5),
    )
