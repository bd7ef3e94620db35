"""`ScriptedWorld`: the simulator's world, in which nothing happens by itself: a script says what.

    World          the clock runs what was asked for; chance decides what the network does
    ScriptedWorld  what was asked for waits in the clock, what was sent waits in its lane

All else is the simulator's: safekeepers, disks, proposers, primaries, and the invariants, which are
checked after every step of a script, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.walproposer.stream.events import Joined, Left, Stop
from tests.simulation.clock import Clock
from tests.simulation.faults import Plan
from tests.simulation.incarnation import Incarnation
from tests.simulation.log import Log
from tests.simulation.network import Connection, End, Lane, Message, Network
from tests.simulation.node import Address, Node
from tests.simulation.primary import Primary
from tests.simulation.trace import Trace
from tests.simulation.world import World

#: The place of all proposers in the network: scripts lose connections, and cut no places off.
PLACE = 0


class ScriptedClock(Clock):
    """It never runs by itself."""

    def waiting(self, action: Callable[..., None]) -> list[tuple[Any, ...]]:
        """The arguments of each scheduled call of that function, in order."""
        return [event[3] for event in self._asked_for(action, ())]

    def run(self, action: Callable[..., None], *args: Any) -> None:
        """Run the first scheduled call whose arguments begin with `args` now."""
        event = self._asked_for(action, args)[0]
        self._events.remove(event)
        action(*event[3])

    def _asked_for(self, action: Callable[..., None], args: tuple[Any, ...]) -> list[Any]:
        found = [e for e in self._events if e[2] == action and e[3][: len(args)] == args]
        return sorted(found, key=lambda event: event[1])


class ScriptedNetwork(Network):
    """Nothing is lost, and nothing arrives before the script orders it."""

    def _send(
        self, connection: Connection, lane: Lane, to_node: bool, message: Message | End
    ) -> None:
        lane.held.append(message)

    def _end(self, lane: Lane) -> None:
        """Messages in flight can still arrive."""


class ScriptedWorld(World):
    """`names[i]` is the safekeeper with id i + 1; peer i of every proposer is its address."""

    clock: ScriptedClock
    is_changing = True

    def __init__(self, names: Sequence[str], trace: Trace) -> None:
        self._names = names
        plan = Plan(
            focus="none", nodes_count=len(names), is_restoring=False, is_wild=False,
            write_us=1, horizon_us=1, faults=(),
        )  # fmt: skip
        super().__init__(0, plan, trace)
        self.is_calm = True

    def new_clock(self) -> Clock:
        return ScriptedClock()

    def new_network(self) -> Network:
        return ScriptedNetwork(self.clock, self.random)

    def new_node(self, number: int) -> Node:
        node = super().new_node(number)
        node.name = self._names[number - 1]
        return node

    def incarnation_stopped(self, process: Incarnation, stop: Stop) -> None:
        """There is no operator."""

    # ---- proposers

    def propose(
        self, name: str, log: Log | None, history: TimelineHistory, addresses: Sequence[Address]
    ) -> Incarnation:
        """A new incarnation, whose primary has this log; None: it completes the safekeepers'."""
        primary = Primary(name, log, history, False) if log is not None else None
        process = Incarnation(self, PLACE, primary, addresses, name=name)
        self.incarnations.append(process)
        return process

    def tick(self, process: Incarnation, now_ms: int) -> None:
        self.clock.now_us = now_ms * 1000
        self.clock.run(process.tick)

    def bring_wal(self, process: Incarnation, end_lsn: int) -> None:
        """The primary's walsender sends its WAL, up to `end_lsn`; at first the primary reports the
        end of its WAL."""
        if self.clock.waiting(process.start_upstream):
            self.clock.run(process.start_upstream)
        if process.is_alive:
            process.receive_wal(end_lsn)

    def bring_tail(self, process: Incarnation) -> None:
        """The donor answers ReadTail."""
        self.clock.run(process.read_tail)

    def bring_catch_up(self, process: Incarnation, peer: int, end_lsn: int) -> None:
        """The donor's next WAL for `peer`, up to `end_lsn`; or the end of the donor's stream."""
        process.send_catch_up(peer, process.donor_reads[peer], end_lsn)

    # ---- connections

    def peer_at(self, process: Incarnation, node: Node) -> int:
        """The place of its address."""
        return next(p for p, address in process.addresses.items() if address == node.address)

    def connect(self, process: Incarnation, node: Node) -> Connection | None:
        """None if it has no timeline."""
        peer = self.peer_at(process, node)
        self.clock.run(process.connect, peer)
        return process.connections.get(peer)

    # ---- servers

    def add_server(self, name: str, wiped: Node | None = None) -> Node:
        """It has no timeline; another disk has the id and the address of the lost one."""
        self._names = [*self._names, name]
        number = wiped.number if wiped is not None else max(n.number for n in self.nodes) + 1
        node = World.new_node(self, number)
        node.name = name
        node.become_empty(wiped.address if wiped is not None else node.address)
        self.nodes.append(node)
        return node

    def join(self, process: Incarnation, node: Node) -> str:
        """Its answer; "" if it has joined."""
        peer = self.peer_at(process, node)
        asked = [a for (a,) in self.clock.waiting(process.commands.join) if a.peer == peer]
        self.clock.run(process.commands.join, asked[0])
        return self._answer(process).error

    def leave(self, process: Incarnation, node: Node) -> str:
        peer = self.peer_at(process, node)
        asked = [a for (a,) in self.clock.waiting(process.commands.leave) if a.peer == peer]
        self.clock.run(process.commands.leave, asked[0])
        return self._answer(process).error

    def _answer(self, process: Incarnation) -> Joined | Left:
        (answer,) = (a for (a,) in self.clock.waiting(process.step) if isinstance(a, Joined | Left))
        return answer

    def answer_command(self, process: Incarnation) -> None:
        self.clock.run(process.step, self._answer(process))

    def in_flight_to_node(self, connection: Connection) -> list[Message]:
        """The messages that the safekeeper can still read."""
        return messages_of(connection.to_node) if connection.is_open_at_node else []

    def in_flight_to_proposer(self, connection: Connection) -> list[Message]:
        return messages_of(connection.to_proposer) if connection.is_open_at_proposer else []

    def deliver_to_node(self, connection: Connection) -> None:
        """One message is read and executed; the answer that a flush must cover comes later."""
        connection.node.arrived(connection, connection.to_node.held.popleft())

    def end_batch(self, connection: Connection) -> None:
        """The node has read everything: flush and answer."""
        if connection.batch_due:
            self.clock.run(connection.node.end_batch, connection)

    def deliver_to_proposer(self, connection: Connection) -> None:
        connection.process.arrived(connection, connection.to_proposer.held.popleft())

    def lose(self, connection: Connection) -> None:
        """The proposer learns that the connection has ended; the node does not yet."""
        connection.process.arrived(connection, End.CLOSED)

    def hang_up(self, connection: Connection) -> None:
        """The node learns that the connection has ended."""
        if connection.is_open_at_node:
            connection.node.arrived(connection, End.CLOSED)

    def end_closed_connections(self) -> None:
        """Both sides see the end of a connection that the node closed, after they have read
        everything."""
        for node in self.nodes:
            for (number,) in self.clock.waiting(node.close):
                connection = self.network.connections.get(number)
                if connection is None:
                    self.clock.run(node.close, number)
                elif not (
                    self.in_flight_to_node(connection) or self.in_flight_to_proposer(connection)
                ):
                    self.clock.run(node.close, number)
                    self.lose(connection)

    # ---- safekeepers

    def lose_power(self, node: Node, kept_bytes: int) -> None:
        """The first `kept_bytes` of the unflushed WAL remain. Answers sent before arrive."""
        node.stop()
        node.disk.keep_unflushed(kept_bytes)

    def rot(self, node: Node, lsn: int) -> None:
        """Flip a bit below the flushed position that had been saved before."""
        assert node.acceptor is not None
        control = node.disk.control
        node.disk.save_hints(node.acceptor.flush_lsn, control.commit_lsn, control.truncate_lsn)
        node.disk.rot(lsn)


def messages_of(lane: Lane) -> list[Message]:
    return [message for message in lane.held if not isinstance(message, End)]
