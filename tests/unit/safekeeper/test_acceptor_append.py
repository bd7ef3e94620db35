"""Append: the safekeeper's rules 4, 5 and 6: who may write and where, and when it is answered."""

from __future__ import annotations

from typing import Any

import pytest
from acceptor_steps import (
    B1,
    B2,
    A,
    C,
    append,
    batch,
    elected,
    history,
    kinds,
    new_acceptor,
    streaming_acceptor,
    vote_request,
)
from wal_log import START_LSN

from quorum_wal.consensus.ids import NodeId
from quorum_wal.consensus.messages import NO_FEEDBACK, AppendResponse, HotStandbyFeedback
from quorum_wal.safekeeper.acceptor import Acceptor
from quorum_wal.safekeeper.events import (
    Action,
    BatchEnded,
    Disconnected,
    FeedbackChanged,
    Refuse,
    Reply,
    SteadyTaken,
    WriteWal,
)


def position(offset: int) -> int:
    return START_LSN + offset


def the_answer(actions: list[Action]) -> AppendResponse:
    (reply,) = [action for action in actions if isinstance(action, Reply)]
    assert isinstance(reply.message, AppendResponse)
    return reply.message


def the_refusal(actions: list[Action]) -> str:
    (refusal,) = actions
    assert isinstance(refusal, Refuse)
    assert refusal.sqlstate in ("08P01", "55000")
    return refusal.message


# ---- rule 4: who may write, and where


def test_rule_4_a_promise_alone_does_not_allow_writing() -> None:
    """The log may have a diverged tail, which only Elected cuts."""
    acceptor = new_acceptor()
    acceptor.step(vote_request(A))
    assert "without Elected on this connection" in the_refusal(
        acceptor.step(append(A, START_LSN, 8))
    )


def test_rule_4_another_connection_of_the_same_proposer_must_be_elected_itself() -> None:
    acceptor = streaming_acceptor(A, connection=1)
    problem = the_refusal(acceptor.step(append(A, START_LSN, 8, connection=2)))
    assert "without Elected on this connection" in problem
    assert acceptor.streaming == 1


def test_rule_4_the_newest_connection_wins() -> None:
    """The older one may still deliver messages on their way: they are not written."""
    acceptor = streaming_acceptor(A, connection=1)
    batch(acceptor, append(A, position(0), 100, connection=1))
    acceptor.step(vote_request(A, connection=2))
    acceptor.step(elected(A, position(100), history((A, START_LSN)), connection=2))
    assert the_refusal(acceptor.step(append(A, position(100), 8, connection=1)))
    assert acceptor.step(BatchEnded(1)) == []
    assert kinds(acceptor.step(append(A, position(100), 50, connection=2))) == ["WriteWal"]
    acceptor.step(Disconnected(1))
    assert acceptor.streaming == 2


@pytest.mark.parametrize("promised", [B2, C], ids=["same term, greater uuid", "greater term"])
def test_rule_4_a_lesser_node_id_is_answered_with_the_promise(promised: NodeId) -> None:
    """Fenced: an old leader needs no other information."""
    acceptor = streaming_acceptor(B1)
    acceptor.step(vote_request(promised, connection=2))
    answer = the_answer(acceptor.step(append(B1, START_LSN, 100, connection=1)))
    assert answer.node_id == promised
    assert acceptor.written_lsn == START_LSN


def test_rule_4_a_greater_node_id_than_promised_is_refused() -> None:
    acceptor = streaming_acceptor(A)
    assert the_refusal(acceptor.step(append(C, START_LSN, 100)))
    assert acceptor.control.promised == A


@pytest.mark.parametrize("begin", [-8, 92, 101, 108])
def test_rule_4_neither_gap_nor_rewrite(begin: int) -> None:
    acceptor = streaming_acceptor(A)
    acceptor.step(append(A, START_LSN, 100))
    problem = the_refusal(acceptor.step(append(A, position(begin), 8)))
    assert problem == (f"append begins at 0/{position(begin):X}, expected 0/{position(100):X}")
    assert acceptor.written_lsn == position(100)


