"""Finding the members, and being elected by them: rule 1, V2, A1, rule 11."""

from __future__ import annotations

import pytest
from change_steps import present, sets
from proposer_steps import (
    MEMBERS,
    OURS,
    UUID,
    answer,
    ballot,
    campaigning,
    connect,
    greet,
    leading,
    members,
    new_proposer,
    of_kind,
    sent,
    the_stop,
    vote,
)
from wal_log import START_LSN

from quorum_wal.consensus.ids import NodeId
from quorum_wal.consensus.membership import Membership, Stamp
from quorum_wal.consensus.messages import VoteRequest
from quorum_wal.walproposer.stream.events import (
    Action,
    ClosePeer,
    ForgetPeer,
    OpenPeer,
    Outcome,
    PeerConnected,
    PeerLost,
    Stop,
    Tick,
)
from quorum_wal.walproposer.stream.progress import PeerState
from quorum_wal.walproposer.stream.proposer import State

A = ballot(3, "a")
GREATER = members((2, 3, 4), generation=2, author=A)


def asked(actions: list[Action]) -> list[tuple[int, Stamp]]:
    return [(peer, m.stamp) for peer, m in sent(actions, VoteRequest)]


# ---- rule 1: the greatest membership seen, and the addresses in it


def test_rule_1_it_asks_the_addresses_of_the_membership_that_it_met() -> None:
    proposer = new_proposer(count=1)
    actions = greet(proposer, 0)
    assert of_kind(actions, OpenPeer) == [OpenPeer(1, "sk2", 5454), OpenPeer(2, "sk3", 5454)]
    assert proposer.state is State.COLLECTING
    assert asked(greet(proposer, 1)) == [(0, Stamp.FIRST), (1, Stamp.FIRST)]


def test_rule_1_the_greatest_membership_seen_is_its_own() -> None:
    proposer = new_proposer(count=2)
    greet(proposer, 0)
    actions = greet(proposer, 1, membership=GREATER)
    assert OpenPeer(3, "sk4", 5454) in actions
    assert present(proposer) == GREATER
    assert proposer.state is State.COLLECTING, "1 is no member of it"
    assert asked(greet(proposer, 2)) == [(1, GREATER.stamp), (2, GREATER.stamp)]
    assert proposer.node_id == NodeId(4, UUID), "above its author"


def test_rule_1_a_lesser_membership_changes_nothing() -> None:
    proposer = new_proposer(count=3)
    greet(proposer, 1, membership=GREATER)
    assert of_kind(greet(proposer, 2, membership=MEMBERS), ClosePeer) == []
    assert present(proposer) == GREATER
    assert proposer.state is State.CAMPAIGNING


def test_rule_1_one_that_has_left_leads_on_and_is_not_asked() -> None:
    proposer = new_proposer(count=1)
    actions = greet(proposer, 0, membership=GREATER, has_left=True)
    assert [a.host for a in of_kind(actions, OpenPeer)] == ["sk2", "sk3", "sk4"]
    greet(proposer, 1)
    assert asked(greet(proposer, 2)) == [(1, GREATER.stamp), (2, GREATER.stamp)]


def test_rule_1_the_term_is_above_what_an_outsider_has_promised() -> None:
    proposer = new_proposer(count=2)
    greet(proposer, 0, ballot(9), membership=GREATER, has_left=True)
    greet(proposer, 1)
    greet(proposer, 2)
    assert proposer.node_id == NodeId(10, UUID)


def test_a_greater_promise_of_a_safekeeper_that_left_does_not_stop_a_candidate() -> None:
    proposer = new_proposer(count=3)
    greet(proposer, 0)
    greet(proposer, 1)
    assert proposer.state is State.CAMPAIGNING
    proposer.step(PeerLost(0, "gone"))
    later = members((2, 3, 4), generation=2)
    assert of_kind(greet(proposer, 0, ballot(9), membership=later, has_left=True), Stop) == []
    assert present(proposer) == later
    assert of_kind(greet(proposer, 2, ballot(9)), Stop), "3 is a member still"


def test_an_equal_stamp_with_other_sets_is_not_believed() -> None:
    proposer = new_proposer()
    greet(proposer, 0)
    (close,) = greet(proposer, 1, membership=members((1, 2, 4)))
    assert isinstance(close, ClosePeer)
    assert "other members than ours" in close.reason
    assert present(proposer) == MEMBERS


