"""Quorum arithmetic against an oracle that tries every subset."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorum_wal.consensus.membership import Membership, MembershipError, Stamp
from quorum_wal.consensus.quorum import committed_lsn, has_quorum, quorum_lsn, quorum_size

IDS = range(1, 10)
GROUP = st.sets(st.sampled_from(IDS), min_size=1, max_size=9).map(lambda ids: tuple(sorted(ids)))
MEMBERSHIPS = st.builds(Membership, st.just(Stamp.FIRST), GROUP, st.one_of(st.just(()), GROUP))
POSITIONS = st.dictionaries(st.sampled_from(IDS), st.integers(0, 20))


def oracle_quorum_lsn(membership: Membership, positions: dict[int, int]) -> int:
    """The greatest LSN that, in every group, all members of some majority have reached."""

    def group_lsn(group: tuple[int, ...]) -> int:
        majorities = (
            subset
            for size in range(len(group) // 2 + 1, len(group) + 1)
            for subset in combinations(group, size)
        )
        return max(min(positions.get(m, 0) for m in subset) for subset in majorities)

    groups = [g for g in (membership.members, membership.new_members) if g]
    return min(group_lsn(group) for group in groups)


@pytest.mark.parametrize(("members", "needed"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (9, 5)])
def test_quorum_size(members: int, needed: int) -> None:
    assert quorum_size(members) == needed


@given(MEMBERSHIPS, POSITIONS)
def test_quorum_lsn_is_what_some_majority_of_every_group_has(
    membership: Membership, positions: dict[int, int]
) -> None:
    assert quorum_lsn(membership, positions) == oracle_quorum_lsn(membership, positions)


@given(MEMBERSHIPS, POSITIONS, st.integers(1, 20))
def test_members_below_the_term_start_do_not_count_for_commit(
    membership: Membership, positions: dict[int, int], term_start_lsn: int
) -> None:
    reached = {i: lsn if lsn >= term_start_lsn else 0 for i, lsn in positions.items()}
    commit_lsn = committed_lsn(membership, positions, term_start_lsn)
    assert commit_lsn == oracle_quorum_lsn(membership, reached)
    assert commit_lsn == 0 or commit_lsn >= term_start_lsn


@given(MEMBERSHIPS, st.sets(st.sampled_from(IDS)))
def test_has_quorum_is_a_majority_of_every_group(membership: Membership, ids: set[int]) -> None:
    groups = [g for g in (membership.members, membership.new_members) if g]
    assert has_quorum(membership, ids) == all(2 * len(ids & set(g)) > len(g) for g in groups)


@given(MEMBERSHIPS, st.sets(st.sampled_from(IDS)), st.sets(st.sampled_from(IDS)))
def test_any_two_quorums_intersect(membership: Membership, one: set[int], other: set[int]) -> None:
    if has_quorum(membership, one) and has_quorum(membership, other):
        assert one & other


@pytest.mark.parametrize("members", [(), (0,), (1, 1), (2, 1), tuple(range(1, 11))])
def test_impossible_members(members: tuple[int, ...]) -> None:
    with pytest.raises(MembershipError):
        Membership(Stamp.FIRST, members)
