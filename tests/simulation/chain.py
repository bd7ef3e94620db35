"""`NodeChain`: the reading end of a daisy chain: the log of another node, read for one connection.

It checks how far it may read. An event between the check and the arrival of the bytes affects the
bytes: the source may be fenced, disconnected, or lose its data in between.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from quorum_wal.consensus.ids import NodeId
from quorum_wal.safekeeper.acceptor import Acceptor
from quorum_wal.safekeeper.donor_rule import DonorRule
from quorum_wal.safekeeper.errors import SafekeeperError, WalDamaged
from quorum_wal.safekeeper.events import TakeWal
from quorum_wal.walproposer.chain_rule import NO_CHAINS, ChainRule

from .log import PAGE_SIZE

if TYPE_CHECKING:
    from .node import Node

LOOK_US = 1000
CHAIN_BYTES_MAX = 8192
DELAYS_US = (0, 500, 5000, 30_000)
MEMBERS_MAX = 9


class NodeChain:
    """The reader for one TakeWal."""

    def __init__(self, node: Node, order: TakeWal) -> None:
        self._node = node
        self._order = order
        self._next_lsn = order.begin_lsn
        self._source = node.world.node_at((order.host, order.port))
        self._rule = DonorRule(order.node_id, self._look, self._follows)
        node.world.clock.call_later(LOOK_US, self._go_on)

    def _acceptor_of_source(self) -> Acceptor:
        source = self._source
        if source is None or source.acceptor is None or not source.has_log:
            raise SafekeeperError("the source is away")
        return source.acceptor

    def _look(self) -> tuple[NodeId, int]:
        acceptor = self._acceptor_of_source()
        return acceptor.control.promised, acceptor.flush_lsn

    def _follows(self) -> NodeId:
        return self._acceptor_of_source().control.term_history.entries[-1].node_id

    @property
    def _is_current(self) -> bool:
        return self._node.chains.get(self._order.connection) is self

    def _go_on(self) -> None:
        node = self._node
        if not self._is_current:
            return
        try:
            limit_lsn = self._rule.limit_lsn()
        except SafekeeperError:
            self._end()
            return
        assert self._source is not None
        is_still = node.is_paused or self._source.is_paused
        if is_still or limit_lsn <= self._next_lsn:
            node.world.clock.call_later(LOOK_US, self._go_on)
            return
        page_lsn = self._next_lsn - self._next_lsn % PAGE_SIZE
        end_lsn = min(page_lsn + CHAIN_BYTES_MAX, limit_lsn)
        node.world.clock.call_later(node.world.random.choice(DELAYS_US), self._read, end_lsn)

    def _read(self, end_lsn: int) -> None:
        node, order, source = self._node, self._order, self._source
        if not self._is_current or source is None:
            return
        try:
            wal = self._rule.checked(source.read_checked(self._next_lsn, end_lsn))
        except (SafekeeperError, WalDamaged):
            self._end()
            return
        begin_lsn, self._next_lsn = self._next_lsn, self._next_lsn + len(wal)
        node.world.clock.call_later(LOOK_US, node.chained, order, begin_lsn, wal)
        node.world.clock.call_later(2 * LOOK_US, self._go_on)

    def _end(self) -> None:
        self._node.world.count("chains that ended with their source")
        self._node.chains.pop(self._order.connection, None)
        self._node.close(self._order.connection)


def chain_rule_of(seed: int) -> ChainRule:
    """In every third world some members take their WAL from another one."""
    if seed % 3 != 1:
        return NO_CHAINS
    random, numbers = Random(f"chains {seed}"), range(1, MEMBERS_MAX + 1)
    chained = [number for number in numbers if random.random() < 0.5]
    return ChainRule({n: random.choice([m for m in numbers[:5] if m != n]) for n in chained})
