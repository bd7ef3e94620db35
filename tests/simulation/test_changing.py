"""The cores keep the laws while their members change, in a world with faults.

The number of seeds is the same on any machine: SEEDS are always the same, FRESH are others in every
run.
"""

from __future__ import annotations

import pytest

from . import seeds
from .changing_world import ChangingWorld

SEEDS = 30
FRESH = 15
#: What SEEDS must cover at least: about half of what they covered when this was written.
MUST_BE_COVERED = {
    "changes requested": 150, "timelines joined": 36, "timelines joined again": 30,
    "joint memberships entered": 21, "left forward": 15, "left forward, found": 1, "left back": 1,
    "elections in a joint membership": 1, "memberships in force": 150, "addresses changed": 30,
    "leaders that ended in a change": 7, "timelines left": 50, "leaves refused": 9,
    "servers moved": 10, "servers switched off": 3, "disks lost": 4, "commits": 2100,
    "truncations": 65, "crashes between actions": 9, "events by the steady path": 1200,
}  # fmt: skip


@pytest.mark.timeout(900)
def test_the_invariants_hold_while_members_change() -> None:
    seeds.check(ChangingWorld, SEEDS, FRESH, MUST_BE_COVERED)


def test_a_seed_is_a_run() -> None:
    seeds.check_repeats(ChangingWorld)
