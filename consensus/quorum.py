"""Quorum arithmetic: an order statistic, not a vote count.

Put each member's position in a list (absent = 0), sort, and take one entry: the greatest position
that a quorum has reached. For a joint configuration, take the minimum over its groups.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from quorum_wal.consensus.membership import Membership


def quorum_size(members_count: int) -> int:
    """N/2 + 1."""
    return members_count // 2 + 1


def has_quorum(membership: Membership, ids: Collection[int]) -> bool:
    """True if `ids` contain a quorum of every group."""
    return all(
        sum(member in ids for member in group) >= quorum_size(len(group))
        for group in membership.groups
    )


def quorum_lsn(membership: Membership, positions: Mapping[int, int]) -> int:
    """The greatest LSN that a quorum of every group has reached; missing members count as 0."""
    return min([_group_lsn(group, positions) for group in membership.groups])


def _group_lsn(group: Sequence[int], positions: Mapping[int, int]) -> int:
    reached = sorted([positions.get(member, 0) for member in group])
    return reached[-quorum_size(len(group))]


def committed_lsn(
    membership: Membership, flush_lsns: Mapping[int, int], term_start_lsn: int
) -> int:
    """The commit rule: quorum-th greatest flush_lsn, or 0 while that is below the term's start.

    Without the second part, a record of an older term that is on a quorum would count as committed
    although a later leader may still truncate it (Raft, figure 8). `flush_lsns` contains only
    members that have answered under the current ballot.
    """
    lsn = quorum_lsn(membership, flush_lsns)
    return lsn if lsn >= term_start_lsn else 0
