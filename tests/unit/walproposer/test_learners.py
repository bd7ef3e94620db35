"""Safekeepers to be added: joined, streamed to, not counted, and entered."""

from __future__ import annotations

import pytest
from change_steps import Change, ask, leader_of, leave, present, sets, state, view
from proposer_steps import (
    OURS,
    answer,
    ballot,
    greet,
    leading,
    member,
    of_kind,
    sent,
    vote,
)
from wal_log import START_LSN, WalLog

from quorum_wal.consensus.membership import Stamp
from quorum_wal.consensus.messages import Configure, Elected, VoteRequest
from quorum_wal.walproposer.stream.events import (
    CatchUpLost,
    ChangeCancelled,
    ChangeState,
    ClosePeer,
    Join,
    Joined,
    Leave,
    Left,
    OpenPeer,
    ReportFlushed,
    StartCatchUp,
    Stop,
)
from quorum_wal.walproposer.stream.learners import RETRY_MS, timeline_offer
from quorum_wal.walproposer.stream.learners import SILENT_MS as LEARNER_SILENT_MS
from quorum_wal.walproposer.stream.progress import PeerState

# ---- joining


def test_a_safekeeper_to_be_added_is_connected_to(change: Change) -> None:
    actions = ask(change.proposer, 1, 2, 3, 4)
    assert of_kind(actions, OpenPeer) == [OpenPeer(3, "sk4", 5454)]
    assert state(change.proposer) is ChangeState.JOINING
    assert "4" in view(change.proposer).waits_for


def test_n1_one_without_the_timeline_is_offered_it_at_or_below_the_commit(change: Change) -> None:
    change.write(100)
    change.answer(0, 1, 2)
    ask(change.proposer, 1, 2, 3, 4)
    (join,) = of_kind(change.lack(3), Join)
    assert (join.peer, join.member) == (3, member(4))
    assert join.offer.start_lsn <= join.limit_lsn <= change.proposer.commit_lsn
    assert join.offer.membership == change.proposer.membership
    assert not of_kind(change.lack(3), Join), "it is asked once"


def test_an_offer_begins_with_the_tail_that_a_primary_is_compared_with(change: Change) -> None:
    """When all members are new, the next primary is compared with what they have."""
    leader, seg_size = change.leader, change.leader.term.server.wal_seg_size
    leader.commit_lsn = leader.peer_set.known_truncate_lsn = START_LSN + 9 * seg_size + 8
    assert timeline_offer(leader).start_lsn == START_LSN + 7 * seg_size
    ask(change.proposer, 1, 2, 3, 4)
    (join,) = of_kind(change.lack(3), Join)
    assert join.limit_lsn <= join.offer.start_lsn


def test_n1_no_log_is_offered_before_something_is_committed() -> None:
    proposer = leading()
    ask(proposer, 1, 2, 4)
    world = Change.of(proposer, WalLog())
    assert not of_kind(world.lack(3), Join)
    answer(proposer, 0, START_LSN)
    assert of_kind(answer(proposer, 1, START_LSN), Join)


def test_one_that_joined_is_greeted_asked_for_its_positions_and_followed(change: Change) -> None:
    ask(change.proposer, 1, 2, 3, 4)
    actions = change.join(3)
    ((peer, elected),) = sent(actions, Elected)
    assert (peer, elected.start_streaming_at) == (3, START_LSN)
    assert change.proposer.peers[3].is_learner
    assert not change.proposer.peers[3].is_member


def test_one_that_has_left_joins_again(change: Change) -> None:
    ask(change.proposer, 1, 2, 3, 4)
    (join,) = of_kind(greet(change.proposer, 3, has_left=True), Join)
    assert join.member == member(4)
    assert of_kind(change.proposer.step(Joined(3)), ClosePeer), "to be greeted anew"
    assert sent(greet(change.proposer, 3), VoteRequest)


def test_a_learner_of_a_previous_leader_continues_with_what_it_has(change: Change) -> None:
    ask(change.proposer, 1, 2, 3, 4)
    assert sent(greet(change.proposer, 3), VoteRequest)