def test_a_record_cannot_end_behind_its_append() -> None:
    acceptor = streaming_acceptor(A)
    assert "before its record end" in the_refusal(
        acceptor.step(append(A, START_LSN, 100, record_end_lsn=position(101)))
    )


def test_an_append_at_another_generation_is_refused() -> None:
    acceptor = streaming_acceptor(A)
    problem = the_refusal(acceptor.step(append(A, START_LSN, 8, generation=2)))
    assert problem == "proposer is at membership generation 2, not 1"


# ---- rule 5: commit_lsn := max(own, min(sent, flush_lsn)); truncate_lsn := max(own, sent)


@pytest.mark.parametrize(
    ("sent", "committed"), [(0, 0), (40, 40), (100, 100), (101, 100), (10**6, 100)]
)
def test_rule_5_commit_follows_the_leader_as_far_as_the_flush(sent: int, committed: int) -> None:
    acceptor = streaming_acceptor(A)
    actions = batch(acceptor, append(A, START_LSN, 100, commit_lsn=position(sent)))
    assert the_answer(actions).commit_lsn == position(committed)


def test_rule_5_a_commit_that_was_sent_early_is_remembered_until_the_flush() -> None:
    acceptor = streaming_acceptor(A)
    acceptor.step(append(A, position(0), 100, commit_lsn=position(150)))
    assert acceptor.commit_lsn == START_LSN, "not flushed yet"
    batch(acceptor, append(A, position(100), 100))
    assert acceptor.commit_lsn == position(150)


def test_rule_5_positions_never_decrease() -> None:
    acceptor = streaming_acceptor(A)
    first = {"commit_lsn": position(80), "truncate_lsn": position(60)}
    batch(acceptor, append(A, position(0), 100, **first))
    older = {"commit_lsn": position(10), "truncate_lsn": position(20)}
    batch(acceptor, append(A, position(100), 100, **older))
    assert (acceptor.commit_lsn, acceptor.truncate_lsn) == (position(80), position(60))


def test_a_commit_sent_by_an_older_leader_is_forgotten() -> None:
    """It was about that leader's own log, beyond this one; the next leader's may differ."""
    acceptor = streaming_acceptor(A)
    batch(acceptor, append(A, START_LSN, 100, commit_lsn=position(900)))
    acceptor.step(vote_request(C, connection=2))
    acceptor.step(elected(C, position(100), history((A, START_LSN), (C, position(100))), 2))
    batch(acceptor, append(C, position(100), 100, connection=2))
    assert acceptor.commit_lsn == position(100)


def test_a_heartbeat_carries_positions_and_no_wal() -> None:
    acceptor = streaming_acceptor(A)
    batch(acceptor, append(A, START_LSN, 100))
    news = {"commit_lsn": position(100), "truncate_lsn": position(50)}
    actions = batch(acceptor, append(A, position(100), 0, record_end_lsn=0, **news))
    assert kinds(actions) == ["Reply"], "nothing to write, nothing to flush"
    assert the_answer(actions).commit_lsn == position(100)
    assert acceptor.truncate_lsn == position(50)
    assert acceptor.flush_lsn == position(100)


# ---- rule 6: the answer comes after the flush that covers it


def test_rule_6_write_then_flush_then_answer() -> None:
    acceptor = streaming_acceptor(A)
    event = append(A, START_LSN, 100)
    actions = batch(acceptor, event)
    assert kinds(actions) == ["WriteWal", "FlushWal", "Reply"]
    assert actions[0] == WriteWal(START_LSN, event.message.wal)  # type: ignore[union-attr]
    answer = the_answer(actions)
    assert answer.node_id == A
    assert answer.flush_lsn == answer.durable_lsn == position(100)


def test_rule_6_a_flush_is_shared_by_all_that_arrived_together() -> None:
    acceptor = streaming_acceptor(A)
    appends = [append(A, position(at), 100) for at in (0, 100, 200)]
    actions = batch(acceptor, *appends)
    assert kinds(actions) == ["WriteWal", "WriteWal", "WriteWal", "FlushWal", "Reply"]
    assert the_answer(actions).flush_lsn == position(300)


