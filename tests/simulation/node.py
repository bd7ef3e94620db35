"""`Node`: a safekeeper as a process: the acceptor, its disk, and the ends it can come to."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from quorum_wal.consensus.join import TimelineOffer
from quorum_wal.consensus.membership import Member, Membership
from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.safekeeper.acceptor import Acceptor
from quorum_wal.safekeeper.control_state import ControlState
from quorum_wal.safekeeper.errors import SafekeeperError, WalDamaged
from quorum_wal.safekeeper.events import (
    Action,
    BatchEnded,
    ChainedWal,
    CloseConnection,
    Disconnected,
    Event,
    Received,
    Refuse,
    Reply,
    TakeWal,
    TruncateWal,
)
from quorum_wal.safekeeper.join_rules import departed, joined
from quorum_wal.safekeeper.retention import TAIL_SEGMENTS
from tests.new_timeline import TIMELINE, new_control_state

from .chain import NodeChain
from .disk import Disk, DiskFailed
from .log import PG_VERSION, START_LSN, SYSTEM_ID, WAL_SEG_SIZE
from .network import Connection, End, Message
from .node_state import NodeState

if TYPE_CHECKING:
    from .world import World

SERVER = ServerFacts(SYSTEM_ID, PG_VERSION, WAL_SEG_SIZE)
HINTS_US = 150_000
SCRUB_TICKS = 10
RESTART_US = 60_000
#: Messages that arrive within this time share one flush.
BATCH_US = 400


Address = tuple[str, int]


class WalRemoved(SafekeeperError):
    """It does not have that WAL any more, or never had it."""


class Node:
    """One data directory and the process that runs on it; `acceptor` is None unless UP.

    `number` is the safekeeper's id, `index` its place in the world's list: a lost disk and another
    one under its id have one number and two indexes.
    """

    def __init__(self, world: World, number: int, membership: Membership) -> None:
        self.world = world
        self.number = number
        self.index = len(world.nodes)
        self.name = f"S{number}"
        self.instance = instance_of(self.index)
        self.address: Address = address_of(number)
        self.disk = Disk(new_control_state(membership, SERVER), world.random)
        self.acceptor: Acceptor | None = self.new_acceptor(START_LSN)
        self.state = NodeState.UP
        #: By the connection whose WAL comes from another node.
        self.chains: dict[int, NodeChain] = {}
        self.is_paused = False
        self.batch_us = BATCH_US
        #: The power fails after that many more actions.
        self.actions_left: int | None = None
        #: The power fails before, inside or after the next truncation.
        self.fails_at_truncation = False
        self._ticks = 0
        world.clock.call_later(HINTS_US, self._save_hints)

    def new_acceptor(self, end_lsn: int) -> Acceptor:
        return Acceptor(self.number, self.instance, self.disk.control, end_lsn)

    @property
    def is_listening(self) -> bool:
        return self.state is NodeState.UP and not self.is_paused

    @property
    def is_reachable(self) -> bool:
        """The process answers, also if it has no such timeline."""
        is_running = self.state in (NodeState.UP, NodeState.EMPTY, NodeState.DAMAGED)
        return is_running and not self.is_paused

    @property
    def has_log(self) -> bool:
        return self.state is not NodeState.EMPTY and not self.disk.control.has_left

    def as_member(self) -> Member:
        return Member(self.number, self.instance, *self.address)

    # ---- messages

    def arrived(self, connection: Connection, message: Message | End) -> None:
        if message is End.CLOSED:
            connection.is_open_at_node = False
            self.chains.pop(connection.number, None)
            self.step(Disconnected(connection.number))
            if connection.is_open_at_proposer:
                self.world.network.close_at_node(connection)
            return
        self.step(Received(connection.number, message))  # type: ignore[arg-type]
        if not connection.batch_due and connection.is_open_at_node:
            connection.batch_due = True
            delay_us = int(self.world.random.random() * self.batch_us)
            self.world.clock.call_later(delay_us, self.end_batch, connection)

    def end_batch(self, connection: Connection) -> None:
        """All messages that have arrived share one flush and one answer."""
        connection.batch_due = False
        if connection.is_open_at_node and self.acceptor is not None:
            if self.is_paused:
                connection.batch_due = True
                self.world.clock.call_later(20_000, self.end_batch, connection)
            else:
                self.step(BatchEnded(connection.number))

    def step(self, event: Event) -> None:
        if self.acceptor is None:
            return
        world = self.world
        world.steps += 1
        world.shapes.stepping(self, event)
        actions = self.acceptor.step(event)
        if self.fails_at_truncation:
            self._maybe_fail_at_truncation(actions)
        for done, action in enumerate(actions):
            if self.actions_left is not None and done >= self.actions_left:
                world.trace(self.name, event, actions[:done], "power fails")
                self._fail_inside(action)
                return
            try:
                self._carry_out(action)
            except DiskFailed as error:
                world.trace(self.name, event, actions[:done], f"{error}: stops")
                world.count(f"disk: {error}")
                self.stop()
                return
        if self.actions_left is not None:
            self.actions_left -= len(actions)
        world.trace(self.name, event, actions, "")
        if self.acceptor is not None:  # a refusal closes, which flushes, which may fail
            world.invariants.node_stepped(self, event, actions)

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, Reply):
            self.world.invariants.replied(self, action)
            self.world.network.send_to_proposer(action.connection, action.message)
        elif isinstance(action, Refuse):
            self.close(action.connection)
        elif isinstance(action, TakeWal):
            self.take_wal(action)
        elif isinstance(action, CloseConnection):
            # The order and its effect are separate: earlier messages may still be read.
            delay_us = self.world.random.choice((0, 500, 5000))
            self.world.clock.call_later(delay_us, self.close, action.connection)
        else:
            if isinstance(action, TruncateWal):
                self.world.invariants.truncating(self, action.end_lsn)
            self.disk.execute(action)

    # ---- the daisy chain

    def take_wal(self, order: TakeWal) -> None:
        self.world.count("chains begun")
        self.chains[order.connection] = NodeChain(self, order)

    def chained(self, order: TakeWal, begin_lsn: int, wal: bytes) -> None:
        """The bytes have arrived, maybe after their connection has ended."""
        if self.acceptor is not None and wal:
            self.world.count("pieces of WAL by a chain")
            self.step(ChainedWal(order.connection, order.node_id, begin_lsn, wal))
            self.step(BatchEnded(order.connection))

    def close(self, number: int) -> None:
        self.chains.pop(number, None)
        connection = self.world.network.connections.get(number)
        if connection is not None and connection.is_open_at_node:
            self.world.network.close_at_node(connection)
            self.step(Disconnected(number))

    def calm(self) -> None:
        self.batch_us = BATCH_US

    # ---- ends and beginnings

    def _maybe_fail_at_truncation(self, actions: list[Action]) -> None:
        for index, action in enumerate(actions):
            if isinstance(action, TruncateWal):
                self.fails_at_truncation = False
                self.actions_left = index + self.world.random.choice((0, 1))

    def _fail_inside(self, action: Action) -> None:
        if isinstance(action, TruncateWal):
            self.disk.truncate_partly(action.end_lsn)
            self.world.count("truncations interrupted")
        self.world.count("crashes between actions")
        self.lose_power()

    def stop(self) -> None:
        """The process ended, or the timeline stopped: its connections end, the disk stays."""
        if self.acceptor is None:
            return
        self.acceptor = None
        self.actions_left = None
        self.state = NodeState.DOWN
        self._close_connections()
        self.world.invariants.node_ended(self)
        self.world.clock.call_later(RESTART_US, self.restart)

    def _close_connections(self) -> None:
        self.chains.clear()
        for connection in list(self.world.network.connections.values()):
            if connection.node is self and connection.is_open_at_node:
                self.world.network.close_at_node(connection)

    def lose_power(self) -> None:
        if self.acceptor is not None:
            self.stop()
            self.disk.lose_power()
            self.world.count("power losses")

    def read_checked(self, begin_lsn: int, end_lsn: int) -> bytes:
        """WAL that it sends. Raises WalDamaged; then it has lost the end of its log."""
        if begin_lsn < self.disk.start_lsn:
            raise WalRemoved(f"WAL below {self.disk.start_lsn:X} was removed")
        try:
            return self.disk.read_checked(begin_lsn, end_lsn)
        except WalDamaged:
            if self.acceptor is not None:
                self.world.count("damage found on running members")
                flush_lsn = self.acceptor.flush_lsn
                self.disk.control = replace(self.disk.control, flush_lsn=flush_lsn)
                self.stop()
            raise

    def scrub(self) -> None:
        if self.acceptor is not None and self.disk.damaged_lsn is None:
            try:
                self.read_checked(self.disk.start_lsn, self.acceptor.flush_lsn)
            except WalDamaged as damage:
                self.world.trace(self.name, damage, [], "the scrub")

    def lose_data(self) -> None:
        """The process has no timeline any more; `disk` keeps the old content. At most one member of
        a run loses its data permanently."""
        if not any(node.disk.is_rotten for node in self.world.nodes):
            self.stop()
            self.state = NodeState.DAMAGED
            self.disk.is_gone = True
            self.world.count("members that lost their data")

    def restart(self) -> None:
        if self.state is not NodeState.DOWN:
            return
        expected_lsn = self.world.invariants.expected_end(self)
        if self.disk.written_lsn > expected_lsn:
            self.world.count("torn tails")
        before = self.disk.control
        end_lsn = self.disk.recover()
        self.world.trace(self.name, "Restart", [], f"end of the log {end_lsn:X}")
        self.world.invariants.node_recovered(self, before, expected_lsn, end_lsn)
        if before.lost_lsn < self.disk.control.lost_lsn:
            is_above = end_lsn >= before.commit_lsn
            self.world.count(f"damaged logs {'above' if is_above else 'below'} the commit")
        self.state = NodeState.UP
        self.acceptor = self.new_acceptor(end_lsn)
        self.world.invariants.node_started(self)

    # ---- joining and leaving: commands, each on a connection of its own

    def join(self, offer: TimelineOffer) -> None:
        """JOIN_TIMELINE. Raises SafekeeperError; the power may fail before it is durable."""
        before = None if self.state is NodeState.EMPTY else self.disk.control
        control = joined(self.number, TIMELINE, offer, before)
        if control is not before and self._renew(control):
            self.world.count("timelines joined again" if before else "timelines joined")
            self.world.invariants.node_joined(self, offer)

    def leave(self, membership: Membership) -> None:
        """LEAVE_TIMELINE. Raises SafekeeperError; the power may fail before it is durable."""
        if self.state is NodeState.EMPTY:
            return
        control = departed(self.number, self.disk.control, membership)
        flushed_lsn = self.disk.flushed_lsn
        if control is not self.disk.control and self._renew(control):
            self.world.count("timelines left")
            self.world.invariants.node_left(self, flushed_lsn)

    def _renew(self, control: ControlState) -> bool:
        """The timeline starts again on this disk, with `control` and no WAL. False if the power
        fails before."""
        if self.actions_left is not None and self.state is not NodeState.EMPTY:
            self.world.count("crashes between actions")
            self.lose_power()
            return False
        self._close_connections()
        self.disk = Disk(control, self.world.random)
        self.state = NodeState.UP
        self.acceptor = self.new_acceptor(control.local_start_lsn)
        return True

    def become_empty(self, address: Address) -> None:
        """A new server without a timeline."""
        self.state, self.acceptor, self.address = NodeState.EMPTY, None, address

    def switch_off(self) -> None:
        """Permanently; also if the disk is lost."""
        self.stop()
        self.state = NodeState.GONE

    def _save_hints(self) -> None:
        if self.acceptor is not None:
            acceptor = self.acceptor
            self.disk.save_hints(acceptor.flush_lsn, acceptor.commit_lsn, acceptor.truncate_lsn)
            self.world.invariants.node_started(self, is_new=False)
            if self.world.removes_wal:
                kept_lsn = acceptor.commit_lsn - TAIL_SEGMENTS * WAL_SEG_SIZE
                self.disk.remove_below(min(kept_lsn, acceptor.truncate_lsn))
        self._ticks += 1
        if self._ticks % SCRUB_TICKS == 0:
            self.scrub()
        self.world.clock.call_later(HINTS_US, self._save_hints)


def instance_of(index: int) -> bytes:
    return f"disk{index:04}".encode()


def address_of(number: int) -> Address:
    """The first address of a safekeeper."""
    return f"s{number}", 6500
