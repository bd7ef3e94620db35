"""`Incarnation`: one process of a proposer: the core, its connections, and its primary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quorum_wal.consensus.ids import NodeId
from quorum_wal.consensus.membership import Membership
from quorum_wal.consensus.messages import AppendResponse
from quorum_wal.safekeeper.donor_rule import DonorRule
from quorum_wal.safekeeper.errors import SafekeeperError, WalDamaged
from quorum_wal.walproposer.primary.primary import Primary as PrimaryFacts
from quorum_wal.walproposer.stream.candidacy import Candidacy
from quorum_wal.walproposer.stream.events import (
    Action,
    CatchUpLost,
    CatchUpWal,
    ClosePeer,
    Event,
    ForgetPeer,
    Join,
    Leave,
    OpenPeer,
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
    Stopping,
    TailRead,
    Tick,
    UpstreamStarted,
    WalReceived,
)
from quorum_wal.walproposer.stream.proposer import Proposer, State
from tests.new_timeline import TIMELINE
from tests.steady_proposer import SteadyProposer

from .commands import Commands
from .log import PAGE_SIZE, START_LSN
from .network import Connection, End, Message
from .node import SERVER, Address, Node, WalRemoved
from .node_state import NodeState
from .primary import Primary

if TYPE_CHECKING:
    from .world import World

TICK_US = 50_000
RECONNECT_US = (2000, 25_000, 50_000)
#: The position where a donor's stream is cut.
DONOR_BYTES_MAX = 8192


@dataclass(slots=True)
class DonorRead:
    """StartCatchUp: the log of `donor`, from `next_lsn` on."""

    donor: Node
    next_lsn: int
    rule: DonorRule


class Incarnation:
    """`place` is the place of its machine in the network; `primary` is None to complete a log."""

    def __init__(
        self,
        world: World,
        place: int,
        primary: Primary | None,
        addresses: Sequence[Address],
        predecessor: NodeId | None = None,
        *,
        name: str = "",
    ) -> None:
        """It knows these addresses. A given name is also its uuid."""
        self.world = world
        self.place = place
        self.name = name or f"P{len(world.incarnations) + 1}"
        self.primary = primary
        self.begun_us = world.clock.now_us
        self.is_alive = True
        self.is_paused = False
        self.actions_left: int | None = None
        self.stop: Stop | None = None
        #: The addresses at its start, and those of all places that it asks.
        self.given = tuple(addresses)
        self.addresses = dict(enumerate(self.given))
        self.forgotten: set[int] = set()
        #: The node that it last found at each place.
        self.met: dict[int, Node] = {}
        #: The membership that the core used until the event of this step.
        self.counted_by: Membership | None = None
        #: Indexes of the nodes that reported the loss of their data.
        self.lost_nodes: set[int] = set()
        self.commands = Commands(self)
        #: (commit_lsn, truncate_lsn) at the last check.
        self.positions = (0, 0)
        self.window_begin_lsn = 0
        self.connections: dict[int, Connection] = {}
        self.upstream_lsn = 0
        self._ship_due = False
        self.donor_reads: dict[int, DonorRead] = {}
        facts = None
        if primary is not None:
            facts = PrimaryFacts(SERVER, primary.tli_history, primary.flush_lsn, START_LSN)
        uuid = (name.encode() or world.random.randbytes(4)).ljust(16, b"\0")
        candidacy = Candidacy(
            timeline=TIMELINE,
            server=SERVER,
            addresses=self.given,
            proposer_uuid=uuid,
            predecessor=predecessor,
            chains=world.chain_rule,
        )
        self.core = self._new_core(candidacy, facts)
        self.tick()
        for peer in self.addresses:
            world.clock.call_later(int(world.random.random() * 5000), self.connect, peer)

    # ---- the core

    def _new_core(self, candidacy: Candidacy, facts: PrimaryFacts | None) -> Proposer:
        """In every other world one that takes the steady path where it can."""
        if not self.world.takes_steady_path:
            return Proposer(candidacy, facts)
        return SteadyProposer(
            candidacy, facts, taken=lambda: self.world.count("events by the steady path")
        )

    def step(self, event: Event) -> None:
        if not self.is_alive:
            return
        self.world.steps += 1
        before = self.core.membership
        actions = self.core.step(event)
        self.world.invariants.proposer_stepping(self, event, before)
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
        self.world.invariants.proposer_stepped(self, event)
        if self.stop is not None:
            self.kill()
            self.world.incarnation_stopped(self, self.stop)
        self.world.stepped(self)

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
            case OpenPeer(peer, host, port):
                self._open(peer, (host, port))
            case ForgetPeer(peer):
                self.forgotten.add(peer)
                self._drop(peer)
            case Join():
                later(self.commands.delay_us(), self.commands.join, action)
            case Leave():
                self.world.invariants.memberships.tells(self, action.membership)
                later(self.commands.delay_us(), self.commands.leave, action)
            case StartUpstream(begin_lsn):
                later(1000, self.start_upstream, begin_lsn)
            case ReadTail():
                later(2000, self.read_tail, action)
            case StartCatchUp(peer, donor, begin_lsn):
                node = self.met[donor]
                self.donor_reads[peer] = DonorRead(node, begin_lsn, self._donor_rule(node))
                later(1000, self._catch_up, peer, self.donor_reads[peer])
            case StopCatchUp(peer):
                self.donor_reads.pop(peer, None)
            case Stop():
                self.stop = action

    def tick(self) -> None:
        if self.is_alive:
            if not self.is_paused:
                self.step(Tick(self.world.clock.now_us // 1000))
            self.world.clock.call_later(TICK_US, self.tick)

    def stop_in_order(self) -> None:
        """As on SIGTERM: it sends its last message."""
        if not self.is_paused:
            self.step(Stopping())
        self.kill()

    def kill(self) -> None:
        """The process ends; messages that it had sent may still arrive."""
        self.is_alive = False
        self.donor_reads.clear()
        for connection in self.connections.values():
            self.world.network.close_at_proposer(connection)
        self.connections.clear()

    # ---- safekeepers

    def _open(self, peer: int, address: Address) -> None:
        """A place that the core found, or needs again: its address never changes."""
        assert self.addresses.setdefault(peer, address) == address, "a place has moved"
        self.forgotten.discard(peer)
        self.world.clock.call_later(int(self.world.random.random() * 1000), self.connect, peer)

    def connect(self, peer: int) -> None:
        if not self.is_alive or peer in self.connections or peer in self.forgotten:
            return
        node = None if self.is_paused else self.world.node_at(self.addresses[peer])
        connection = self.world.network.open(self, peer, node) if node is not None else None
        if node is not None and node.is_reachable and self.reaches(node) and not connection:
            self._no_such_timeline(peer, node)
        if node is None or connection is None:
            self._connect_later(peer)
            return
        self.met[peer] = node
        self.connections[peer] = connection
        self.step(PeerConnected(peer))

    def _no_such_timeline(self, peer: int, node: Node) -> None:
        """A new disk, or a lost one: then its old WAL is lost."""
        known = self.met.get(peer, node)
        if node.state is NodeState.DAMAGED or known is not node:
            self.lost_nodes.add(known.index)
        self.step(PeerLost(peer, "no such timeline", lost_data=True))

    def _connect_later(self, peer: int) -> None:
        if self.is_alive and peer not in self.forgotten:
            self.world.clock.call_later(self.world.random.choice(RECONNECT_US), self.connect, peer)

    def arrived(self, connection: Connection, message: Message | End) -> None:
        peer = connection.peer
        if self.connections.get(peer) is not connection:
            return
        if message is End.CLOSED:
            self._drop(peer)
            self.step(PeerLost(peer, "connection lost"))
        else:
            if type(message) is AppendResponse:
                self.lost_nodes.discard(connection.node.index)
            self.step(PeerMessage(peer, message))  # type: ignore[arg-type]

    def _drop(self, peer: int) -> None:
        connection = self.connections.pop(peer, None)
        if connection is not None:
            self.world.network.close_at_proposer(connection)
            self._connect_later(peer)

    # ---- the primary

    def start_upstream(self, begin_lsn: int) -> None:
        """The walsender starts where the primary has WAL; otherwise the process loses its
        primary."""
        primary = self.primary
        if not self.is_alive or primary is None:
            return
        if not primary.is_ready:
            primary.is_ready = True
            primary.log = self.world.invariants.won_log(self)
        self.upstream_lsn = begin_lsn
        self.step(UpstreamStarted(primary.log.lsn))
        self.world.invariants.upstream_started(self)
        self.ship()

    def ship(self) -> None:
        """The walsender has something to send, or the process reads again."""
        if not self._ship_due and self.is_alive and self.upstream_lsn:
            self._ship_due = True
            delay_us = 500 + int(self.world.random.random() * 3000)
            self.world.clock.call_later(delay_us, self._ship)

    def load(self, count: int, *, is_bulk: bool = False) -> None:
        """The clients of its primary write that often from now on."""
        if self.primary is not None:
            for _ in range(count):
                self.primary.write(self.world.random, is_bulk=is_bulk)
            self.ship()

    def _ship(self) -> None:
        """The walsender's next message, if it is read."""
        self._ship_due = False
        primary = self.primary
        if not self.is_alive or primary is None or primary.log.lsn <= self.upstream_lsn:
            return
        if self.is_leading and not self.core.wants_wal():
            self.world.count("full windows")
        elif not self.is_paused and self.core.wants_wal():
            self.receive_wal(primary.somewhere(self.upstream_lsn, self.world.random))
        if primary.log.lsn > self.upstream_lsn:
            self.ship()

    def receive_wal(self, end_lsn: int) -> None:
        """The walsender's next message, which ends there."""
        assert self.primary is not None
        begin_lsn, self.upstream_lsn = self.upstream_lsn, end_lsn
        self.step(WalReceived(begin_lsn, self.primary.log.read(begin_lsn, end_lsn)))

    @property
    def is_leading(self) -> bool:
        return self.is_alive and self.core.state is State.LEADING

    # ---- donors

    def _donor_rule(self, node: Node) -> DonorRule:
        """The rule of the safekeeper, over the wire."""

        def look() -> tuple[NodeId, int]:
            acceptor = node.acceptor
            if acceptor is None or not node.has_log or not self.reaches(node):
                raise SafekeeperError("the donor is away")
            return acceptor.control.promised, acceptor.flush_lsn

        assert self.core.node_id is not None
        return DonorRule(self.core.node_id, look)

    def reaches(self, node: Node) -> bool:
        return self.world.network.reaches(self.place, node)

    def read_tail(self, read: ReadTail) -> None:
        if self.is_alive:
            try:
                node = self.met[read.donor]
                rule = self._donor_rule(node)
                if rule.limit_lsn() < read.end_lsn:
                    raise SafekeeperError("the donor's log ends before")
                wal = self._sent_by(node, rule, read.begin_lsn, read.end_lsn)
            except SafekeeperError as error:
                self._drop(read.donor)
                self.step(PeerLost(read.donor, str(error)))
            else:
                self.step(TailRead(wal))

    def _catch_up(self, peer: int, read: DonorRead) -> None:
        """The donor's stream checks how far it may read. An event between the check and the sending
        affects the bytes that it reads."""
        if not self.is_alive or self.donor_reads.get(peer) is not read:
            return
        try:
            limit_lsn = read.rule.limit_lsn()
        except SafekeeperError as error:
            self._catch_up_lost(peer, error)
            return
        self.world.invariants.donor_goes_on(self, read.donor)
        begin_lsn, random = read.next_lsn, self.world.random
        if limit_lsn > begin_lsn and self.core.wants_catch_up(peer) and not self.is_paused:
            end_lsn = min(begin_lsn - begin_lsn % PAGE_SIZE + DONOR_BYTES_MAX, limit_lsn)
            delay_us = random.choice((0, 500, 5000, 30_000))
            self.world.clock.call_later(delay_us, self.send_catch_up, peer, read, end_lsn)
        else:
            self.world.clock.call_later(3000, self._catch_up, peer, read)

    def send_catch_up(self, peer: int, read: DonorRead, end_lsn: int) -> None:
        if not self.is_alive or self.donor_reads.get(peer) is not read:
            return
        try:
            wal = self._sent_by(read.donor, read.rule, read.next_lsn, end_lsn)
        except SafekeeperError as error:
            self._catch_up_lost(peer, error)
            return
        begin_lsn, read.next_lsn = read.next_lsn, end_lsn
        self.world.count("catch-ups from a donor")
        self.world.clock.call_later(3000, self._catch_up, peer, read)
        self.step(CatchUpWal(peer, begin_lsn, wal))

    def _sent_by(self, node: Node, rule: DonorRule, begin_lsn: int, end_lsn: int) -> bytes:
        try:
            wal = rule.checked(node.read_checked(begin_lsn, end_lsn))
        except WalDamaged as damage:
            raise SafekeeperError(str(damage)) from damage
        self.world.invariants.donor_sends(self, node, begin_lsn, wal)
        return wal

    def _catch_up_lost(self, peer: int, error: SafekeeperError) -> None:
        del self.donor_reads[peer]
        self.step(CatchUpLost(peer, str(error), is_removed=isinstance(error, WalRemoved)))
