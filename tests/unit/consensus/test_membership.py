"""Memberships: order of stamps, joint memberships, bytes and status pages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from values import MEMBERSHIP, NODE_ID, U32

from quorum_wal.consensus.errors import MessageError
from quorum_wal.consensus.ids import NodeId
from quorum_wal.consensus.membership import Member, Membership, MembershipError, Stamp
from quorum_wal.consensus.membership_codec import decode_membership, encode_membership
from quorum_wal.consensus.membership_page import membership_of_page, membership_page, split_address

A, B = NodeId(1, b"a" * 16), NodeId(2, b"b" * 16)
ROSTER = tuple(Member(i, bytes([i]) * 8, f"10.0.0.{i}", 5454, "here") for i in (1, 2, 3, 4))
THREE = Membership(Stamp(A, 2), (1, 2, 3), (), ROSTER[:3])


@given(NODE_ID, U32, NODE_ID, U32)
def test_m1_stamps_are_ordered_by_author_then_generation(
    one: NodeId, generation: int, other: NodeId, other_generation: int
) -> None:
    stamps = Stamp(one, generation), Stamp(other, other_generation)
    by_hand = one < other or (one == other and generation < other_generation)
    assert (stamps[0] < stamps[1]) is by_hand


def test_a_joint_membership_has_both_sets_and_is_left_to_either() -> None:
    joint = THREE.joint_with(Stamp(A, 3), (ROSTER[1], ROSTER[3]))
    assert joint.groups == ((1, 2, 3), (2, 4))
    assert joint.all_members == (1, 2, 3, 4)
    assert joint.roster == ROSTER
    forward = joint.left_to(Stamp(A, 4), joint.new_members)
    assert (forward.members, forward.new_members) == ((2, 4), ())
    assert forward.roster == (ROSTER[1], ROSTER[3])
    assert joint.left_to(Stamp(A, 2), joint.members) == THREE


def test_the_mark_of_a_forced_log_stays_in_every_later_membership() -> None:
    """Through every change, also after the forced member has left."""
    alone = Membership(Stamp(A, 1), (1,), (), ROSTER[:1], is_forced=True)
    joint = alone.joint_with(Stamp(A, 2), ROSTER[1:4])
    left = joint.left_to(Stamp(A, 3), joint.new_members).stamped(Stamp(B, 3))
    assert (joint.is_forced, left.members, left.is_forced) == (True, (2, 3, 4), True)


def test_an_older_release_refuses_a_forced_membership_rather_than_drop_the_mark() -> None:
    """The older release reads a roster count that no roster can have."""
    marked, plain = (
        encode_membership(replace(THREE, is_forced=is_forced)) for is_forced in (True, False)
    )
    (at,) = [i for i, (one, other) in enumerate(zip(marked, plain, strict=True)) if one != other]
    assert (plain[at], marked[at]) == (3, 128 + 3)


def test_a_member_that_comes_with_a_new_address_keeps_it() -> None:
    moved = replace(ROSTER[1], host="10.9.9.9")
    assert THREE.joint_with(Stamp(A, 3), (moved,)).member(2) == moved


def test_an_unknown_instance_matches_any_and_a_known_one_only_itself() -> None:
    """Condition A1."""
    assert THREE.member(1).is_instance(b"\1" * 8)
    assert not THREE.member(1).is_instance(b"another!")
    assert Membership(Stamp.FIRST, (1,)).member(1).is_instance(b"another!")


@pytest.mark.parametrize(
    "fields",
    [
        {"members": ()},
        {"members": (2, 1)},
        {"new_members": (3, 3)},
        {"new_members": tuple(range(1, 11))},
        {"roster": (ROSTER[3],)},
        {"roster": (ROSTER[1], ROSTER[0])},
    ],
)
def test_impossible_memberships(fields: dict[str, Any]) -> None:
    with pytest.raises(MembershipError):
        replace(THREE, **fields)


@pytest.mark.parametrize(
    "fields",
    [{"id": 0}, {"instance": b"short"}, {"port": 65536}, {"host": "h" * 256}, {"site": "s" * 256}],
)
def test_impossible_members(fields: dict[str, Any]) -> None:
    with pytest.raises(MembershipError):
        replace(ROSTER[0], **fields)


@given(MEMBERSHIP)
def test_it_survives_its_bytes(membership: Membership) -> None:
    assert decode_membership(encode_membership(membership)) == membership


def test_it_survives_a_status_page() -> None:
    members = (*ROSTER[:2], Member(3), Member(4, b"instance", "fd00::4", 1))
    membership = Membership(Stamp(B, 7), (1, 2, 3), (2, 4), members)
    assert membership_of_page(membership_page(membership)) == membership
    marked = replace(membership, is_forced=True)
    assert membership_of_page(membership_page(marked)) == marked
    older = {name: value for name, value in membership_page(THREE).items() if name != "forced"}
    assert membership_of_page(older) == THREE


@pytest.mark.parametrize(
    "change",
    [
        {"author": "x"},
        {"generation": None},
        {"members": 7},
        {"members": ["1"]},
        {"roster": [{}]},
        {"roster": [{"id": 1, "instance": "zz", "address": "", "site": ""}]},
        {"roster": [{"id": 1, "instance": "00" * 8, "address": "host", "site": ""}]},
    ],
)
def test_a_page_of_something_else_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(MessageError, match="page does not show"):
        membership_of_page({**membership_page(THREE), **change})


@pytest.mark.parametrize("address", ["host", ":1", "host:", "host:0", "host:65536", "host:\u0661"])
def test_an_address_needs_a_host_and_a_port(address: str) -> None:
    with pytest.raises(MessageError, match="expected host:port"):
        split_address(address)