# ---- id and instance identify a safekeeper


def test_a1_another_instance_under_a_members_id_is_down() -> None:
    proposer = new_proposer()
    greet(proposer, 0)
    (close,) = greet(proposer, 1, instance=b"newdisk!")
    assert isinstance(close, ClosePeer)
    assert "safekeeper 2 lost its data" in close.reason
    assert proposer.state is State.COLLECTING


def test_a1_for_a_leader_too() -> None:
    proposer = leading(peers=(0, 1))
    (close,) = greet(proposer, 2, instance=b"newdisk!")
    assert isinstance(close, ClosePeer)
    assert not proposer.peers[2].is_member


def test_a1_an_unknown_instance_is_that_of_the_first_that_greets() -> None:
    old = Membership(Stamp.FIRST, (1, 2, 3))
    proposer = new_proposer()
    greet(proposer, 0, membership=old)
    (close,) = greet(proposer, 1, safekeeper_id=1, instance=b"newdisk!", membership=old)
    assert isinstance(close, ClosePeer)
    greet(proposer, 2, membership=old)
    assert proposer.state is State.CAMPAIGNING


def test_one_safekeeper_by_two_addresses_counts_once() -> None:
    proposer = new_proposer(count=4)
    greet(proposer, 0)
    assert greet(proposer, 3, safekeeper_id=1) == [ForgetPeer(3)]
    assert proposer.state is State.COLLECTING
    assert proposer.step(PeerConnected(3)) == [ForgetPeer(3)], "one that was on the way"


def test_its_other_address_is_tried_again_when_the_first_is_lost() -> None:
    proposer = new_proposer(count=4)
    greet(proposer, 0)
    greet(proposer, 3, safekeeper_id=1)
    proposer.step(PeerLost(0, "gone"))
    assert proposer.step(Tick(1)) == [OpenPeer(3, "sk4", 5454)]
    greet(proposer, 3, safekeeper_id=1)
    greet(proposer, 1)
    assert proposer.state is State.CAMPAIGNING


def test_its_positions_move_with_it_to_another_address() -> None:
    proposer = leading(peers=(0, 1))
    answer(proposer, 0, START_LSN)
    proposer.peers[0].flush_lsn = START_LSN + 800
    proposer.step(PeerLost(0, "gone"))
    proposer.peer_set.open("elsewhere", 1)
    greet(proposer, 3, OURS, safekeeper_id=1)
    assert (proposer.peers[3].is_member, proposer.peers[3].flush_lsn) == (True, START_LSN + 800)
    (close,) = vote(proposer, 3, START_LSN)
    assert isinstance(close, ClosePeer)
    assert "safekeeper 1 lost data" in close.reason


def test_another_safekeeper_at_its_address_does_not_get_its_positions() -> None:
    proposer = leading(peers=(0, 1))
    answer(proposer, 0, START_LSN)
    proposer.step(PeerLost(0, "gone"))
    greet(proposer, 0, safekeeper_id=7)
    assert (proposer.peers[0].safekeeper_id, proposer.peers[0].flush_lsn) == (7, 0)
    assert proposer.peers[0].state is PeerState.OUTSIDE
    answer(proposer, 1, START_LSN)
    assert proposer.commit_lsn == START_LSN, "what safekeeper 1 had flushed stays flushed"


# ---- V2: a quorum of grants from each set


def test_v2_a_joint_membership_needs_grants_of_each_set() -> None:
    joint = members((1, 2, 3), (3, 4, 5))
    proposer = campaigning((0, 1, 2, 3, 4), joint)
    for peer in (0, 1):
        vote(proposer, peer)
    vote(proposer, 3)
    assert proposer.leader is None
    vote(proposer, 4)
    assert proposer.leader is not None


def test_v2_a_refusal_with_a_greater_membership_is_taken_over_and_grants_stay() -> None:
    """2 has voted; 3 refuses, because 2 3 4 are the members."""
    proposer = new_proposer(count=3)
    greet(proposer, 1, ballot(5))
    greet(proposer, 2, ballot(5))
    vote(proposer, 1)
    actions = vote(proposer, 2, granted=False, promised=ballot(5), membership=GREATER)
    assert asked(actions) == [(2, GREATER.stamp)], "with what it has itself"
    assert of_kind(actions, OpenPeer) == [OpenPeer(3, "sk4", 5454)]
    assert proposer.node_id == NodeId(6, UUID), "chosen once"
    vote(proposer, 2)
    assert proposer.leader is not None
    assert sets(proposer) == (2, (2, 3, 4), ())


