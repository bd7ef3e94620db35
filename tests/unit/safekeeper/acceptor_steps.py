"""Builders of an acceptor's events; the content of the WAL does not matter to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from msgspec import structs
from new_timeline import INSTANCE, SERVER, TIMELINE, first_membership, new_control_state
from wal_log import START_LSN

from quorum_wal.consensus.ids import NodeId
from quorum_wal.consensus.membership import Membership, Stamp
from quorum_wal.consensus.messages import (
    PROTOCOL_VERSION,
    Append,
    Configure,
    Elected,
    ProposerGreeting,
    VoteRequest,
)
from quorum_wal.consensus.term_history import TermHistory
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.safekeeper.acceptor import Acceptor
from quorum_wal.safekeeper.events import Action, BatchEnded, Received

MEMBERS = first_membership(1, 2, 3)
#: Ballots in ascending order; the second pair shares a term.
A, B1, B2, C = (
    NodeId(term, uuid * 16) for term, uuid in [(1, b"a"), (2, b"b"), (2, b"c"), (3, b"d")]
)


def new_acceptor(flush_lsn: int = START_LSN, **control: Any) -> Acceptor:
    """An acceptor loaded from disk: a log up to `flush_lsn`, and this control state."""
    return Acceptor(1, INSTANCE, replace(new_control_state(MEMBERS), **control), flush_lsn)


def stamped(node_id: NodeId, generation: int = 1, membership: Membership = MEMBERS) -> Membership:
    """The membership that `node_id` sends when elected, or writes later."""
    return membership.stamped(Stamp(node_id, generation))


def history(*starts: tuple[NodeId, int]) -> TermHistory:
    """The history that every log begins with, then these ballots from these positions on."""
    terms = TermHistory.initial(START_LSN)
    for node_id, start_lsn in starts:
        terms = terms.extended(node_id, start_lsn)
    return terms


def greeting(connection: int = 1, **fields: Any) -> Received:
    message = ProposerGreeting(PROTOCOL_VERSION, TIMELINE, SERVER, b"u" * 16)
    return Received(connection, replace(message, **fields))


def vote_request(node_id: NodeId, connection: int = 1, stamp: Stamp | None = None) -> Received:
    """By default, of a proposer that counts by the greatest possible membership."""
    return Received(connection, VoteRequest(stamp or Stamp(node_id, 1), node_id))


def configure(membership: Membership, connection: int = 1) -> Received:
    return Received(connection, Configure(membership.stamp.author, membership))


def elected(
    node_id: NodeId, start_lsn: int, terms: TermHistory, connection: int = 1, **fields: Any
) -> Received:
    message = Elected(node_id, start_lsn, START_LSN, stamped(node_id), terms, TimelineHistory(1))
    return Received(connection, replace(message, **fields))


def append(
    node_id: NodeId,
    begin_lsn: int,
    length: int,
    connection: int = 1,
    record_end_lsn: int | None = None,
    **fields: Any,
) -> Received:
    """WAL that ends on a record boundary, unless `fields` name another one."""
    end_lsn = begin_lsn + length
    record_end_lsn = end_lsn if record_end_lsn is None else record_end_lsn
    message = Append(1, node_id, begin_lsn, end_lsn, record_end_lsn, 0, 0, bytes(length))
    return Received(connection, structs.replace(message, **fields))


def streaming_acceptor(node_id: NodeId = A, connection: int = 1, **control: Any) -> Acceptor:
    """An empty log that `node_id` streams to."""
    acceptor = new_acceptor(**control)
    acceptor.step(vote_request(node_id, connection))
    acceptor.step(elected(node_id, START_LSN, history((node_id, START_LSN)), connection))
    assert acceptor.streaming == connection
    return acceptor


def batch(acceptor: Acceptor, *events: Received) -> list[Action]:
    """Everything that arrived together: stepped, then flushed and answered once."""
    actions = [action for event in events for action in acceptor.step(event)]
    return actions + acceptor.step(BatchEnded(events[-1].connection))


def kinds(actions: list[Action]) -> list[str]:
    """The names of the actions; their order is the safety argument."""
    return [type(action).__name__ for action in actions]
