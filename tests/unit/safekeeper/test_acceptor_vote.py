"""Greetings and votes: the safekeeper's rules 1 and 2, the order of the actions, every refusal."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from typing import Any

import pytest
from acceptor_steps import (
    B1,
    B2,
    MEMBERS,
    A,
    C,
    append,
    elected,
    greeting,
    history,
    kinds,
    new_acceptor,
    streaming_acceptor,
    vote_request,
)
from new_timeline import INSTANCE, SERVER
from wal_log import START_LSN

from quorum_wal.consensus.ids import NodeId, TimelineId
from quorum_wal.consensus.messages import SafekeeperGreeting, VoteResponse
from quorum_wal.safekeeper.acceptor import Acceptor
from quorum_wal.safekeeper.events import Action, CloseConnection, PersistControl, Refuse, Reply


def the_vote(actions: list[Action]) -> VoteResponse:
    (reply,) = [action for action in actions if isinstance(action, Reply)]
    assert isinstance(reply.message, VoteResponse)
    return reply.message


# ---- rule 1: positions travel with the vote, never with the greeting


def test_rule_1_a_greeting_contains_the_promise_and_no_positions() -> None:
    acceptor = new_acceptor(promised=A)
    answer = SafekeeperGreeting(1, INSTANCE, False, A, MEMBERS)
    assert acceptor.step(greeting(7)) == [Reply(7, answer)]
    assert not [f.name for f in fields(SafekeeperGreeting) if "lsn" in f.name]


def test_a_greeting_changes_nothing() -> None:
    acceptor = streaming_acceptor()
    before = (acceptor.control, acceptor.streaming)
    acceptor.step(greeting(2))
    assert (acceptor.control, acceptor.streaming) == before


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"protocol_version": 9}, "protocol version 9, this safekeeper 2"),
        ({"timeline": TimelineId(b"x" * 16, b"y" * 16)}, "greeting for timeline 7878"),
        ({"server": replace(SERVER, system_id=9)}, "system identifier 9, the timeline belongs to"),
        ({"server": replace(SERVER, pg_version=150004)}, "Postgres 15 .* created for 16"),
        ({"server": replace(SERVER, wal_seg_size=2**24)}, "16777216 byte segments"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_foreign_proposer_is_refused(fields: dict[str, Any], problem: str) -> None:
    acceptor = new_acceptor()
    (refusal,) = acceptor.step(greeting(**fields))
    assert isinstance(refusal, Refuse)
    assert re.search(problem, refusal.message), refusal.message


def test_another_minor_version_is_accepted() -> None:
    (reply,) = new_acceptor().step(greeting(server=replace(SERVER, pg_version=160009)))
    assert isinstance(reply, Reply)


@pytest.mark.parametrize(
    "event",
    [greeting(), vote_request(A), elected(A, START_LSN, history((A, START_LSN)))],
    ids=["greeting", "vote", "elected"],
)
def test_a_timeline_that_is_being_created_takes_no_part(event: Any) -> None:
    acceptor = new_acceptor(active=False)
    (refusal,) = acceptor.step(event)
    assert isinstance(refusal, Refuse)
    assert "is not active" in refusal.message
    assert acceptor.control.promised == NodeId.ZERO


# ---- rule 2: granted when >=; flush, persist, then answer


def test_rule_2_flush_then_persist_then_answer() -> None:
    """The position in the vote must survive a power loss, and so must the promise."""
    acceptor = streaming_acceptor(A)
    acceptor.step(append(A, START_LSN, 100))
    actions = acceptor.step(vote_request(C, connection=2))
    assert kinds(actions) == ["CloseConnection", "FlushWal", "PersistControl", "Reply"]
    assert isinstance(actions[2], PersistControl)
    assert actions[2].state.promised == C
    vote = the_vote(actions)
    assert vote.granted
    assert vote.promised == C
    assert vote.flush_lsn == START_LSN + 100


def test_rule_2_what_is_flushed_is_not_flushed_again() -> None:
    assert kinds(new_acceptor().step(vote_request(A))) == ["PersistControl", "Reply"]


def test_rule_2_an_equal_node_id_is_the_same_proposer_again() -> None:
    acceptor = new_acceptor(promised=B1)
    actions = acceptor.step(vote_request(B1))
    assert kinds(actions) == ["Reply"], "the promise is on disk already"
    assert the_vote(actions).granted


@pytest.mark.parametrize(
    ("promised", "asked", "granted"),
    [(A, B1, True), (B1, B2, True), (B2, B1, False), (C, B2, False), (C, A, False)],
)
def test_rule_2_node_ids_are_ordered_as_pairs(
    promised: NodeId, asked: NodeId, granted: bool
) -> None:
    """Equal terms of two proposers are not equal ballots: the uuid decides."""
    acceptor = new_acceptor(promised=promised)
    vote = the_vote(acceptor.step(vote_request(asked)))
    assert vote.granted is granted
    assert vote.promised == max(promised, asked)
    assert acceptor.control.promised == max(promised, asked)


def test_rule_2_a_refusal_carries_the_promise_and_changes_nothing() -> None:
    acceptor = streaming_acceptor(B1, connection=1)
    acceptor.step(append(B1, START_LSN, 100))
    actions = acceptor.step(vote_request(A, connection=2))
    assert kinds(actions) == ["Reply"]
    assert not the_vote(actions).granted
    assert the_vote(actions).promised == B1
    assert acceptor.streaming == 1
    assert acceptor.step(append(B1, START_LSN + 100, 8, connection=1))


@pytest.mark.parametrize("node_id", [A, C], ids=["the same proposer", "a greater one"])
def test_rule_4_a_vote_ends_the_older_stream(node_id: NodeId) -> None:
    """The positions in the vote must stay true until its connection streams."""
    acceptor = streaming_acceptor(A, connection=1)
    actions = acceptor.step(vote_request(node_id, connection=2))
    assert isinstance(actions[0], CloseConnection)
    assert actions[0].connection == 1
    assert acceptor.streaming is None
    (answer,) = acceptor.step(append(A, START_LSN, 8, connection=1))
    assert isinstance(answer, Refuse if node_id == A else Reply)
    assert acceptor.written_lsn == START_LSN


def test_a_vote_on_the_streaming_connection_itself_ends_its_stream() -> None:
    acceptor = streaming_acceptor(A)
    assert kinds(acceptor.step(vote_request(A))) == ["Reply"]
    assert acceptor.streaming is None


# ---- the content of a vote


def voter_with_a_short_log() -> Acceptor:
    """Its history names two ballots whose first bytes it does not have."""
    terms = history((A, START_LSN), (B1, START_LSN + 500), (C, START_LSN + 900))
    return new_acceptor(START_LSN + 300, term_history=terms, promised=C)


def test_the_history_in_a_vote_is_clipped_to_the_flushed_log() -> None:
    """A crash between the truncation and the adoption of a history leaves exactly this state."""
    vote = the_vote(voter_with_a_short_log().step(vote_request(C)))
    assert vote.term_history == history((A, START_LSN))
    assert vote.last_log_node_id == A


def test_a_vote_names_all_positions() -> None:
    acceptor = new_acceptor(
        START_LSN + 300, commit_lsn=START_LSN + 200, truncate_lsn=START_LSN + 100
    )
    vote = the_vote(acceptor.step(vote_request(A)))
    assert (vote.flush_lsn, vote.commit_lsn, vote.truncate_lsn, vote.timeline_start_lsn) == (
        START_LSN + 300,
        START_LSN + 200,
        START_LSN + 100,
        START_LSN,
    )


def test_a_commit_hint_beyond_the_log_is_not_trusted() -> None:
    acceptor = new_acceptor(START_LSN + 300, commit_lsn=START_LSN + 400, lost_lsn=START_LSN + 400)
    assert the_vote(acceptor.step(vote_request(A))).commit_lsn == START_LSN + 300


def test_the_flush_position_in_a_vote_is_a_record_boundary() -> None:
    """Bytes of an unfinished record are durable, but no log may start behind them."""
    acceptor = streaming_acceptor(A)
    acceptor.step(append(A, START_LSN, 100, record_end_lsn=START_LSN + 64))
    vote = the_vote(acceptor.step(vote_request(C, connection=2)))
    assert vote.flush_lsn == START_LSN + 64
    assert acceptor.durable_lsn == START_LSN + 100