def test_rule_6_nothing_is_claimed_before_the_flush() -> None:
    acceptor = streaming_acceptor(A)
    acceptor.step(append(A, START_LSN, 100))
    assert acceptor.written_lsn == position(100)
    assert acceptor.flush_lsn == acceptor.durable_lsn == START_LSN


@pytest.mark.parametrize("connection", [1, 2], ids=["the streaming one", "any other"])
def test_rule_6_a_disconnect_flushes(connection: int) -> None:
    acceptor = streaming_acceptor(A, connection=1)
    acceptor.step(append(A, START_LSN, 100))
    assert kinds(acceptor.step(Disconnected(connection))) == ["FlushWal"]
    assert acceptor.flush_lsn == position(100)
    assert acceptor.streaming == (None if connection == 1 else 1)
    assert acceptor.step(Disconnected(connection)) == []


def test_a_batch_of_a_connection_that_does_not_stream_is_not_answered() -> None:
    acceptor = streaming_acceptor(A, connection=1)
    acceptor.step(append(A, START_LSN, 100))
    assert acceptor.step(BatchEnded(2)) == []
    assert acceptor.flush_lsn == START_LSN


# ---- record boundaries


def feed(acceptor: Acceptor, *parts: tuple[int, int]) -> list[tuple[int, int]]:
    """Appends of (length, boundary), each flushed; returns the answers' (flush, durable)."""
    answers = []
    for length, boundary in parts:
        begin_lsn = acceptor.written_lsn
        event = append(A, begin_lsn, length, record_end_lsn=position(boundary))
        answer = the_answer(batch(acceptor, event))
        answers.append((answer.flush_lsn - START_LSN, answer.durable_lsn - START_LSN))
    return answers


def test_flush_lsn_is_the_last_boundary_below_the_flushed_bytes() -> None:
    """A record of 250 bytes that comes in three parts: no log ever ends inside it."""
    acceptor = streaming_acceptor(A)
    parts = [(100, 50), (100, 50), (100, 300)]
    assert feed(acceptor, *parts) == [(50, 100), (50, 200), (300, 300)]


@pytest.mark.parametrize("fields", [{}, {"commit_lsn": position(100)}])
def test_commit_lsn_is_a_record_boundary(fields: dict[str, Any]) -> None:
    acceptor = streaming_acceptor(A)
    event = append(A, START_LSN, 100, record_end_lsn=position(64), **fields)
    assert the_answer(batch(acceptor, event)).commit_lsn == (position(64) if fields else START_LSN)


# ---- the replicas' feedback


def test_answers_carry_the_feedback_of_replicas_until_they_disconnect() -> None:
    acceptor = streaming_acceptor(A)
    needed = HotStandbyFeedback(1, 700, 2)
    assert acceptor.step(FeedbackChanged(needed)) == []
    assert the_answer(batch(acceptor, append(A, START_LSN, 0))).feedback == needed
    assert acceptor.step(FeedbackChanged(NO_FEEDBACK)) == []
    assert the_answer(batch(acceptor, append(A, START_LSN, 0))).feedback == NO_FEEDBACK


def test_rule_6_a_batch_is_answered_once_however_many_messages_it_has() -> None:
    """The proposer assumes that the n-th answer is for its n-th message or a later one."""
    acceptor = new_acceptor()
    acceptor.step(vote_request(A))
    one = batch(acceptor, elected(A, START_LSN, history((A, START_LSN))))
    assert [type(action) for action in one].count(Reply) == 1
    heartbeat = append(A, START_LSN, 0)
    many = batch(
        acceptor, heartbeat, heartbeat, append(A, START_LSN, 100), append(A, position(100), 0)
    )
    assert [type(action) for action in many].count(Reply) == 1
    assert the_answer(many).flush_lsn == position(100)


# ---- the steady path


def test_the_steady_paths_result_equals_that_of_single_messages() -> None:
    by_messages, steady = streaming_acceptor(), streaming_acceptor()
    batch(by_messages, append(A, START_LSN, 100, record_end_lsn=position(80)))
    batch(by_messages, append(A, position(100), 60, commit_lsn=position(120), truncate_lsn=9))
    assert steady.step(SteadyTaken(position(160), position(160), position(120), 9)) == []
    assert vars(steady) == vars(by_messages)
