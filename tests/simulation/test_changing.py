"""The cores keep the laws while their members change, in a world with faults.

The number of seeds is the same on any machine: SEEDS are always the same, FRESH are others in every
run.
"""

from __future__ import annotations

import pytest

from . import seeds
from .changing_world import ChangingWorld

SEEDS = 100
FRESH = 25
#: What SEEDS must cover at least: about half of what they covered when this was written.
MUST_BE_COVERED = {
    "changes requested": 500, "timelines joined": 120, "timelines joined again": 100,
    "joint memberships entered": 70, "left forward": 50, "left forward, found": 10, "left back": 2,
    "elections in a joint membership": 10, "memberships in force": 500, "addresses changed": 100,
    "leaders that ended in a change": 25, "timelines left": 180, "leaves refused": 30,
    "servers moved": 35, "servers switched off": 10, "disks lost": 15, "commits": 7000,
    "truncations": 230, "crashes between actions": 70, "events by the steady path": 4000,
}  # fmt: skip


@pytest.mark.timeout(900)
def test_the_invariants_hold_while_members_change() -> None:
    seeds.check(ChangingWorld, SEEDS, FRESH, MUST_BE_COVERED)


def test_a_seed_is_a_run() -> None:
    seeds.check_repeats(ChangingWorld)