def test_a_join_that_did_not_arrive_is_tried_again(change: Change) -> None:
    ask(change.proposer, 1, 2, 3, 4)
    change.lack(3)
    change.proposer.step(Joined(3, "connection lost"))
    assert view(change.proposer).error == "connection lost"
    assert not of_kind(change.lack(3), Join)
    assert of_kind(change.pass_time(RETRY_MS, 0, 1, 2), Join)


def test_a_join_that_was_refused_refuses_the_change(change: Change) -> None:
    ask(change.proposer, 1, 2, 3, 4)
    change.lack(3)
    change.proposer.step(Joined(3, "it is another instance", is_refused=True))
    assert state(change.proposer) is ChangeState.REFUSED
    assert view(change.proposer).error == "it is another instance"
    assert sets(change.proposer) == (1, (1, 2, 3), ())


def test_a1_another_safekeeper_at_the_address_refuses_the_change(change: Change) -> None:
    ask(change.proposer, 1, 2, 3, 4)
    greet(change.proposer, 3, safekeeper_id=7)
    assert state(change.proposer) is ChangeState.REFUSED
    assert "at sk4:5454 there is safekeeper 7" in view(change.proposer).error


def test_rule_11_a_learners_promise_does_not_fence_and_refuses_the_change(change: Change) -> None:
    ask(change.proposer, 1, 2, 3, 4)
    actions = greet(change.proposer, 3, ballot(9))
    assert not of_kind(actions, Stop)
    assert state(change.proposer) is ChangeState.REFUSED
    assert "has promised" in view(change.proposer).error


@pytest.mark.parametrize("message", ["vote", "append response"])
def test_rule_11_in_whatever_message(change: Change, message: str) -> None:
    ask(change.proposer, 1, 2, 3, 4)
    if message == "vote":
        change.lack(3)
        change.proposer.step(Joined(3))
        greet(change.proposer, 3)
        actions = vote(change.proposer, 3, granted=False, promised=ballot(9))
    else:
        change.join(3)
        actions = answer(change.proposer, 3, START_LSN, node_id=ballot(9))
    assert not of_kind(actions, Stop)
    assert state(change.proposer) is ChangeState.REFUSED
    change.write(100)
    assert of_kind(change.answer(0, 1), ReportFlushed)


# ---- learners


def test_c1_a_learner_counts_for_no_commit(change: Change) -> None:
    change.begin(1, 2, 3, 4)
    change.write(100)
    assert not of_kind(change.answer(0, 3), ReportFlushed)
    assert of_kind(change.answer(1), ReportFlushed)


def test_c1_nor_for_the_quorum_that_is_connected(change: Change) -> None:
    change.begin(1, 2, 3, 4)
    change.answer(3)
    change.lose(0)
    change.lose(1)
    assert not change.proposer.quorum_is_connected


def test_r1_a_learner_holds_truncate_lsn_back_until_it_is_silent(change: Change) -> None:
    change.pass_time(1000, 0, 1, 2)
    begin_lsn = change.leader.truncate_lsn
    ask(change.proposer, 1, 2, 3, 4)
    change.write(100)
    change.answer(0, 1, 2)
    change.pass_time(LEARNER_SILENT_MS - 2000, 0, 1, 2)
    assert change.leader.truncate_lsn == begin_lsn
    change.pass_time(3000, 0, 1, 2)
    assert change.leader.truncate_lsn == change.position


def test_r1_what_a_learner_has_flushed_may_go(change: Change) -> None:
    change.begin(1, 2, 3, 4)
    change.leader.peer_set.note_truncated(change.position + 8)  # so that it does not enter yet (R2)
    change.answer(3)
    change.lose(3)
    begin_lsn = change.position
    change.write(100)
    change.answer(0, 1, 2)
    change.tick()
    assert change.leader.truncate_lsn == begin_lsn


def test_a_learner_that_needs_wal_of_no_member_starts_over() -> None:
    log = WalLog()
    log.append("R0")
    change = Change.of(leading(log), log)
    change.answer(0, 1)
    ask(change.proposer, 1, 2, 4)
    actions = change.join(3)
    for _ in (0, 1):
        (start,) = of_kind(actions, StartCatchUp)
        change.proposer.step(CatchUpLost(3, f"{start.donor} has removed it", is_removed=True))
        actions = change.tick()
    assert change.proposer.peers[3].state is PeerState.LEFT_BEHIND
    assert of_kind(actions, Leave) == [leave(3, change.proposer)]
    assert of_kind(change.proposer.step(Left(3)), ClosePeer)
    greet(change.proposer, 3, has_left=True)
    assert of_kind(change.pass_time(RETRY_MS, 0, 1), Join)