def test_v2_grants_are_counted_again() -> None:
    """1 has voted, and is no longer a member."""
    proposer = new_proposer(count=3)
    for peer in (0, 1):
        greet(proposer, peer, ballot(5))
    vote(proposer, 0)
    vote(proposer, 1, granted=False, promised=ballot(5), membership=GREATER)
    vote(proposer, 1)
    assert proposer.leader is None
    greet(proposer, 3)
    vote(proposer, 3)
    assert proposer.leader is not None


def test_v2_fenced_when_its_author_is_above_us() -> None:
    proposer = campaigning()
    late = members((1, 2), generation=2, author=ballot(9))
    stop = the_stop(vote(proposer, 0, granted=False, promised=NodeId.ZERO, membership=late))
    assert stop.outcome is Outcome.FENCED
    assert f"the members were written by {ballot(9)}" in stop.message


def test_v2_fenced_by_the_membership_of_a_greeting_too() -> None:
    proposer = campaigning()
    late = members((1, 2, 3), generation=2, author=ballot(9))
    assert the_stop(greet(proposer, 2, membership=late)).outcome is Outcome.FENCED


def test_v2_a_successor_gives_way_to_the_author_of_a_membership() -> None:
    proposer = new_proposer(predecessor=ballot(4))
    late = members((1, 2, 3), generation=2, author=ballot(5))
    assert the_stop(greet(proposer, 0, membership=late)).outcome is Outcome.FENCED


def test_v2_a_refusal_that_crossed_the_election_is_asked_again() -> None:
    """Its membership is greater than that of the request, and less than the written one."""
    proposer = campaigning((0, 1, 2), primary=None)
    vote(proposer, 0)
    vote(proposer, 1)
    assert proposer.leader is not None
    late = members((1, 2, 3), generation=5, author=ballot(0, "a"))
    actions = vote(proposer, 2, granted=False, promised=NodeId.ZERO, membership=late)
    assert asked(actions) == [(2, Stamp(OURS, 1))]


def test_a_vote_of_a_member_that_lost_data_does_not_refuse_the_membership() -> None:
    proposer = campaigning((0, 1, 2))
    vote(proposer, 0, granted=False)
    assert proposer.peers[0].state is PeerState.VOTED
    assert proposer.peers[0].is_voteless


# ---- rule 11: only a member's greater promise fences


@pytest.mark.parametrize("number", [9, 4])
def test_rule_11_an_outsiders_promise_does_not_fence(number: int) -> None:
    proposer = leading()
    connect(proposer, 2)
    actions = greet(proposer, 2, ballot(9), safekeeper_id=number)
    assert not of_kind(actions, Stop)
    assert proposer.state is State.LEADING


def test_rule_11_a_members_does_wherever_it_answers() -> None:
    proposer = leading(peers=(0, 1))
    proposer.peer_set.open("elsewhere", 1)
    assert the_stop(greet(proposer, 3, ballot(9), safekeeper_id=3)).outcome is Outcome.FENCED


def test_rule_11_one_that_became_a_member_fences() -> None:
    """4 had greeted with a greater promise, before it was known to be a member."""
    proposer = new_proposer(count=4)
    for peer in (0, 1):
        greet(proposer, peer, ballot(5))
    assert not of_kind(greet(proposer, 3, ballot(8)), Stop)
    late = members((2, 3, 4), generation=2, author=ballot(4))
    actions = vote(proposer, 1, granted=False, promised=ballot(5), membership=late)
    assert the_stop(actions).outcome is Outcome.FENCED


def test_lost_data_of_one_outside_the_sets_is_no_loss() -> None:
    proposer = new_proposer(count=4)
    greet(proposer, 0)
    proposer.step(PeerLost(3, "no such timeline", lost_data=True))
    assert not proposer.peers[3].has_lost_data
    proposer.step(PeerLost(0, "no such timeline", lost_data=True))
    assert proposer.peers[0].has_lost_data
