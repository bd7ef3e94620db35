"""`Incarnation`: one process of a proposer: the core, its connections, and its primary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from consensus.ids import NodeId
from walproposer.events import (
    Action,
    CatchUpLost,
    CatchUpWal,
    ClosePeer,
    Event,
    PeerConnected,
    PeerLost,
    PeerMessage,
    ReadTail,
    ReportFlushed,
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
from walproposer.events import Primary as PrimaryFacts
from walproposer.proposer import Candidacy, Proposer, State

from .log import PAGE_SIZE, START_LSN
from .network import Connection, End, Message
from .node import SERVER, TIMELINE, Node, NodeState
from .primary import Primary

if TYPE_CHECKING:
    from .world import World

TICK_US = 50_000
RECONNECT_US = (2000, 25_000, 50_000)
#: Where a donor's stream is cut.
DONOR_BYTES_MAX = 8192


@dataclass(slots=True)
class DonorRead:
    """StartCatchUp: the log of `donor`, from `next_lsn` on."""

    donor: Node
    next_lsn: int


class Incarnation:
    """`place` is where its machine stands in the network; `primary` is None to complete a log."""

    def __init__(
        self, world: World, place: int, primary: Primary | None, predecessor: NodeId | None = None
    ) -> None:
        self.world = world
        self.place = place
        self.name = f"P{len(world.incarnations) + 1}"
        self.primary = primary
        self.is_alive = True
        self.is_paused = False
        self.actions_left: int | None = None
        self.stop: Stop | None = None
        #: (commit_lsn, truncate_lsn) at the last look.
        self.positions = (0, 0)
        self.connections: dict[int, Connection] = {}
        self.upstream_lsn = 0
        self._ship_due = False
        self.donor_reads: dict[int, DonorRead] = {}
        facts = None
        if primary is not None:
            facts = PrimaryFacts(SERVER, primary.tli_history, primary.flush_lsn, START_LSN)
        uuid = world.random.randbytes(4).ljust(16, b"\0")
        candidacy = Candidacy(
            TIMELINE, SERVER, world.membership, uuid, len(world.nodes), predecessor
        )
        self.core = Proposer(candidacy, facts)
        self._tick()
        for peer in range(len(world.nodes)):
            world.clock.call_later(int(world.random.random() * 5000), self._connect, peer)

    # ---- the core

    def step(self, event: Event) -> None:
        if not self.is_alive:
            return
        self.world.steps += 1
        actions = self.core.step(event)
        self.world.invariants.proposer_stepping(self, event)
        for done, action in enumerate(actions):
            if self.actions_left is not None and done >= self.actions_left:
                self.world.trace(self.name, event, actions[:done], "is killed")
                self.world.count("crashes between actions")
                self.kill()
                return
            self._carry_out(action)
        if self.actions_left is not None:
            self.actions_left -= len(actions)
        self.world.trace(self.name, event, actions, "")
        self.world.invariants.proposer_stepped(self)
        if self.stop is not None:
            self.kill()
            self.world.incarnation_stopped(self, self.stop)

    def _carry_out(self, action: Action) -> None:
        later = self.world.clock.call_later
        match action:
            case Send(peer, message):
                if peer in self.connections:
                    self.world.network.send_to_node(self.connections[peer], message)
            case ReportFlushed(commit_lsn):
                self.world.invariants.reported(self, commit_lsn)
            case ClosePeer(peer):
                self._drop(peer)
            case StartUpstream(begin_lsn):
                later(1000, self._start_upstream, begin_lsn)
            case ReadTail():
                later(2000, self._read_tail, action)
            case StartCatchUp(peer, donor, begin_lsn):
                self.donor_reads[peer] = DonorRead(self.world.nodes[donor], begin_lsn)
                later(1000, self._catch_up, peer, self.donor_reads[peer])
            case StopCatchUp(peer):
                self.donor_reads.pop(peer, None)
            case Stop():
                self.stop = action

    def _tick(self) -> None:
        if self.is_alive:
            if not self.is_paused:
                self.step(Tick(self.world.clock.now_us // 1000))
            self.world.clock.call_later(TICK_US, self._tick)

    def kill(self) -> None:
        """The process is gone; what it had sent may still arrive."""
        self.is_alive = False
        self.donor_reads.clear()
        for connection in self.connections.values():
            self.world.network.close_at_proposer(connection)
        self.connections.clear()

    # ---- safekeepers

    def _connect(self, peer: int) -> None:
        if not self.is_alive or peer in self.connections:
            return
        node = self.world.nodes[peer]
        connection = None if self.is_paused else self.world.network.open(self, node)
        if connection is None:
            self._connect_later(peer)
            return
        self.connections[peer] = connection
        self.step(PeerConnected(peer))

    def _connect_later(self, peer: int) -> None:
        self.world.clock.call_later(self.world.random.choice(RECONNECT_US), self._connect, peer)

    def arrived(self, connection: Connection, message: Message | End) -> None:
        peer = connection.node.number - 1
        if self.connections.get(peer) is not connection:
            return
        if message is End.CLOSED:
            self._drop(peer)
            self.step(PeerLost(peer, "connection lost"))
        else:
            self.step(PeerMessage(peer, message))  # type: ignore[arg-type]

    def _drop(self, peer: int) -> None:
        connection = self.connections.pop(peer, None)
        if connection is not None:
            self.world.network.close_at_proposer(connection)
            self._connect_later(peer)

    # ---- the primary

    def _start_upstream(self, begin_lsn: int) -> None:
        """The walsender starts where the primary has WAL; else the process loses its primary."""
        primary = self.primary
        if not self.is_alive or primary is None:
            return
        if not primary.is_ready:
            primary.is_ready = True
            primary.log = self.world.invariants.won_log(self)
        self.upstream_lsn = begin_lsn
        self.step(UpstreamStarted(primary.log.lsn))
        self.ship()

    def ship(self) -> None:
        """The walsender has something to send, or the process reads again."""
        if not self._ship_due and self.is_alive and self.upstream_lsn:
            self._ship_due = True
            delay_us = 500 + int(self.world.random.random() * 3000)
            self.world.clock.call_later(delay_us, self._ship)

    def _ship(self) -> None:
        """The walsender's next message, if it is read."""
        self._ship_due = False
        primary = self.primary
        if not self.is_alive or primary is None or primary.log.lsn <= self.upstream_lsn:
            return
        if not self.is_paused and self.core.wants_wal():
            begin_lsn = self.upstream_lsn
            self.upstream_lsn = primary.somewhere(begin_lsn, self.world.random)
            self.step(WalReceived(begin_lsn, primary.log.read(begin_lsn, self.upstream_lsn)))
        if primary.log.lsn > self.upstream_lsn:
            self.ship()

    @property
    def is_leading(self) -> bool:
        return self.is_alive and self.core.state is State.LEADING

    # ---- donors

    def _may_read(self, node: Node, end_lsn: int) -> bool:
        """Rule 8 of the safekeeper."""
        acceptor = node.acceptor
        return (
            acceptor is not None
            and node.state is NodeState.UP
            and acceptor.control.promised == self.core.node_id
            and acceptor.flush_lsn >= end_lsn
            and not any((self.place, node.number, way) in self.world.network.cuts for way in (0, 1))
        )

    def _read_tail(self, read: ReadTail) -> None:
        if not self.is_alive:
            return
        node = self.world.nodes[read.donor]
        if self._may_read(node, read.end_lsn):
            self.step(TailRead(node.disk.read(read.begin_lsn, read.end_lsn)))
        else:
            self._drop(read.donor)
            self.step(PeerLost(read.donor, "the donor's tail cannot be read"))

    def _catch_up(self, peer: int, read: DonorRead) -> None:
        if not self.is_alive or self.donor_reads.get(peer) is not read:
            return
        later, node = self.world.clock.call_later, read.donor
        if not self._may_read(node, read.next_lsn):
            del self.donor_reads[peer]
            self.step(CatchUpLost(peer, "the donor sent us away"))
            return
        assert node.acceptor is not None
        flush_lsn = node.acceptor.flush_lsn
        if flush_lsn > read.next_lsn and self.core.wants_catch_up(peer) and not self.is_paused:
            begin_lsn = read.next_lsn
            page_lsn = begin_lsn - begin_lsn % PAGE_SIZE + DONOR_BYTES_MAX
            read.next_lsn = min(page_lsn, flush_lsn)
            self.world.count("catch-ups from a donor")
            self.step(CatchUpWal(peer, begin_lsn, node.disk.read(begin_lsn, read.next_lsn)))
        later(3000, self._catch_up, peer, read)
