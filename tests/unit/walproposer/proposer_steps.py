"""Helpers to send events to a proposer core: peer i is safekeeper i + 1."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from new_timeline import SERVER, TIMELINE
from wal_log import START_LSN, WalLog

from quorum_wal.consensus.ids import NodeId
from quorum_wal.consensus.membership import INSTANCE_BYTES, Member, Membership, Stamp
from quorum_wal.consensus.messages import AppendResponse, SafekeeperGreeting, VoteResponse
from quorum_wal.consensus.term_history import TermHistory
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.walproposer.primary.primary import Primary
from quorum_wal.walproposer.stream.candidacy import Candidacy
from quorum_wal.walproposer.stream.events import (
    Action,
    PeerConnected,
    PeerMessage,
    Send,
    Stop,
    TailRead,
    UpstreamStarted,
    WalReceived,
)
from quorum_wal.walproposer.stream.proposer import Proposer, State

T = TypeVar("T")

UUID = b"p" * 16
#: The ballot of a proposer that is the first one ever.
OURS = NodeId(1, UUID)
#: Reports WAL without an end.
PRIMARY = Primary(SERVER, TimelineHistory(1), 1 << 40, START_LSN)


def ballot(term: int, letter: str = "o") -> NodeId:
    return NodeId(term, letter.encode() * 16)


def member(number: int, host: str = "") -> Member:
    return Member(number, bytes([number]) * INSTANCE_BYTES, host or f"sk{number}", 5454)


def members(
    old: tuple[int, ...],
    new: tuple[int, ...] = (),
    generation: int = 1,
    author: NodeId = NodeId.ZERO,
) -> Membership:
    """`[author/generation old + new]`, each with its own address."""
    roster = tuple(member(number) for number in sorted({*old, *new}))
    return Membership(Stamp(author, generation), old, new, roster)


MEMBERS = members((1, 2, 3))


def history(*starts: tuple[NodeId, int]) -> TermHistory:
    terms = TermHistory.initial(START_LSN)
    for node_id, start_lsn in starts:
        terms = terms.extended(node_id, start_lsn)
    return terms


def new_proposer(
    primary: Primary | None = PRIMARY,
    count: int = 3,
    predecessor: NodeId | None = None,
) -> Proposer:
    """It is given the addresses of the safekeepers 1 to `count`."""
    return Proposer(candidacy(count, predecessor), primary)


def candidacy(count: int = 3, predecessor: NodeId | None = None) -> Candidacy:
    addresses = tuple((f"sk{number + 1}", 5454) for number in range(count))
    return Candidacy(TIMELINE, SERVER, addresses, UUID, predecessor)


def connect(proposer: Proposer, peer: int) -> list[Action]:
    return proposer.step(PeerConnected(peer))


def greet(
    proposer: Proposer, peer: int, promised: NodeId = NodeId.ZERO, **fields: Any
) -> list[Action]:
    """Connected, and greeted by the safekeeper at the other end; peer 0 is safekeeper 1."""
    connect(proposer, peer)
    number = fields.pop("safekeeper_id", peer + 1)
    membership = proposer.membership or MEMBERS
    message = SafekeeperGreeting(number, member(number).instance, False, promised, membership)
    return proposer.step(PeerMessage(peer, replace(message, **fields)))


def vote(proposer: Proposer, peer: int, flush_lsn: int = START_LSN, **fields: Any) -> list[Action]:
    """A granted vote of a safekeeper with an empty log, unless given otherwise."""
    assert proposer.node_id is not None
    assert proposer.membership is not None
    message = VoteResponse(
        granted=True,
        promised=proposer.node_id,
        flush_lsn=flush_lsn,
        commit_lsn=START_LSN,
        truncate_lsn=START_LSN,
        timeline_start_lsn=START_LSN,
        membership=proposer.membership,
        term_history=history(),
        tli_history=TimelineHistory(1),
    )
    return proposer.step(PeerMessage(peer, replace(message, **fields)))


def answer(
    proposer: Proposer,
    peer: int,
    flush_lsn: int,
    node_id: NodeId | None = None,
    durable_lsn: int | None = None,
    commit_lsn: int = START_LSN,
    generation: int | None = None,
) -> list[Action]:
    """An answer of one that has the current membership on disk, unless given otherwise."""
    node_id = proposer.node_id if node_id is None else node_id
    assert node_id is not None
    durable_lsn = flush_lsn if durable_lsn is None else durable_lsn
    if generation is None:
        generation = proposer.membership.generation if proposer.membership is not None else 1
    return proposer.step(
        PeerMessage(peer, AppendResponse(generation, node_id, flush_lsn, durable_lsn, commit_lsn))
    )


def campaigning(
    peers: tuple[int, ...] = (0, 1), membership: Membership = MEMBERS, **kwargs: Any
) -> Proposer:
    """Greeted by these, who have this membership; their votes requested."""
    kwargs.setdefault("count", len(membership.all_members))
    proposer = new_proposer(**kwargs)
    for peer in peers:
        greet(proposer, peer, membership=membership)
    assert proposer.state is State.CAMPAIGNING
    return proposer


def leading(
    log: WalLog | None = None, peers: tuple[int, ...] = (0, 1), membership: Membership = MEMBERS
) -> Proposer:
    """The leader of a log that `peers` have whole, with a primary that has just the same."""
    proposer = campaigning(peers, membership)
    log = log or WalLog()
    for peer in peers:
        vote(proposer, peer, log.lsn)
    proposer.step(UpstreamStarted(log.lsn))
    if log.wal:
        proposer.step(TailRead(bytes(log.wal)))
        proposer.step(WalReceived(START_LSN, bytes(log.wal)))
    assert proposer.state is State.LEADING
    return proposer


def of_kind(actions: list[Action], kind: type[T]) -> list[T]:
    return [action for action in actions if isinstance(action, kind)]


def sent(actions: list[Action], kind: type[T]) -> list[tuple[int, T]]:
    """The messages of this kind, with their peers."""
    return [
        (a.peer, a.message) for a in actions if isinstance(a, Send) and isinstance(a.message, kind)
    ]


def the_stop(actions: list[Action]) -> Stop:
    assert isinstance(actions[-1], Stop), actions
    return actions[-1]
