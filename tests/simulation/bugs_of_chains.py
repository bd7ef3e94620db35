"""Planted bugs of the daisy chain: the WAL that it accepts, and what it reports."""

from __future__ import annotations

from quorum_wal.consensus.ids import NodeId
from quorum_wal.safekeeper.acceptor import Acceptor
from quorum_wal.safekeeper.events import Action, FlushWal
from quorum_wal.safekeeper.named_ends import NamedEnds

from .chain import NodeChain
from .planting import Patch, plant


@plant
def chain_continues_from_a_fenced_source(patch: Patch) -> None:
    """It reads bytes of another ballot."""

    def look(self: NodeChain) -> tuple[NodeId, int]:
        return self._order.node_id, self._acceptor_of_source().flush_lsn

    patch(NodeChain, "_look", look)
    patch(NodeChain, "_follows", lambda self: self._order.node_id)


@plant
def record_end_above_the_chained_wal(patch: Patch) -> None:
    patch(NamedEnds, "reached", lambda self, _: self._ends[-1] if self._ends else 0)


@plant
def chained_wal_answered_before_the_fsync(patch: Patch) -> None:
    batch_ended = Acceptor._batch_ended

    def hasty(self: Acceptor, connection: int) -> list[Action]:
        actions = batch_ended(self, connection)
        return [a for a in actions if not (self.is_chained and isinstance(a, FlushWal))]

    patch(Acceptor, "_batch_ended", hasty)
