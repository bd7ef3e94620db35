"""The receiving end of a daisy chain: which WAL is taken, where, and how much counts as flushed."""

from __future__ import annotations

from typing import Any

import pytest
from acceptor_steps import (
    A,
    C,
    append,
    batch,
    configure,
    elected,
    history,
    kinds,
    stamped,
    streaming_acceptor,
    vote_request,
)
from wal_log import START_LSN

from quorum_wal.consensus.ids import NodeId
from quorum_wal.consensus.messages import AppendResponse, Follow
from quorum_wal.safekeeper import named_ends
from quorum_wal.safekeeper.acceptor import Acceptor
from quorum_wal.safekeeper.events import (
    Action,
    BatchEnded,
    ChainedWal,
    Disconnected,
    Received,
    Refuse,
    Reply,
    TakeWal,
)
from quorum_wal.safekeeper.named_ends import ENDS_MAX, NamedEnds


def at(offset: int) -> int:
    return START_LSN + offset


def follow(node_id: NodeId = A, connection: int = 1, **fields: Any) -> Received:
    wanted = {"generation": 1, "host": "10.0.0.3", "port": 5454, **fields}
    return Received(connection, Follow(node_id=node_id, **wanted))


def chained_acceptor() -> Acceptor:
    """It has 100 bytes from the leader."""
    acceptor = streaming_acceptor(A)
    batch(acceptor, append(A, START_LSN, 100))
    assert acceptor.step(follow()) == [TakeWal(1, A, "10.0.0.3", 5454, at(100))]
    return acceptor


def wal(begin: int, length: int, node_id: NodeId = A, connection: int = 1) -> ChainedWal:
    return ChainedWal(connection, node_id, at(begin), bytes(length))


def news(end: int, **fields: Any) -> Received:
    """The leader's log ends there, with a record."""
    return append(A, at(end), 0, **fields)


def the_refusal(actions: list[Action]) -> str:
    (refusal,) = actions
    assert isinstance(refusal, Refuse)
    return refusal.message


def test_chained_wal_is_written_then_flushed_then_answered() -> None:
    acceptor = chained_acceptor()
    acceptor.step(news(200, commit_lsn=at(200)))
    actions = acceptor.step(wal(100, 100)) + acceptor.step(BatchEnded(1))
    assert kinds(actions) == ["WriteWal", "FlushWal", "Reply"]
    reply = actions[-1]
    assert isinstance(reply, Reply)
    assert isinstance(reply.message, AppendResponse)
    assert reply.connection == 1
    assert (reply.message.flush_lsn, reply.message.commit_lsn) == (at(200), at(200))


def test_a_record_end_above_what_is_written_does_not_count() -> None:
    acceptor = chained_acceptor()
    acceptor.step(news(180))
    acceptor.step(news(300))
    batch(acceptor, news(300))
    assert acceptor.flush_lsn == at(100)
    acceptor.step(wal(100, 150))
    acceptor.step(BatchEnded(1))
    assert (acceptor.flush_lsn, acceptor.durable_lsn) == (at(180), at(250))
    acceptor.step(wal(250, 50))
    acceptor.step(BatchEnded(1))
    assert acceptor.flush_lsn == at(300)


def test_wal_that_the_leader_has_not_named_yet_is_durable_and_not_flushed() -> None:
    """The source may receive it first. It counts when the leader names it."""
    acceptor = chained_acceptor()
    acceptor.step(wal(100, 50))
    acceptor.step(BatchEnded(1))
    assert (acceptor.flush_lsn, acceptor.durable_lsn) == (at(100), at(150))
    batch(acceptor, news(150))
    assert acceptor.flush_lsn == at(150)


def test_a_leader_may_not_send_wal_to_a_chained_member() -> None:
    acceptor = chained_acceptor()
    assert "taken from another" in the_refusal(acceptor.step(append(A, at(100), 8)))


