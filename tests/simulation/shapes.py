"""`Shapes`: how often a run reached the situations in which a mistake would show.

It counts, and checks nothing. The faults are steered to these shapes (`faults.FOCI`), and the test
requires a number of each, so that a change which makes one rare is noticed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorum_wal.consensus.ids import NodeId
from quorum_wal.consensus.messages import Append, Elected, VoteRequest
from quorum_wal.safekeeper.events import Event, Received

from .ghost import Ghost
from .log import common_bytes

if TYPE_CHECKING:
    from .node import Node
    from .world import World


class Shapes:
    """Gets each message before its safekeeper steps, and each election."""

    def __init__(self, world: World) -> None:
        self._world = world
        #: Safekeepers to which an older ballot has sent WAL after their vote.
        self._disturbed: set[int] = set()

    def stepping(self, node: Node, event: Event) -> None:
        if type(event) is not Received:
            return
        message = event.message
        if type(message) is Append:
            self._append(node, event.connection, message)
        elif type(message) is VoteRequest:
            self._vote(node, message)
        elif type(message) is Elected:
            self._elected(node, message)

    def _append(self, node: Node, connection: int, append: Append) -> None:
        assert node.acceptor is not None
        promised = node.acceptor.control.promised
        if append.node_id < promised:
            self._count("appends below the promise")
            self._disturbed.add(node.number)
        elif append.node_id == promised and connection != node.acceptor.streaming:
            self._count("appends without Elected")

    def _vote(self, node: Node, request: VoteRequest) -> None:
        assert node.acceptor is not None
        acceptor, promised = node.acceptor, node.acceptor.control.promised
        if request.node_id < promised:
            if are_rivals(request.node_id, promised):
                self._count("votes refused to a rival of one term")
            return
        self._disturbed.discard(node.number)
        if are_rivals(request.node_id, promised):
            self._count("votes for a rival of one term")
        if acceptor.durable_lsn != acceptor.written_lsn:
            self._count("votes on unflushed bytes")
        if acceptor.record_end_lsn != acceptor.written_lsn:
            self._count("votes inside a record")

    def _elected(self, node: Node, elected: Elected) -> None:
        assert node.acceptor is not None
        ghost, wal = self._world.invariants.ghosts.get(elected.node_id), node.disk.wal
        if ghost is None or common_bytes(wal, ghost.log.wal) == len(wal):
            return
        if elected.node_id < node.acceptor.control.promised:
            self._count("diverged voters: Elected comes after a greater promise")
        elif node.number in self._disturbed:
            self._count("diverged voters: Elected comes after older appends")
        else:
            self._count("diverged voters: Elected comes first")

    def won(self, ghost: Ghost) -> None:
        others = [other for other in self._world.invariants.ghosts if other != ghost.node_id]
        if any(are_rivals(other, ghost.node_id) for other in others):
            self._count("terms won by two rivals")
        if any(other > ghost.node_id for other in others):
            self._count("elections won after a greater one")

    def _count(self, shape: str) -> None:
        self._world.count(shape)


def are_rivals(one: NodeId, other: NodeId) -> bool:
    """Two ballots of one term."""
    return one.term == other.term and one != other