# ---- J1, D2, R2: entering


def test_j1_sets_change_through_a_joint_membership(change: Change) -> None:
    change.begin(1, 2, 3, 4)
    assert sets(change.proposer) == (1, (1, 2, 3), ())
    actions = change.answer(3)
    assert sets(change.proposer) == (2, (1, 2, 3), (1, 2, 3, 4))
    joint = present(change.proposer)
    assert joint.stamp == Stamp(OURS, 2)
    assert [m.id for m in joint.roster] == [1, 2, 3, 4]
    assert sent(actions, Configure) == [(peer, Configure(OURS, joint)) for peer in range(4)]


def test_d2_no_safekeeper_enters_before_it_has_answered(change: Change) -> None:
    change.begin(1, 2, 3, 4)
    change.tick()
    assert state(change.proposer) is ChangeState.JOINING
    change.answer(3)
    assert present(change.proposer).is_joint


def test_d2_one_that_was_ordered_to_leave_enters_with_a_greater_generation(change: Change) -> None:
    """The order may still be on its way. A safekeeper with a greater stamp on disk refuses it."""
    change.begin(1, 2, 3, 4)
    assert of_kind(change.proposer.step(ChangeCancelled()), Leave)
    ask(change.proposer, 1, 2, 3, 4)
    terms = change.leader.term.term_history
    vote(change.proposer, 3, START_LSN, term_history=terms)
    answer(change.proposer, 3, START_LSN, generation=1)
    change.tick()
    assert sets(change.proposer) == (2, (1, 2, 3), ())
    answer(change.proposer, 3, START_LSN, generation=2)
    change.tick()
    assert sets(change.proposer) == (3, (1, 2, 3), (1, 2, 3, 4))


def test_d2_each_of_the_new_ones(change: Change) -> None:
    change.begin(4, 5, 6)
    change.answer(3, 4)
    change.tick()
    assert not present(change.proposer).is_joint
    change.answer(5)
    assert sets(change.proposer) == (2, (1, 2, 3), (4, 5, 6))


def test_r2_no_safekeeper_enters_below_the_truncate_lsn() -> None:
    log = WalLog()
    log.append("R0")
    proposer = leading(log)
    leader_of(proposer).peer_set.note_truncated(log.lsn)
    answer(proposer, 0, log.lsn)
    answer(proposer, 1, log.lsn)
    ask(proposer, 1, 2, 4)
    greet(proposer, 3)
    vote(proposer, 3)
    leader_of(proposer).peers[3].state = PeerState.STREAMING
    answer(proposer, 3, START_LSN)
    assert not present(proposer).is_joint
    answer(proposer, 3, log.lsn)
    assert present(proposer).is_joint


def test_r2_a_vote_after_the_election_counts_too(change: Change) -> None:
    change.lose(2)
    change.write(100)
    change.answer(0, 1)
    greet(change.proposer, 2, OURS)
    terms = change.leader.term.term_history
    vote(change.proposer, 2, change.position, term_history=terms, truncate_lsn=change.position)
    change.begin(1, 2, 4)
    answer(change.proposer, 3, START_LSN)
    assert not present(change.proposer).is_joint
    change.answer(3)
    assert present(change.proposer).is_joint


def test_a_quorum_of_the_new_set_is_within_the_window(change: Change) -> None:
    """Otherwise commits would wait for the catch-up."""
    change.begin(4, 5, 6)
    for peer in (3, 4):
        change.proposer.peers[peer].state = PeerState.CATCHING_UP
        change.proposer.peers[peer].next_lsn -= 8
    answer(change.proposer, 3, START_LSN)
    answer(change.proposer, 4, START_LSN)
    answer(change.proposer, 5, START_LSN)
    assert not present(change.proposer).is_joint
    assert state(change.proposer) is ChangeState.CATCHING_UP
