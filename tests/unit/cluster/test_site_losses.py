"""The sites that may be lost, from the members' labels."""

from __future__ import annotations

import pytest

from quorum_wal.cluster.site_losses import site_losses
from quorum_wal.consensus.membership import Membership, Stamp

THREE = {1: "a", 2: "b", 3: "c"}
FIVE = {1: "a", 2: "b", 3: "c", 4: "d", 5: "e"}
PAIRS = "a and b, a and c, a and d, a and e, b and c, b and d, b and e, c and d, c and e, d and e"


def losses_text(
    sites: dict[int, str], new: tuple[int, ...] = (), down: tuple[int, ...] = ()
) -> str:
    members = tuple(sites) if not new else tuple(i for i in sites if i <= 3)
    return str(site_losses(Membership(Stamp.FIRST, members, new), sites, down))


@pytest.mark.parametrize(
    ("sites", "text"),
    [
        (THREE, "sites: the loss of any one site is survived"),
        (
            {1: "a", 2: "a", 3: "b"},
            "sites: the loss of site b is survived; that of site a is not",
        ),
        ({1: "a", 2: "a", 3: "a"}, "sites: that of site a is not"),
        (FIVE, f"sites: the loss of any one site is survived; pairs that may be lost: {PAIRS}"),
        (
            {1: "a", 2: "a", 3: "b", 4: "b", 5: "c"},
            "sites: the loss of any one site is survived",
        ),
        ({1: "a", 2: "", 3: ""}, "sites: the loss of any one site is survived"),
    ],
)
def test_survived_losses(sites: dict[int, str], text: str) -> None:
    assert losses_text(sites) == text


def test_there_is_no_answer_without_labels() -> None:
    assert site_losses(Membership(Stamp.FIRST, (1, 2, 3)), {1: "", 2: ""}) is None


def test_members_that_are_down_are_not_counted() -> None:
    assert losses_text(THREE, down=(3,)) == (
        "sites: the loss of site c is survived; that of site a or b is not"
    )


def test_a_joint_membership_needs_both_quorums() -> None:
    """In the old set any site could be lost; in the new one two members are at d."""
    sites = {**THREE, 4: "d", 5: "d"}
    assert losses_text(sites, new=(3, 4, 5)) == (
        "sites: the loss of site a or b or c is survived; that of site d is not"
    )


def test_as_json() -> None:
    losses = site_losses(Membership(Stamp.FIRST, (1, 2, 3)), {1: "a", 2: "a", 3: "b"})
    assert losses is not None
    assert losses.as_json() == {"survived": ["b"], "not_survived": ["a"], "survived_pairs": []}
