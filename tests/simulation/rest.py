"""`Rest`: the state after all faults have ended: a proposer that knows one address must win.

It is computed from the disks, by the law of finding: the greatest membership of the asked
safekeepers, then the addresses in it, until no greater one appears.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from quorum_wal.consensus.membership import Membership

from .broken_law import check
from .node import Address, Node
from .node_state import NodeState
from .sets import has_quorum

if TYPE_CHECKING:
    from .changing_world import ChangingWorld

AWAY = (NodeState.EMPTY, NodeState.GONE, NodeState.DAMAGED)


@dataclass(frozen=True, slots=True)
class Rest:
    address: Address

    @classmethod
    def found(cls, world: ChangingWorld) -> Rest | None:
        """None if disks were lost, and with them a quorum. It must be possible from any address,
        unless some have moved, or were switched off after they had left: then from some."""
        known = [node.address for node in world.nodes if node.state not in AWAY]
        known = [address for address in known if answering(world, address) is not None]
        world.random.shuffle(known)
        for address in known:
            membership, met = discover(world, address)
            able = [node.index for node in met if node.has_log]
            if has_quorum(world.nodes, membership, partial(is_one_of, able)):
                return cls(address)
            is_no_wonder = world.gone or world.moved or world.disks_lost
            check("Rest", bool(is_no_wonder), address, "leads to no quorum of", membership)
        is_lost = world.disks_lost or world.moved
        check("Rest", bool(is_lost), "no address leads to a quorum, and no disk was lost")
        return None


def is_one_of(indexes: list[int], node: Node) -> bool:
    return node.index in indexes


def answering(world: ChangingWorld, address: Address) -> Node | None:
    """The safekeepers that have the timeline, or have left it."""
    node = world.node_at(address)
    return node if node is not None and node.state not in AWAY else None


def discover(world: ChangingWorld, address: Address) -> tuple[Membership, list[Node]]:
    """The greatest membership found, and the safekeepers that were asked."""
    asked, found = {address}, answering(world, address)
    assert found is not None
    membership = found.disk.control.membership
    while True:
        asked |= {(member.host, member.port) for member in membership.roster}
        met = [node for node in (answering(world, one) for one in sorted(asked)) if node]
        greatest = max((n.disk.control.membership for n in met), key=lambda m: m.stamp)
        if greatest.stamp <= membership.stamp:
            return membership, met
        membership = greatest
