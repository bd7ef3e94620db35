"""`Commands`: JOIN_TIMELINE and LEAVE_TIMELINE, as a proposer's process runs them.

Each uses its own connection, so it may arrive before or after other messages, it may be done
without an answer, and it may reach another safekeeper at that address.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorum_wal.consensus.join import OfferError, TimelineOffer
from quorum_wal.safekeeper.errors import SafekeeperError
from quorum_wal.walproposer.stream.events import Join, Joined, Leave, Left

from .node import Node

if TYPE_CHECKING:
    from .incarnation import Incarnation

DELAYS_US = (500, 2000, 2000, 20_000, 60_000)
CHANCE_OF_A_LOST_ANSWER = 0.1


class Commands:
    """The commands of one process."""

    def __init__(self, process: Incarnation) -> None:
        self._process = process
        self._world = process.world

    def delay_us(self) -> int:
        return self._world.random.choice(DELAYS_US)

    # ---- joining

    def join(self, join: Join) -> None:
        if not self._process.is_alive:
            return
        node = self._reached(join.peer)
        if node is None:
            self._answer(Joined(join.peer, "connection refused"))
        elif node.as_member().id != join.member.id or not join.member.is_instance(node.instance):
            error = f"{node.name} with {node.instance!r} is not the one that was wanted"
            self._answer(Joined(join.peer, error, is_refused=True))
        else:
            self._answer(self._joined(node, join))

    def _joined(self, node: Node, join: Join) -> Joined:
        try:
            node.join(self._lowered(join))
        except SafekeeperError as error:
            self._world.count("joins refused")
            return Joined(join.peer, str(error), is_refused=True)
        if not node.is_listening or self._loses_answer():
            return Joined(join.peer, "connection lost")
        return Joined(join.peer)

    def _lowered(self, join: Join) -> TimelineOffer:
        """Lowered to the WAL that every member has flushed, and to WAL that is not archived yet: a
        position for which some member has the WAL."""
        offer, members = join.offer, self._world.invariants.memberships.members
        size = offer.server.wal_seg_size
        highest_lsn = join.limit_lsn - join.limit_lsn % size
        having = [node.disk.start_lsn for node in members(offer.membership) if node.has_log]
        first_lsn = min([lsn for lsn in having if lsn <= highest_lsn], default=highest_lsn)
        choices = range(first_lsn, highest_lsn + 1, size)
        try:
            return offer.beginning_at(self._world.random.choice(choices))
        except OfferError as error:
            raise SafekeeperError(str(error)) from error

    # ---- leaving

    def leave(self, leave: Leave) -> None:
        if not self._process.is_alive:
            return
        node = self._reached(leave.peer)
        if node is None:
            self._answer(Left(leave.peer, "connection refused"))
            return
        if (node.as_member().id, node.instance) != (leave.safekeeper_id, leave.instance):
            self._world.count("leaves for another one")
            self._answer(Left(leave.peer, f"{node.name} is not the one that was meant"))
            return
        try:
            node.leave(leave.membership)
        except SafekeeperError as error:
            self._world.count("leaves refused")
            self._answer(Left(leave.peer, str(error)))
            return
        is_lost = not node.is_reachable or self._loses_answer()
        self._answer(Left(leave.peer, "connection lost" if is_lost else ""))

    # ---- parts

    def _reached(self, peer: int) -> Node | None:
        """The safekeeper that answers at that address now."""
        process = self._process
        node = self._world.node_at(process.addresses[peer])
        is_reached = node is not None and node.is_reachable and process.reaches(node)
        return node if is_reached else None

    def _loses_answer(self) -> bool:
        return not self._world.is_calm and self._world.random.random() < CHANCE_OF_A_LOST_ANSWER

    def _answer(self, answer: Joined | Left) -> None:
        self._world.clock.call_later(self.delay_us(), self._process.step, answer)
