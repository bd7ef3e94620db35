"""Greetings, the term, votes and the donor: the proposer's rules 1 and 2, and every way to end."""

from __future__ import annotations

import pytest
from new_timeline import TIMELINE
from proposer_steps import (
    MEMBERS,
    OURS,
    UUID,
    answer,
    ballot,
    campaigning,
    connect,
    greet,
    history,
    leading,
    member,
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
from quorum_wal.consensus.messages import (
    AppendResponse,
    Elected,
    ProposerGreeting,
    SafekeeperGreeting,
    VoteRequest,
)
from quorum_wal.walproposer.stream.events import ClosePeer, Outcome, PeerLost, PeerMessage, Tick
from quorum_wal.walproposer.stream.progress import PeerState
from quorum_wal.walproposer.stream.proposer import RESPONSE_TIMEOUT_MS, State


def position(offset: int) -> int:
    return START_LSN + offset


# ---- rule 1: the greatest term in a quorum of greetings, plus one, chosen once


def test_a_connection_is_greeted_at_once() -> None:
    ((peer, greeting),) = sent(connect(new_proposer(), 2), ProposerGreeting)
    assert peer == 2
    assert greeting.proposer_uuid == UUID
    assert greeting.timeline == TIMELINE


def test_rule_1_no_term_without_a_quorum_of_greetings() -> None:
    proposer = new_proposer()
    assert greet(proposer, 0, ballot(7)) == []
    assert proposer.node_id is None
    assert proposer.state is State.COLLECTING


@pytest.mark.parametrize(("first", "second", "term"), [(0, 0, 1), (7, 3, 8), (3, 7, 8)])
def test_rule_1_the_greatest_term_of_a_quorum_plus_one(first: int, second: int, term: int) -> None:
    proposer = new_proposer()
    greet(proposer, 0, ballot(first))
    actions = greet(proposer, 2, ballot(second))
    node_id = NodeId(term, UUID)
    assert sent(actions, VoteRequest) == [
        (0, VoteRequest(Stamp.FIRST, node_id)),
        (2, VoteRequest(Stamp.FIRST, node_id)),
    ]
    assert proposer.state is State.CAMPAIGNING


def test_rule_1_the_term_is_chosen_once() -> None:
    """A member that connects later is asked with the same NodeId, like one that reconnects."""
    proposer = campaigning()
    assert sent(greet(proposer, 2), VoteRequest) == [(2, VoteRequest(Stamp.FIRST, OURS))]
    proposer.step(PeerLost(0, "gone"))
    assert sent(greet(proposer, 0, OURS), VoteRequest) == [(0, VoteRequest(Stamp.FIRST, OURS))]


def test_rule_1_a_greeting_counts_only_while_its_connection_lives() -> None:
    proposer = new_proposer()
    greet(proposer, 0, ballot(9))
    proposer.step(PeerLost(0, "gone"))
    assert greet(proposer, 1, ballot(3)) == []
    greet(proposer, 2, ballot(4))
    assert proposer.node_id == NodeId(5, UUID)


@pytest.mark.parametrize(
    ("membership", "greeted", "is_quorum"),
    [
        (members((1,)), (0,), True),
        (members((1, 2)), (0,), False),
        (members((1, 2, 3, 4)), (0, 1), False),
        (members((1, 2, 3, 4, 5)), (1, 2, 4), True),
        (members((1, 2, 3), (3, 4, 5)), (0, 1, 2), False),
        (members((1, 2, 3), (3, 4, 5)), (0, 2, 3), True),
        (members((1, 2, 3), (3, 4, 5)), (2, 3, 4), False),
    ],
)
def test_rule_1_a_joint_configuration_needs_both_quorums(
    membership: Membership, greeted: tuple[int, ...], is_quorum: bool
) -> None:
    proposer = new_proposer(count=5)
    for peer in greeted:
        greet(proposer, peer, membership=membership)
    assert (proposer.state is State.CAMPAIGNING) is is_quorum


# ---- fenced: a greater NodeId was seen


def test_fenced_at_a_greeting() -> None:
    stop = the_stop(greet(campaigning(), 2, ballot(2, "z")))
    assert stop.outcome is Outcome.FENCED
    assert stop.message == f"safekeeper 3 has promised {ballot(2, 'z')}, greater than our {OURS}"


def test_fenced_by_a_greater_uuid_of_the_same_term() -> None:
    assert the_stop(greet(campaigning(), 2, ballot(1, "z"))).outcome is Outcome.FENCED
    assert greet(campaigning(), 2, ballot(1, "a")), "a lesser one is asked for its vote"


def test_fenced_at_a_vote() -> None:
    proposer = campaigning()
    stop = the_stop(vote(proposer, 0, granted=False, promised=ballot(5)))
    assert stop.outcome is Outcome.FENCED


def test_fenced_at_an_append() -> None:
    proposer = leading()
    stop = the_stop(answer(proposer, 0, START_LSN, node_id=ballot(5)))
    assert stop.outcome is Outcome.FENCED


def test_fenced_by_a_message_that_was_not_waited_for() -> None:
    """The first greater ballot that is seen ends it, in any message."""
    greater = ballot(5)
    proposer = campaigning()
    vote(proposer, 0)
    assert the_stop(vote(proposer, 0, promised=greater)).outcome is Outcome.FENCED
    proposer = campaigning()
    stop = the_stop(answer(proposer, 1, START_LSN, node_id=greater))
    assert stop.outcome is Outcome.FENCED
    assert "safekeeper 2 has promised" in stop.message
    proposer = leading()
    connect(proposer, 2)
    assert the_stop(greet(proposer, 2, greater)).outcome is Outcome.FENCED


def test_an_append_response_before_the_term_is_chosen_does_not_fence() -> None:
    proposer = new_proposer()
    connect(proposer, 0)
    (close,) = answer(proposer, 0, START_LSN, node_id=ballot(5))
    assert close == ClosePeer(0, f"unexpected append response of {ballot(5)}")
    assert proposer.state is State.COLLECTING


def test_an_answer_of_a_membership_that_was_not_written_counts_for_nothing() -> None:
    proposer = leading()
    (close,) = answer(proposer, 0, START_LSN + 8, generation=2)
    problem = "safekeeper 1 answered at membership generation 2, expected at most 1"
    assert close == ClosePeer(0, problem)
    assert proposer.peers[0].flush_lsn == 0
    assert proposer.state is State.LEADING


def test_a_fenced_incarnation_never_speaks_again() -> None:
    proposer = campaigning()
    greet(proposer, 2, ballot(9))
    assert proposer.state is State.STOPPED
    assert connect(proposer, 2) == []
    assert vote(proposer, 0) == []
    assert proposer.step(Tick(10**6)) == []


def test_a_greater_promise_before_the_term_is_chosen_only_raises_the_term() -> None:
    """This is how a new primary takes over; the old one is fenced by the votes."""
    proposer = new_proposer()
    greet(proposer, 0, ballot(41))
    greet(proposer, 1, ballot(41))
    assert proposer.node_id == NodeId(42, UUID)


def test_a_successor_yields_to_a_proposer_elected_after_its_predecessor() -> None:
    """The primary restarted, and meanwhile another proposer took over: do not take it back."""
    proposer = new_proposer(predecessor=ballot(4))
    assert greet(proposer, 0, ballot(4)) == []
    stop = the_stop(greet(proposer, 1, ballot(5)))
    assert stop.outcome is Outcome.FENCED
    assert f"greater than our {ballot(4)}" in stop.message


# ---- votes


def test_a_vote_for_a_lesser_node_id_is_no_vote() -> None:
    proposer = campaigning()
    (close,) = vote(proposer, 0, granted=False, promised=NodeId.ZERO)
    assert isinstance(close, ClosePeer)
    (close,) = vote(proposer, 1, granted=True, promised=NodeId.ZERO)
    assert isinstance(close, ClosePeer)
    assert proposer.leader is None


def test_a_member_that_lost_data_is_dropped() -> None:
    """Counted once, its log may not shrink under the same NodeId."""
    proposer = leading(peers=(0, 1))
    answer(proposer, 0, position(0))
    proposer.peers[0].flush_lsn = position(500)
    proposer.step(PeerLost(0, "restarted"))
    greet(proposer, 0, OURS)
    (close,) = vote(proposer, 0, position(400))
    assert close == ClosePeer(
        0,
        "safekeeper 1 lost data: its log ends at 0/100190, it had acknowledged 0/1001F4",
    )


@pytest.mark.parametrize("message", ["greeting", "vote", "append response"])
def test_a_message_out_of_turn_closes_the_connection(message: str) -> None:
    proposer = campaigning((0, 1))
    vote(proposer, 0)
    assert proposer.peers[0].state is PeerState.VOTED
    if message == "greeting":
        greeting = SafekeeperGreeting(1, member(1).instance, False, NodeId.ZERO, MEMBERS)
        actions = proposer.step(PeerMessage(0, greeting))
    elif message == "vote":
        actions = vote(proposer, 0)
    else:
        actions = proposer.step(PeerMessage(0, AppendResponse(1, OURS, START_LSN, START_LSN, 0)))
    assert of_kind(actions, ClosePeer)
    assert proposer.peers[0].vote is None


# ---- rule 2: a quorum of grants elects; the donor is the greatest (last ballot, position)


def test_rule_2_one_vote_of_three_does_not_elect() -> None:
    proposer = campaigning()
    assert vote(proposer, 0) == []
    assert proposer.leader is None


def test_rule_2_a_vote_counts_only_while_its_connection_lives() -> None:
    proposer = campaigning((0, 1, 2))
    vote(proposer, 0)
    proposer.step(PeerLost(0, "gone"))
    assert vote(proposer, 1) == []
    vote(proposer, 2)
    assert proposer.leader is not None


A, B = ballot(1, "a"), ballot(2, "b")


@pytest.mark.parametrize(
    ("voters", "donor"),
    [
        ([(A, 100), (A, 200)], 1),
        ([(A, 200), (A, 200)], 0),
        ([(B, 100), (A, 900)], 0),
        ([(A, 900), (B, 100)], 1),
        ([(A, 900), (B, 100), (B, 101)], 1),
    ],
    ids=["position", "tie", "ballot first", "ballot first again", "before the third vote"],
)
def test_rule_2_the_donor_has_the_last_ballot_and_then_the_last_position(
    voters: list[tuple[NodeId, int]], donor: int
) -> None:
    proposer = new_proposer()
    for peer in range(3):
        greet(proposer, peer, ballot(3))
    for peer, (last, offset) in enumerate(voters):
        vote(proposer, peer, position(offset), term_history=history((last, START_LSN)))
    assert proposer.leader is not None
    term = proposer.leader.term
    assert term.donor == donor
    assert term.term_start_lsn == position(voters[donor][1])
    assert term.term_history == history(
        (voters[donor][0], START_LSN), (NodeId(4, UUID), term.term_start_lsn)
    )


def test_rule_2_an_empty_term_counts_as_the_last_ballot() -> None:
    """Figure 8, step 9: a1's log is empty, but it followed the later leader."""
    proposer = new_proposer()
    for peer in range(2):
        greet(proposer, peer, ballot(3))
    vote(proposer, 0, START_LSN, term_history=history((B, START_LSN)))
    vote(proposer, 1, position(64), term_history=history((A, START_LSN)))
    assert proposer.leader is not None
    assert proposer.leader.term.donor == 0
    assert proposer.leader.term.term_start_lsn == START_LSN


def test_r1_truncate_lsn_is_not_a_votes_but_what_may_be_gone_is_known() -> None:
    proposer = campaigning()
    vote(proposer, 0, position(900), truncate_lsn=position(100))
    vote(proposer, 1, position(900), truncate_lsn=position(300))
    assert proposer.leader is not None
    assert proposer.leader.truncate_lsn == 0
    assert proposer.leader.peer_set.known_truncate_lsn == position(300)


def test_r2_the_truncate_lsn_of_a_former_member_counts() -> None:
    """It was asked as a member, and grants after another one has reported that it is none."""
    proposer = new_proposer(count=4)
    for peer in range(3):
        greet(proposer, peer, membership=members((1, 2, 3, 4)))
    assert proposer.state is State.CAMPAIGNING
    greet(proposer, 3, membership=members((1, 2, 4), generation=3))
    vote(proposer, 2, position(900), truncate_lsn=position(300))
    assert proposer.leader is None
    vote(proposer, 0, position(900))
    vote(proposer, 1, position(900))
    assert proposer.leader is not None
    assert proposer.leader.peer_set.known_truncate_lsn == position(300)


def test_without_a_primary_the_election_leads_at_once() -> None:
    proposer = campaigning(primary=None)
    vote(proposer, 0)
    assert len(sent(vote(proposer, 1), Elected)) == 2
    assert proposer.state is State.LEADING


# ---- time


@pytest.mark.parametrize("state", [PeerState.CONNECTED, PeerState.VOTING, PeerState.STREAMING])
def test_a_member_that_owes_an_answer_too_long_is_dropped(state: PeerState) -> None:
    if state is PeerState.STREAMING:
        proposer = leading()
    else:
        proposer = campaigning()
        if state is PeerState.CONNECTED:
            proposer.step(PeerLost(0, "gone"))
            connect(proposer, 0)
    assert proposer.peers[0].state is state
    assert not of_kind(proposer.step(Tick(RESPONSE_TIMEOUT_MS)), ClosePeer)
    closed = of_kind(proposer.step(Tick(RESPONSE_TIMEOUT_MS + 1)), ClosePeer)
    assert ClosePeer(0, f"no answer for {RESPONSE_TIMEOUT_MS} ms") in closed
    assert proposer.peers[0].state is PeerState.OFFLINE


def test_a_member_that_waits_for_us_is_not_dropped() -> None:
    proposer = campaigning()
    vote(proposer, 0)
    actions = proposer.step(Tick(10 * RESPONSE_TIMEOUT_MS))
    assert [a.peer for a in of_kind(actions, ClosePeer)] == [1]
