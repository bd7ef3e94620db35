"""The membership at the acceptor: from whom it is adopted, when it is durable, who is refused.


The rules and conditions are those of `docs/protocol.md`, section on members.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from acceptor_steps import (
    B1,
    B2,
    MEMBERS,
    A,
    C,
    append,
    batch,
    configure,
    elected,
    greeting,
    history,
    kinds,
    new_acceptor,
    stamped,
    streaming_acceptor,
    vote_request,
)
from new_timeline import INSTANCE
from wal_log import START_LSN

from quorum_wal.consensus.ids import NodeId
from quorum_wal.consensus.membership import Member, Membership, Stamp
from quorum_wal.consensus.messages import AppendResponse, SafekeeperGreeting, VoteResponse
from quorum_wal.safekeeper.acceptor import Acceptor
from quorum_wal.safekeeper.events import (
    Action,
    BatchEnded,
    CloseConnection,
    Disconnected,
    PersistControl,
    Received,
    Refuse,
    Reply,
)

ROSTER = tuple(Member(i, bytes([i]) * 8, f"10.0.0.{i}", 5454) for i in (2, 4))


def joint(node_id: NodeId, generation: int) -> Membership:
    return MEMBERS.joint_with(Stamp(node_id, generation), ROSTER)


def refused(actions: list[Action], problem: str, sqlstate: str) -> bool:
    (refusal,) = actions
    assert isinstance(refusal, Refuse)
    assert problem in refusal.message
    return refusal.sqlstate == sqlstate


def the_answer(actions: list[Action]) -> AppendResponse:
    (reply,) = [action for action in actions if isinstance(action, Reply)]
    assert isinstance(reply.message, AppendResponse)
    return reply.message


def elected_again(
    membership: Membership, connection: int = 1, start_lsn: int = START_LSN
) -> Received:
    node_id = membership.stamp.author
    terms = history((node_id, START_LSN))
    return elected(node_id, start_lsn, terms, connection, membership=membership)


# ---- votes (condition V1)


@pytest.mark.parametrize(
    ("own", "asked", "granted"),
    [
        (stamped(A, 3), Stamp(A, 3), True),
        (stamped(A, 3), Stamp(A, 4), True),
        (stamped(A, 3), Stamp(B1, 1), True),
        (stamped(A, 3), Stamp(A, 2), False),
        (stamped(B1, 1), Stamp(A, 9), False),
        (MEMBERS, Stamp.FIRST, True),
        (stamped(B2, 1), Stamp(B1, 1), False),
    ],
)
def test_v1_a_candidate_with_a_lesser_membership_gets_no_vote_and_no_promise(
    own: Membership, asked: Stamp, granted: bool
) -> None:
    acceptor = new_acceptor(promised=own.stamp.author, membership=own)
    actions = acceptor.step(vote_request(C, stamp=asked))
    reply = actions[-1]
    assert isinstance(reply, Reply)
    assert isinstance(reply.message, VoteResponse)
    assert reply.message.granted is granted
    assert reply.message.membership == own, "a refusal tells of the greater one"
    assert acceptor.control.promised == (C if granted else own.stamp.author)
    assert acceptor.control.membership == own, "a vote adopts nothing"


def test_v1_a_vote_that_is_refused_for_the_stamp_changes_nothing() -> None:
    acceptor = streaming_acceptor(B1)
    acceptor.step(append(B1, START_LSN, 100))
    assert kinds(acceptor.step(vote_request(C, 2, Stamp(A, 7)))) == ["Reply"]
    assert acceptor.streaming == 1
    assert kinds(acceptor.step(append(B1, START_LSN + 100, 8))) == ["WriteWal"]


# ---- Elected


def test_elected_brings_its_membership_which_is_durable_before_the_answer() -> None:
    acceptor = new_acceptor()
    acceptor.step(vote_request(A))
    membership = joint(A, 5)
    actions = batch(acceptor, elected_again(membership))
    assert kinds(actions) == ["PersistControl", "Reply"]
    assert isinstance(actions[0], PersistControl)
    assert actions[0].state.membership == membership
    assert the_answer(actions).generation == 5


def test_m3_elected_of_a_lesser_node_id_brings_nothing() -> None:
    acceptor = new_acceptor(promised=C)
    assert acceptor.step(elected_again(stamped(A, 9))) == []
    assert acceptor.control.membership == MEMBERS


def test_m2_elected_with_the_membership_of_another_author_is_refused() -> None:
    acceptor = new_acceptor()
    event = elected(B1, START_LSN, history((B1, START_LSN)), membership=stamped(A, 2))
    assert refused(acceptor.step(event), "sends a membership that", "08P01")
    assert acceptor.control.promised == NodeId.ZERO


@pytest.mark.parametrize("own", [stamped(A, 3), joint(A, 3)])
def test_a_lesser_stamp_of_the_same_leader_is_refused(own: Membership) -> None:
    """A delayed Elected comes on an old connection; the newer connection continues to stream."""
    acceptor = streaming_acceptor(A, connection=2)
    acceptor.step(configure(own, connection=2))
    before = acceptor.control
    late = elected_again(stamped(A, 2), connection=1)
    assert refused(acceptor.step(late), f"membership {A}/2 is older than {A}/3", "55000")
    assert acceptor.step(BatchEnded(1)) == []
    acceptor.step(Disconnected(1))
    assert (acceptor.control, acceptor.streaming) == (before, 2)


def test_equal_stamps_mean_equal_memberships() -> None:
    """ConfigSafety: including the addresses."""
    acceptor = streaming_acceptor(A)
    other = replace(stamped(A), roster=(Member(1, b"instance"),))
    assert refused(
        acceptor.step(elected_again(other, 2)), f"membership {A}/1 has the sets", "XX001"
    )
    assert refused(acceptor.step(configure(other)), f"membership {A}/1 has the sets", "XX001")
    assert acceptor.streaming == 1
    assert kinds(acceptor.step(elected_again(stamped(A), 2))) == ["CloseConnection"]


def test_elected_again_may_bring_a_later_membership() -> None:
    """The connection was lost before Configure arrived. The flushed position since the vote is
    kept."""
    acceptor = streaming_acceptor(A, connection=1)
    batch(acceptor, append(A, START_LSN, 100))
    actions = acceptor.step(elected_again(joint(A, 2), 2, START_LSN + 100))
    assert kinds(actions) == ["CloseConnection", "PersistControl"]
    assert isinstance(actions[0], CloseConnection)
    assert isinstance(actions[1], PersistControl)
    assert actions[1].state.membership == joint(A, 2)
    assert actions[1].state.flush_lsn == START_LSN + 100


# ---- Configure


def test_configure_is_durable_before_its_answer_which_names_its_generation() -> None:
    acceptor = streaming_acceptor(A)
    actions = batch(acceptor, configure(joint(A, 2)))
    assert kinds(actions) == ["PersistControl", "Reply"]
    assert isinstance(actions[0], PersistControl)
    assert actions[0].state == replace(acceptor.control, membership=joint(A, 2))
    assert (the_answer(actions).generation, the_answer(actions).node_id) == (2, A)
    assert the_answer(batch(acceptor, append(A, START_LSN, 8, generation=2))).generation == 2


def test_configure_again_is_answered_again() -> None:
    """Persisted, but not answered: the leader sends it again."""
    acceptor = streaming_acceptor(A)
    first = batch(acceptor, configure(joint(A, 2)))
    again = batch(acceptor, configure(joint(A, 2)))
    assert kinds(again) == ["Reply"]
    assert the_answer(again) == the_answer(first)


def test_configure_keeps_what_was_saved_as_flushed_since_the_vote() -> None:
    """And contains no position that is not flushed yet."""
    acceptor = streaming_acceptor(A)
    batch(acceptor, append(A, START_LSN, 100))
    acceptor.step(append(A, START_LSN + 100, 50))
    actions = acceptor.step(configure(stamped(A, 2)))
    assert isinstance(actions[0], PersistControl)
    assert actions[0].state.flush_lsn == START_LSN + 100
    assert kinds(acceptor.step(BatchEnded(1))) == ["FlushWal", "Reply"]


@pytest.mark.parametrize("connection", [1, 2], ids=["its own", "the newer one"])
def test_m3_configure_of_a_deposed_leader_is_ignored_and_answered(connection: int) -> None:
    acceptor = streaming_acceptor(A, connection=1)
    acceptor.step(vote_request(C, connection=2))
    before = acceptor.control
    actions = acceptor.step(configure(joint(A, 2), connection))
    assert kinds(actions) == ["Reply"]
    assert the_answer(actions).node_id == C
    assert the_answer(actions).generation == 0, "there is no membership of C here yet"
    assert acceptor.control is before


@pytest.mark.parametrize("node_id", [A, C], ids=["the promised one", "a greater one"])
def test_configure_needs_an_elected_on_its_connection(node_id: NodeId) -> None:
    acceptor = streaming_acceptor(A, connection=1)
    actions = acceptor.step(configure(stamped(node_id, 2), connection=2))
    assert refused(actions, "configure of", "08P01")
    assert acceptor.control.membership == stamped(A)
    promised_only = new_acceptor(promised=A)
    assert refused(promised_only.step(configure(stamped(A, 2))), "without Elected", "08P01")


@pytest.mark.parametrize("generation", [1, 2])
def test_configure_never_decreases_the_stamp(generation: int) -> None:
    acceptor = streaming_acceptor(A)
    acceptor.step(configure(joint(A, 3)))
    actions = acceptor.step(configure(stamped(A, generation)))
    assert refused(actions, f"membership {A}/{generation} is older than {A}/3", "55000")
    assert acceptor.control.membership == joint(A, 3)


def test_configure_with_the_membership_of_another_author_is_refused() -> None:
    acceptor = streaming_acceptor(B1)
    event = configure(stamped(A, 9))
    message = replace(event.message, node_id=B1)  # type: ignore[type-var]
    assert refused(acceptor.step(Received(1, message)), "sends a membership that", "08P01")


@pytest.mark.parametrize("generation", [1, 3])
def test_an_append_goes_with_the_membership_that_was_sent_before_it(generation: int) -> None:
    acceptor = streaming_acceptor(A)
    acceptor.step(configure(stamped(A, 2)))
    actions = acceptor.step(append(A, START_LSN, 8, generation=generation))
    assert refused(actions, f"membership generation {generation}, not 2", "55000")


def test_a_steady_state_names_the_present_generation() -> None:
    acceptor = streaming_acceptor(A)
    said = acceptor.steady_state()
    batch(acceptor, configure(stamped(A, 0x1234)))
    now = acceptor.steady_state()
    assert said is not None
    assert now is not None
    assert (said[0][1:5], now[0][1:5]) == (b"\0\0\0\1", b"\0\0\x12\x34")
    assert now[1][1:5] == b"\0\0\x12\x34", "its answers, too"


# ---- rule 5: the same for members and others
def test_a_safekeeper_in_no_set_votes_and_follows() -> None:
    """A learner, or a new member that has not heard of it: the proposer decides who counts."""
    outside = Membership(Stamp(A, 2), (7, 8, 9))
    acceptor = new_acceptor(promised=A, membership=outside)
    vote = acceptor.step(vote_request(B1, stamp=outside.stamp))[-1]
    assert isinstance(vote, Reply)
    assert isinstance(vote.message, VoteResponse)
    assert vote.message.granted
    acceptor.step(elected_again(outside.stamped(Stamp(B1, 2))))
    actions = batch(acceptor, append(B1, START_LSN, 100, generation=2, commit_lsn=START_LSN + 100))
    assert the_answer(actions).commit_lsn == START_LSN + 100


# ---- a safekeeper that has left


def left_acceptor(**control: Any) -> Acceptor:
    membership = Membership(Stamp(B1, 4), (2, 3), (4,), ROSTER)
    return new_acceptor(has_left=True, promised=B1, membership=membership, **control)


def test_a_safekeeper_that_has_left_greets_and_names_its_membership() -> None:
    acceptor = left_acceptor()
    answer = SafekeeperGreeting(1, INSTANCE, True, B1, acceptor.control.membership)
    assert acceptor.step(greeting()) == [Reply(1, answer)]
    assert isinstance(acceptor.step(greeting(protocol_version=1))[0], Refuse)


@pytest.mark.parametrize(
    "event",
    [
        vote_request(C),
        elected_again(stamped(C, 9)),
        elected_again(stamped(A, 1)),
        configure(stamped(C, 9)),
        append(B1, START_LSN, 8),
    ],
    ids=["vote", "elected", "elected of a lesser one", "configure", "append"],
)
def test_a_safekeeper_that_has_left_refuses_all_else(event: Received) -> None:
    acceptor = left_acceptor()
    before = acceptor.control
    (refusal,) = acceptor.step(event)
    assert isinstance(refusal, Refuse)
    assert acceptor.control is before
    assert acceptor.streaming is None
    assert acceptor.step(BatchEnded(1)) == []


def test_a_safekeeper_that_has_left_names_the_present_members() -> None:
    (refusal,) = left_acceptor().step(vote_request(C))
    assert isinstance(refusal, Refuse)
    assert refusal.sqlstate == "55000"
    assert "this safekeeper has left timeline" in refusal.message
    assert "2 at 10.0.0.2:5454, 3, 4 at 10.0.0.4:5454" in refusal.hint
