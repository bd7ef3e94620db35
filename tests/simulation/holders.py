"""`Holders`: how much of a leader's log each node has, as far as that leader may count on it.

A node counts with its disk, and with WAL that it has lost and not reported. For a deposed leader a
member that has left counts with its log at the time: a later leader has managed without it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from quorum_wal.consensus.ids import NodeId

from .ghost import Ghost
from .log import START_LSN

if TYPE_CHECKING:
    from .incarnation import Incarnation
    from .node import Node


class Holders:
    """`followed`: the ballot that each node follows, by its index."""

    def __init__(self, followed: Mapping[int, Ghost], ghosts: Mapping[NodeId, Ghost]) -> None:
        self._followed = followed
        self._ghosts = ghosts
        #: The flushed positions of nodes that have lost a part since.
        self._lost_lsns: dict[int, int] = {}
        #: Of who has left: by whose membership, and the log that it had then.
        self._left_with: dict[int, list[tuple[NodeId, Ghost, int]]] = defaultdict(list)

    # ---- events

    def lost(self, node: Node, *, is_again: bool) -> None:
        """It lost a part of its flushed WAL; `is_again`: it was not complete before."""
        before_lsn = self._lost_lsns[node.index] if is_again else 0
        self._lost_lsns[node.index] = max(node.disk.flushed_lsn, before_lsn)

    def left(self, node: Node, flushed_lsn: int) -> None:
        author = node.disk.control.membership.stamp.author
        self._left_with[node.index].append((author, self._followed[node.index], flushed_lsn))

    def begun_anew(self, node: Node) -> None:
        self._lost_lsns.pop(node.index, None)

    # ---- holdings

    def lost_lsn(self, node: Node) -> int:
        """0 once it is complete again."""
        return self._lost_lsns.get(node.index, 0) if node.disk.control.lost_lsn else 0

    def holds(self, process: Incarnation, lsn: int) -> Callable[[Node], bool]:
        """Whether a node has the log of this process up to there."""
        assert process.core.node_id is not None
        ghost = self._ghosts[process.core.node_id]

        def has(node: Node) -> bool:
            if lsn <= self.lost_lsn(node):
                return True
            if any(lsn <= end and is_same(left) for left, end in self._left_later(node, process)):
                return True
            if node.disk.flushed_lsn < lsn or node.index in process.lost_nodes:
                return False
            return is_same(self._followed[node.index])

        def is_same(followed: Ghost) -> bool:
            return followed is ghost or (
                followed.log.read(START_LSN, lsn) == ghost.log.read(START_LSN, lsn)
            )

        return has

    def flushed_by(self, node: Node, process: Incarnation) -> int:
        """Its flushed position, or the one when it lost WAL or left."""
        left = [end_lsn for _, end_lsn in self._left_later(node, process)]
        return max(node.disk.flushed_lsn, self.lost_lsn(node), *left)

    def _left_later(self, node: Node, process: Incarnation) -> list[tuple[Ghost, int]]:
        node_id = process.core.node_id
        assert node_id is not None
        left = self._left_with[node.index]
        return [(ghost, end_lsn) for author, ghost, end_lsn in left if author > node_id]
