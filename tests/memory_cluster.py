"""Proposer cores and acceptor cores joined by links: a cluster without I/O, time or chance.

Each method is one thing that can happen in the world: a message arrives, a connection breaks, the
power fails. Who calls them decides the order: a script line by line, or a seeded random choice.

A link is a TCP connection. Its two ends learn of its end one after the other, so the node may
still read what an older connection brought while a newer one streams.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

from memory_node import SERVER, TIMELINE, MemoryNode
from safety import Safety
from wal_builder import START_LSN, WalBuilder

from consensus.membership import Membership
from consensus.messages import ProposerMessage, SafekeeperMessage
from pgwal.history import TimelineHistory
from safekeeper.events import Action as NodeAction
from safekeeper.events import (
    BatchEnded,
    CloseConnection,
    Disconnected,
    Received,
    Refuse,
    Reply,
)
from safekeeper.events import Event as NodeEvent
from walproposer.events import (
    Action,
    CatchUpLost,
    CatchUpWal,
    ClosePeer,
    Event,
    PeerConnected,
    PeerLost,
    PeerMessage,
    Primary,
    ReadTail,
    Send,
    StartCatchUp,
    StartUpstream,
    Stop,
    StopCatchUp,
    TailRead,
    Tick,
    UpstreamStarted,
    WalReceived,
)
from walproposer.proposer import Candidacy, Proposer


class Observer(Protocol):
    """Is told what happened, after the actions were carried out."""

    def node_stepped(
        self, node: MemoryNode, event: NodeEvent, actions: list[NodeAction]
    ) -> None: ...

    def proposer_stepped(
        self, process: ProposerProcess, event: Event, actions: list[Action]
    ) -> None: ...


@dataclass(eq=False)
class Link:
    """A connection between a proposer and a node; numbers are never used twice."""

    number: int
    process: ProposerProcess
    node: MemoryNode
    to_node: deque[ProposerMessage] = field(default_factory=deque)
    to_proposer: deque[SafekeeperMessage] = field(default_factory=deque)
    is_open_at_node: bool = True
    is_open_at_proposer: bool = True
    #: The node has ordered its end; what arrived before may still be read.
    is_closing: bool = False


@dataclass(eq=False)
class DonorRead:
    """StartCatchUp: the log of `donor`, from `next_lsn` on."""

    donor: MemoryNode
    next_lsn: int


@dataclass(eq=False)
class ProposerProcess:
    """An incarnation with its connections; `primary` is the log of its Postgres."""

    name: str
    core: Proposer
    primary: WalBuilder | None
    is_up: bool = True
    stopped: Stop | None = None
    links: dict[int, Link] = field(default_factory=dict)
    #: From StartUpstream on: the next byte its primary sends.
    upstream_lsn: int | None = None
    is_upstream_started: bool = False
    tail_read: ReadTail | None = None
    donor_reads: dict[int, DonorRead] = field(default_factory=dict)

    @property
    def is_running(self) -> bool:
        return self.is_up and self.stopped is None


class MemoryCluster:
    """`names[i]` is the safekeeper with id i + 1; peer i of every proposer is its address."""

    def __init__(self, names: Iterable[str], observers: Iterable[Observer] = ()) -> None:
        names = list(names)
        self.membership = Membership(1, tuple(range(1, len(names) + 1)))
        self.nodes = [MemoryNode(n, i, self.membership) for i, n in enumerate(names, 1)]
        self.safety = Safety(self.membership, self.nodes)
        self.observers: list[Observer] = [self.safety, *observers]
        self.processes: list[ProposerProcess] = []
        self.links: dict[int, Link] = {}
        self._numbers = count(1)
        for node in self.nodes:
            self.safety.node_restarted(node)

    # ---- proposers

    def start(
        self,
        name: str,
        primary: WalBuilder | None,
        tli_history: TimelineHistory | None = None,
        *,
        proposer_uuid: bytes | None = None,
        flush_lsn: int | None = None,
    ) -> ProposerProcess:
        """A new incarnation. `flush_lsn` is where its primary says that its WAL ends."""
        facts = None
        if primary is not None:
            end_lsn = primary.lsn if flush_lsn is None else flush_lsn
            facts = Primary(SERVER, tli_history or TimelineHistory(1), end_lsn, START_LSN)
        candidacy = Candidacy(
            timeline=TIMELINE,
            server=SERVER,
            membership=self.membership,
            proposer_uuid=proposer_uuid or name.encode().ljust(16, b"\0"),
            peers_count=len(self.nodes),
        )
        process = ProposerProcess(name, Proposer(candidacy, facts), primary)
        self.processes.append(process)
        return process

    def kill(self, process: ProposerProcess) -> None:
        """The process is gone; what it had sent is still on its way."""
        process.is_up = False
        for link in process.links.values():
            link.is_open_at_proposer = False
            link.to_proposer.clear()
        process.links.clear()
        process.donor_reads.clear()

    def step(self, process: ProposerProcess, event: Event) -> list[Action]:
        actions = process.core.step(event)
        for action in actions:
            self._carry_out(process, action)
        for observer in self.observers:
            observer.proposer_stepped(process, event, actions)
        if process.stopped is not None:
            self.kill(process)
        return actions

    def _carry_out(self, process: ProposerProcess, action: Action) -> None:
        match action:
            case Send(peer, message):
                if peer in process.links:
                    process.links[peer].to_node.append(message)
            case ClosePeer(peer):
                self._forget(process, peer)
            case StartUpstream(begin_lsn):
                process.upstream_lsn = begin_lsn
            case ReadTail():
                process.tail_read = action
            case StartCatchUp(peer, donor, begin_lsn):
                process.donor_reads[peer] = DonorRead(self.nodes[donor], begin_lsn)
            case StopCatchUp(peer):
                process.donor_reads.pop(peer, None)
            case Stop():
                process.stopped = action

    def _forget(self, process: ProposerProcess, peer: int) -> None:
        link = process.links.pop(peer, None)
        if link is not None:
            link.is_open_at_proposer = False
            link.to_proposer.clear()

    def tick(self, process: ProposerProcess, now_ms: int) -> None:
        self.step(process, Tick(now_ms))

    # ---- links

    def connect(self, process: ProposerProcess, node: MemoryNode) -> Link:
        assert node.acceptor is not None
        peer = self.nodes.index(node)
        assert peer not in process.links
        link = Link(next(self._numbers), process, node)
        self.links[link.number] = process.links[peer] = link
        self.step(process, PeerConnected(peer))
        return link

    def lose(self, link: Link, reason: str = "connection lost") -> None:
        """The proposer learns that the connection is gone; the node does not yet."""
        peer = self.nodes.index(link.node)
        self._forget(link.process, peer)
        self.step(link.process, PeerLost(peer, reason))

    def disconnect(self, link: Link) -> None:
        """The node learns that the connection is gone."""
        if link.is_open_at_node:
            link.is_open_at_node = False
            link.to_node.clear()
            self._node_step(link.node, Disconnected(link.number))
        if not link.is_open_at_proposer:
            self.links.pop(link.number, None)

    def deliver_to_node(self, link: Link) -> ProposerMessage:
        """One message is read and executed; the answer that a flush must cover comes later."""
        message = link.to_node.popleft()
        self._node_step(link.node, Received(link.number, message))
        return message

    def end_batch(self, link: Link) -> None:
        """The node has read all there is: flush and answer."""
        self._node_step(link.node, BatchEnded(link.number))

    def deliver_to_proposer(self, link: Link) -> SafekeeperMessage:
        message = link.to_proposer.popleft()
        self.step(link.process, PeerMessage(self.nodes.index(link.node), message))
        return message

    # ---- nodes

    def _node_step(self, node: MemoryNode, event: NodeEvent) -> None:
        actions = node.step(event, self.safety.replied)
        for observer in self.observers:
            observer.node_stepped(node, event, actions)
        for action in actions:
            self._answer(action)

    def _answer(self, action: NodeAction) -> None:
        match action:
            case Reply(connection, message):
                link = self.links.get(connection)
                if link is not None and link.is_open_at_proposer:
                    link.to_proposer.append(message)
            case CloseConnection(connection):
                if connection in self.links:
                    self.links[connection].is_closing = True
            case Refuse(connection):
                self.disconnect(self.links[connection])

    def lose_power(self, node: MemoryNode, kept_bytes: int = 0) -> None:
        """Of what was not flushed, the first `kept_bytes` survive. Answers sent before arrive."""
        node.lose_power(kept_bytes)
        for link in list(self.links.values()):
            if link.node is node:
                link.is_open_at_node = False
                link.to_node.clear()
                if not link.is_open_at_proposer:
                    del self.links[link.number]

    def restart(self, node: MemoryNode) -> None:
        node.restart()
        self.safety.node_restarted(node)

    # ---- WAL that comes to a proposer

    def bring_wal(self, process: ProposerProcess, end_lsn: int | None = None) -> None:
        """The primary's walsender ships what there is, up to `end_lsn`; at first the primary
        says where its WAL ends."""
        assert process.primary is not None
        assert process.upstream_lsn is not None
        if not process.is_upstream_started:
            process.is_upstream_started = True
            facts = process.core.primary
            assert facts is not None
            self.step(process, UpstreamStarted(max(facts.flush_lsn, process.primary.lsn)))
            if not process.is_running:
                return
        begin_lsn = process.upstream_lsn
        process.upstream_lsn = process.primary.lsn if end_lsn is None else end_lsn
        wal = process.primary.read(begin_lsn, process.upstream_lsn)
        self.step(process, WalReceived(begin_lsn, wal))

    def bring_tail(self, process: ProposerProcess) -> None:
        """The donor answers ReadTail, or is not there or promised to somebody else."""
        read, process.tail_read = process.tail_read, None
        assert read is not None
        node = self.nodes[read.donor]
        if self._may_read(process, node, read.end_lsn):
            wal = node.disk.read(read.begin_lsn, read.end_lsn - read.begin_lsn)
            self.step(process, TailRead(wal))
        else:
            self._forget(process, read.donor)
            self.step(process, PeerLost(read.donor, "the donor's tail cannot be read"))

    def bring_catch_up(self, process: ProposerProcess, peer: int, end_lsn: int) -> None:
        """The donor's next WAL for `peer`, up to `end_lsn`; or the end of the donor's stream."""
        read = process.donor_reads[peer]
        if self._may_read(process, read.donor, end_lsn):
            wal = read.donor.disk.read(read.next_lsn, end_lsn - read.next_lsn)
            begin_lsn, read.next_lsn = read.next_lsn, end_lsn
            self.step(process, CatchUpWal(peer, begin_lsn, wal))
        else:
            del process.donor_reads[peer]
            self.step(process, CatchUpLost(peer, "the donor sent us away"))

    def _may_read(self, process: ProposerProcess, donor: MemoryNode, end_lsn: int) -> bool:
        """Rule 8 of the safekeeper."""
        acceptor = donor.acceptor
        return (
            acceptor is not None
            and acceptor.control.promised == process.core.node_id
            and acceptor.flush_lsn >= end_lsn
        )