def test_wal_far_beyond_the_leaders_log_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source may have WAL that the leader has not named yet, but not any amount."""
    monkeypatch.setattr(named_ends, "AHEAD_BYTES_MAX", 1000)
    acceptor = chained_acceptor()
    assert kinds(acceptor.step(wal(100, 1000))) == ["WriteWal"]
    assert "the leader's log ends at" in the_refusal(acceptor.step(wal(1100, 1)))
    # Inside a long record the leader names no new record end.
    acceptor.step(append(A, at(300), 0, record_end_lsn=at(100)))
    assert kinds(acceptor.step(wal(1100, 200))) == ["WriteWal"]
    assert acceptor.record_end_lsn == at(100)


def test_chained_wal_begins_where_the_log_ends() -> None:
    acceptor = chained_acceptor()
    for begin in (92, 108):
        assert "chained WAL begins at" in the_refusal(acceptor.step(wal(begin, 8)))
    assert acceptor.written_lsn == at(100)


def test_wal_that_was_read_for_another_ballot_is_ignored() -> None:
    acceptor = chained_acceptor()
    assert acceptor.step(wal(100, 8, node_id=C)) == []
    assert acceptor.written_lsn == at(100)


def test_wal_that_was_read_for_another_connection_is_ignored() -> None:
    acceptor = chained_acceptor()
    assert acceptor.step(wal(100, 8, connection=2)) == []
    assert acceptor.written_lsn == at(100)


def test_a_vote_an_elected_and_the_end_of_the_connection_end_the_chain() -> None:
    for event in (
        vote_request(C, connection=2),
        elected(A, at(100), history((A, START_LSN))),
        Disconnected(1),
    ):
        acceptor = chained_acceptor()
        acceptor.step(event)
        assert not acceptor.is_chained
        assert acceptor.step(wal(100, 8)) == []
        assert acceptor.written_lsn == at(100)


def test_the_chain_continues_under_another_membership() -> None:
    acceptor = chained_acceptor()
    batch(acceptor, configure(stamped(A, 2)))
    assert "generation 1, not 2" in the_refusal(acceptor.step(news(200)))
    acceptor.step(news(200, generation=2))
    acceptor.step(wal(100, 100))
    assert acceptor.record_end_lsn == at(200)


def test_follow_is_for_a_streaming_connection_once_and_names_an_address() -> None:
    acceptor = streaming_acceptor(A)
    assert "without Elected" in the_refusal(acceptor.step(follow(connection=2)))
    assert "generation 2, not 1" in the_refusal(acceptor.step(follow(generation=2)))
    for nowhere in ({"host": ""}, {"port": 0}):
        assert "expected one address" in the_refusal(acceptor.step(follow(**nowhere)))
    assert kinds(acceptor.step(follow())) == ["TakeWal"]
    assert "once" in the_refusal(acceptor.step(follow(host="10.0.0.4")))


def test_an_old_leader_that_chains_is_answered_with_the_promise() -> None:
    acceptor = streaming_acceptor(A)
    acceptor.step(vote_request(C, connection=2))
    (reply,) = acceptor.step(follow())
    assert isinstance(reply, Reply)
    assert isinstance(reply.message, AppendResponse)
    assert reply.message.node_id == C


def test_no_steady_state_while_chained() -> None:
    """The Appends of a chained connection differ."""
    acceptor = streaming_acceptor(A)
    batch(acceptor, append(A, START_LSN, 100))
    assert acceptor.steady_state() is not None
    acceptor.step(follow())
    assert acceptor.steady_state() is None


def test_named_ends_are_bounded_and_keep_the_newest() -> None:
    ends = NamedEnds(0)
    for lsn in range(1, ENDS_MAX + 11):
        ends.name(lsn, lsn)
    assert ends.reached(ENDS_MAX + 9) == ENDS_MAX - 1
    assert ends.reached(ENDS_MAX + 10) == ENDS_MAX + 10
    ends.name(5, 5)
    assert ends.reached(4) == 0
