"""The plan of a command that changes the members: done, under way, not begun, or refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from quorum_wal.cluster.member_plan import (
    MemberPlan,
    Stage,
    check_quorums,
    plan_add,
    plan_move,
    plan_remove,
    plan_replace,
    steps_of,
    warnings_of,
)
from quorum_wal.consensus.ids import NodeId
from quorum_wal.consensus.membership import Member, Membership, Stamp
from quorum_wal.walproposer.errors import Refusal

STAMP = Stamp(NodeId(5, b"proposer".ljust(16)), 4)


def listed(number: int) -> Member:
    return Member(number, number.to_bytes(8, "big"), f"10.0.0.{number}", 5454)


def members(*ids: int, new: tuple[int, ...] = ()) -> Membership:
    return Membership(STAMP, ids, new, tuple(map(listed, sorted({*ids, *new}))))


THREE = members(1, 2, 3)
JOINT = members(1, 2, 3, new=(1, 2, 4))


def at_site(number: int, site: str) -> Member:
    return replace(listed(number), site=site)


LABELLED = replace(THREE, roster=tuple(at_site(i, "b") for i in (1, 2, 3)))

Plan = Callable[[Membership], MemberPlan]
PLANS: list[tuple[Plan, Membership, Stage, tuple[int, ...]]] = [
    (lambda m: plan_add(m, [listed(4)]), THREE, Stage.NOT_BEGUN, (1, 2, 3, 4)),
    (lambda m: plan_add(m, [listed(2), listed(3)]), members(1), Stage.NOT_BEGUN, (1, 2, 3)),
    (lambda m: plan_add(m, [listed(3)]), THREE, Stage.DONE, (1, 2, 3)),
    (lambda m: plan_add(m, [listed(4)]), members(1, new=(1, 4)), Stage.UNDER_WAY, (1, 4)),
    (lambda m: plan_remove(m, [3]), THREE, Stage.NOT_BEGUN, (1, 2)),
    (lambda m: plan_remove(m, [2, 3]), THREE, Stage.NOT_BEGUN, (1,)),
    (lambda m: plan_remove(m, [9]), THREE, Stage.DONE, (1, 2, 3)),
    (lambda m: plan_remove(m, [3]), members(1, 2, 3, new=(1, 2)), Stage.UNDER_WAY, (1, 2)),
    (lambda m: plan_replace(m, 3, listed(4)), THREE, Stage.NOT_BEGUN, (1, 2, 4)),
    (lambda m: plan_replace(m, 3, listed(4)), JOINT, Stage.UNDER_WAY, (1, 2, 4)),
    (lambda m: plan_replace(m, 3, listed(4)), members(1, 2, 4), Stage.DONE, (1, 2, 4)),
    (lambda m: plan_move(m, replace(listed(2), port=5)), THREE, Stage.NOT_BEGUN, (1, 2, 3)),
    (lambda m: plan_move(m, listed(2)), THREE, Stage.DONE, (1, 2, 3)),
    (lambda m: plan_move(m, at_site(2, "b")), THREE, Stage.NOT_BEGUN, (1, 2, 3)),
    (lambda m: plan_move(m, at_site(2, "b")), LABELLED, Stage.DONE, (1, 2, 3)),
    (lambda m: plan_move(m, listed(2)), LABELLED, Stage.DONE, (1, 2, 3)),
]


@pytest.mark.parametrize(("plan", "present", "stage", "ids"), PLANS)
def test_done_under_way_or_not_begun(
    plan: Plan, present: Membership, stage: Stage, ids: tuple[int, ...]
) -> None:
    planned = plan(present)
    assert (planned.stage, planned.wanted_ids) == (stage, ids)


def test_a_move_changes_the_address_alone() -> None:
    plan = plan_move(THREE, replace(listed(2), host="10.9.9.9"))
    assert plan.is_only_addresses
    assert [m.address for m in plan.wanted] == ["10.0.0.1:5454", "10.9.9.9:5454", "10.0.0.3:5454"]
    assert steps_of(plan) == ["the members are informed: safekeeper 2 is at 10.9.9.9:5454"]


def test_a_move_to_the_same_address_changes_the_label() -> None:
    """A member of an older release, without labels."""
    plan = plan_move(THREE, at_site(2, "b"))
    assert plan.is_only_addresses
    assert [m.site for m in plan.wanted] == ["", "b", ""]
    assert steps_of(plan) == ["the members are informed: safekeeper 2 is at 10.0.0.2:5454, site b"]


def wiped(number: int) -> Member:
    return replace(listed(number), instance=b"new disk")


#: A log whose members were never changed.
FIRST = THREE.stamped(Stamp(NodeId(5, b"proposer".ljust(16)), 1))

REFUSED: list[tuple[Plan, Membership, str, str]] = [
    (lambda m: plan_add(m, [wiped(3)]), THREE, "another data directory", "sk member replace 3"),
    (lambda m: plan_add(m, [listed(4), wiped(4)]), THREE, "have the same id 4", "an --id"),
    (lambda m: plan_replace(m, 3, wiped(3)), THREE, "another data directory", "an --id"),
    (lambda m: plan_move(m, wiped(3)), THREE, "another data directory", "sk member replace 3"),
    (lambda m: plan_replace(m, 3, listed(3)), THREE, "cannot replace itself", "sk member move 3"),
    (lambda m: plan_replace(m, 3, listed(2)), THREE, "is already a member", "sk member remove 3"),
    (lambda m: plan_replace(m, 8, listed(4)), THREE, "safekeeper 8 is not a member", "list"),
    (lambda m: plan_replace(m, 7, listed(2)), FIRST, "safekeeper 7 is not a member", "list"),
    (lambda m: plan_replace(m, 3, wiped(4)), JOINT, "another data directory", "an --id"),
    (lambda m: plan_add(m, [wiped(4)]), members(1, new=(1, 4)), "another data dir", "an --id"),
    (lambda m: plan_move(m, listed(8)), THREE, "safekeeper 8 is not a member", "list"),
    (lambda m: plan_remove(m, [1, 2, 3]), THREE, "the last one", "sk member replace"),
    (lambda m: plan_remove(m, [2]), JOINT, "another change is under way", "sk member cancel"),
    (lambda m: plan_add(m, [listed(5)]), JOINT, "from members 1, 2, 3 to 1, 2, 4", "cancel"),
    (
        lambda m: plan_add(m, [listed(i) for i in range(4, 11)]),
        THREE,
        "would lead to 10 members",
        "Remove members first",
    ),
]


@pytest.mark.parametrize(("plan", "present", "reason", "hint"), REFUSED)
def test_refusals(plan: Plan, present: Membership, reason: str, hint: str) -> None:
    with pytest.raises(Refusal, match=reason) as caught:
        plan(present)
    assert hint in caught.value.hint


def test_a_change_needs_a_quorum_of_both_sets() -> None:
    replaced = plan_replace(THREE, 3, listed(4))
    check_quorums(replaced, {1, 2, 4}, {})
    check_quorums(replaced, {1, 2}, {})
    with pytest.raises(Refusal, match="no quorum: only 1 of the 3 members present") as caught:
        check_quorums(replaced, {1, 4}, {})
    assert "sk member force" in caught.value.hint
    with pytest.raises(
        Refusal, match=r"wait for ever: only 1 of the 2 members wanted .* not alive: 2"
    ):
        check_quorums(plan_remove(THREE, [3]), {1, 3}, {})


def test_a_damaged_member_does_not_vote_in_the_wanted_set() -> None:
    damaged = {3: "the segment at 0/3000000 is damaged: it is short"}
    with pytest.raises(Refusal, match=r"only 1 of the 2 members wanted .* not alive: 3") as caught:
        check_quorums(plan_remove(THREE, [2]), {1, 2, 3}, damaged)
    assert "safekeeper 3 does not vote: the segment at 0/3000000 is damaged" in str(caught.value)
    assert "sk member replace 3" in caught.value.hint
    check_quorums(plan_replace(THREE, 3, listed(4)), {1, 2, 3, 4}, damaged)


def test_a_damaged_follower_can_be_replaced_while_another_member_is_dead() -> None:
    """With 2 dead, 1 and 3 confirm commits and the change; afterwards 1 and 4 do."""
    damaged = {3: "the segment at 0/3000000 is damaged: it is short"}
    check_quorums(plan_replace(THREE, 3, listed(4)), {1, 3, 4}, damaged)
    check_quorums(plan_replace(THREE, 2, listed(4)), {1, 3, 4}, damaged)


def test_an_even_count_is_allowed_with_a_warning() -> None:
    assert warnings_of(plan_replace(THREE, 3, listed(4))) == []
    (four,) = warnings_of(plan_add(THREE, [listed(4)]))
    assert four.startswith("4 members tolerate the loss of 1, no more than 3 would")
    (two,) = warnings_of(plan_remove(THREE, [3]))
    assert two.startswith("2 members tolerate the loss of none, no more than 1 would")


def test_the_steps_in_order() -> None:
    assert steps_of(plan_replace(THREE, 3, listed(4))) == [
        "safekeeper 4 (10.0.0.4:5454) receives the log, and is not counted until it has caught up",
        "each commit needs a quorum of 1, 2, 3 and one of 1, 2, 4",
        "the members are 1, 2, 4",
        "safekeeper 3 is informed that it has left, and deletes its WAL",
    ]
