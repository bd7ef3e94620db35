"""The cores keep the laws while their members change, in a world with faults.

The number of seeds is the same on any machine: SEEDS are always the same, FRESH are others in every
run.
"""

from __future__ import annotations

import pytest

from . import seeds
from .changing_world import ChangingWorld

SEEDS = 60
FRESH = 25
#: What SEEDS must cover at least: about half of what they covered when this was written.
MUST_BE_COVERED = {
    "changes requested": 300, "timelines joined": 72, "timelines joined again": 60,
    "joint memberships entered": 42, "left forward": 30, "left forward, found": 6, "left back": 1,
    "elections in a joint membership": 6, "memberships in force": 300, "addresses changed": 60,
    "leaders that ended in a change": 15, "timelines left": 100, "leaves refused": 18,
    "servers moved": 21, "servers switched off": 6, "disks lost": 9, "commits": 4200,
    "truncations": 130, "crashes between actions": 20, "events by the steady path": 2400,
}  # fmt: skip


@pytest.mark.timeout(900)
def test_the_invariants_hold_while_members_change() -> None:
    seeds.check(ChangingWorld, SEEDS, FRESH, MUST_BE_COVERED)


def test_a_seed_is_a_run() -> None:
    seeds.check_repeats(ChangingWorld)
