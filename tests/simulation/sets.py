"""Sets of members, counted without the cores: the identity of a member, and quorums of each set."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from quorum_wal.consensus.membership import UNKNOWN_INSTANCE, Member, Membership

if TYPE_CHECKING:
    from .node import Node


def node_of(nodes: Sequence[Node], member: Member) -> Node | None:
    """The disk of this member; another one under its id is a different disk. One whose instance is
    unknown existed from the start."""
    for node in nodes:
        if node.number == member.id and member.instance in (UNKNOWN_INSTANCE, node.instance):
            return node
    return None


def nodes_of(nodes: Sequence[Node], membership: Membership, ids: Iterable[int]) -> list[Node]:
    found = [node_of(nodes, membership.member(number)) for number in ids]
    return [node for node in found if node is not None]


def has_majority(
    nodes: Sequence[Node], membership: Membership, ids: Sequence[int], has: Callable[[Node], bool]
) -> bool:
    """A quorum of one set has it."""
    return sum(map(has, nodes_of(nodes, membership, ids))) * 2 > len(ids)


def sets_of(membership: Membership) -> list[tuple[int, ...]]:
    return [ids for ids in (membership.members, membership.new_members) if ids]


def has_quorum(nodes: Sequence[Node], membership: Membership, has: Callable[[Node], bool]) -> bool:
    """A quorum of each set has it."""
    return all(has_majority(nodes, membership, ids, has) for ids in sets_of(membership))
