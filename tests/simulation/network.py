"""`Network`: connections between proposers and safekeepers, with their faults.

A connection is TCP: in one direction nothing is reordered. Lost packets are sent again later; a cut
direction holds messages until it heals. The ends of a broken connection are notified at different
times, and messages in flight may still arrive, or not. In a wild run single messages are also lost
or arrive twice: TCP never does that, and the laws must hold nevertheless.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from random import Random
from typing import TYPE_CHECKING

from quorum_wal.consensus.messages import ProposerMessage, SafekeeperMessage

from .clock import Clock

if TYPE_CHECKING:
    from .incarnation import Incarnation
    from .node import Node

Message = ProposerMessage | SafekeeperMessage


class End(Enum):
    """Instead of a message: the other end is closed."""

    CLOSED = "closed"


class Lane:
    """One direction of a connection."""

    __slots__ = ("held", "is_dead", "last_us", "stalled_until_us")

    def __init__(self) -> None:
        self.last_us = 0
        #: Messages in flight wait until then: they may arrive after a newer connection was opened.
        self.stalled_until_us = 0
        #: Arrived where it cannot be handled now: a cut link, or a paused process.
        self.held: deque[Message | End] = deque()
        #: Messages in flight and later ones are lost.
        self.is_dead = False


class Connection:
    """Numbers are never reused. An end that is closed here accepts nothing more."""

    __slots__ = (
        "batch_due", "is_open_at_node", "is_open_at_proposer", "latency_us", "node", "number",
        "peer", "process", "to_node", "to_proposer",
    )  # fmt: skip

    def __init__(
        self, number: int, process: Incarnation, peer: int, node: Node, latency_us: int
    ) -> None:
        """`peer`: the place of the address where the process found this node."""
        self.number = number
        self.peer = peer
        self.process = process
        self.node = node
        self.latency_us = latency_us
        self.to_node, self.to_proposer = Lane(), Lane()
        self.is_open_at_node = self.is_open_at_proposer = True
        self.batch_due = False


class Network:
    def __init__(self, clock: Clock, random: Random) -> None:
        self.clock = clock
        self.random = random
        self.connections: dict[int, Connection] = {}
        #: (proposer's place, safekeeper id, towards the safekeeper) of cut directions.
        self.cuts: set[tuple[int, int, bool]] = set()
        self.delay_factor = 1
        self.chance_of_loss = 0.0
        self.chance_of_copy = 0.0
        #: Kinds of messages that take longer, by how much, that are lost, or that arrive twice:
        #: each every other time.
        self.delay_us: dict[type, int] = {}
        self.lost: set[type] = set()
        self.doubled: set[type] = set()
        self._numbers = 0

    def reaches(self, place: int, node: Node) -> bool:
        """In both directions."""
        return not any((place, node.number, way) in self.cuts for way in (True, False))

    def open(self, process: Incarnation, peer: int, node: Node) -> Connection | None:
        """None if the two cannot reach each other, or the safekeeper accepts no connections."""
        if not self.reaches(process.place, node) or not node.is_listening:
            return None
        self._numbers += 1
        latency_us = self.random.choice((60, 100, 300, 1000, 3000))
        connection = Connection(self._numbers, process, peer, node, latency_us)
        self.connections[connection.number] = connection
        return connection

    # ---- sending

    def send_to_node(self, connection: Connection, message: Message | End) -> None:
        self._send(connection, connection.to_node, True, message)

    def send_to_proposer(self, number: int, message: Message | End) -> None:
        connection = self.connections.get(number)
        if connection is not None:
            self._send(connection, connection.to_proposer, False, message)

    def _send(
        self, connection: Connection, lane: Lane, to_node: bool, message: Message | End
    ) -> None:
        random, kind = self.random.random, type(message)
        is_lost = self.chance_of_loss and random() < self.chance_of_loss
        if (is_lost or self._strikes(kind in self.lost)) and message is not End.CLOSED:
            return
        now_us = self.clock.now_us
        delay_us = int(connection.latency_us * (0.5 + random()) * self.delay_factor)
        if random() < 0.002:
            delay_us += 50_000  # a lost packet, sent again
        if self._strikes(kind in self.delay_us):
            delay_us += self.delay_us[kind]
        at_us = max(lane.last_us, now_us + delay_us)
        lane.last_us = at_us
        self.clock.call_later(at_us - now_us, self._arrive, connection, lane, to_node, message)
        is_copied = self.chance_of_copy and random() < self.chance_of_copy
        if is_copied or self._strikes(kind in self.doubled):
            self.clock.call_later(at_us - now_us, self._arrive, connection, lane, to_node, message)

    def _strikes(self, may: bool) -> bool:
        return may and self.random.random() < 0.5

    # ---- arriving

    def _arrive(
        self, connection: Connection, lane: Lane, to_node: bool, message: Message | End
    ) -> None:
        if lane.is_dead and message is not End.CLOSED:
            return
        if lane.held or self._is_blocked(connection, lane, to_node):
            lane.held.append(message)
        else:
            self._hand_over(connection, to_node, message)

    def _is_blocked(self, connection: Connection, lane: Lane, to_node: bool) -> bool:
        process, node = connection.process, connection.node
        if (node if to_node else process).is_paused:
            return True
        if lane.stalled_until_us > self.clock.now_us:
            return True
        return bool(self.cuts) and (process.place, node.number, to_node) in self.cuts

    def _hand_over(self, connection: Connection, to_node: bool, message: Message | End) -> None:
        if to_node:
            if connection.is_open_at_node:
                connection.node.arrived(connection, message)
        elif connection.is_open_at_proposer:
            connection.process.arrived(connection, message)
        if not connection.is_open_at_node and not connection.is_open_at_proposer:
            self.connections.pop(connection.number, None)

    def release(self) -> None:
        """A fault was healed: held messages arrive now, in their order."""
        for connection in list(self.connections.values()):
            for lane, to_node in ((connection.to_node, True), (connection.to_proposer, False)):
                while lane.held and not self._is_blocked(connection, lane, to_node):
                    self._hand_over(connection, to_node, lane.held.popleft())

    # ---- ends

    def close_at_proposer(self, connection: Connection) -> None:
        """Messages sent before still arrive, or are lost with the connection."""
        connection.is_open_at_proposer = False
        self._end(connection.to_node)
        if connection.is_open_at_node:
            self.send_to_node(connection, End.CLOSED)
        else:
            self.connections.pop(connection.number, None)

    def close_at_node(self, connection: Connection) -> None:
        connection.is_open_at_node = False
        self._end(connection.to_proposer)
        if connection.is_open_at_proposer:
            self.send_to_proposer(connection.number, End.CLOSED)
        else:
            self.connections.pop(connection.number, None)

    def _end(self, lane: Lane) -> None:
        """Messages in flight are lost, arrive, or arrive unexpectedly late."""
        lane.is_dead = self.random.random() < 0.3
        stall_us = self.random.choice((0, 0, 20_000, 100_000))
        if stall_us:
            lane.stalled_until_us = self.clock.now_us + stall_us
            self.clock.call_later(stall_us, self.release)

    def break_connection(self, connection: Connection) -> None:
        """Each end is notified at its own time."""
        for lane, to_node in ((connection.to_node, True), (connection.to_proposer, False)):
            lane.is_dead = self.random.random() < 0.5
            delay_us = self.random.choice((0, 1000, 20_000, 200_000))
            self.clock.call_later(delay_us, self._arrive, connection, lane, to_node, End.CLOSED)
