"""The cores keep the law while their members change, in a world that fails.

A number of seeds, whatever the machine: SEEDS are always the same, FRESH are others in every run.
"""

from __future__ import annotations

import time
from collections import Counter

import pytest

from .changing_world import ChangingWorld
from .limits import small_limits
from .minimise import command, minimise

SEEDS = 150
FRESH = 40
#: What SEEDS must have met, and how often at least: about a third of what they met when this was
#: written.
MUST_BE_COVERED = {
    "changes requested": 500, "timelines joined": 120, "timelines joined again": 100,
    "joint memberships entered": 70, "left forward": 50, "left forward, found": 10, "left back": 2,
    "elections in a joint membership": 10, "memberships in force": 500, "addresses changed": 100,
    "leaders that ended in a change": 25, "timelines left": 180, "leaves refused": 30,
    "servers moved": 35, "servers switched off": 10, "disks lost": 15, "commits": 7000,
    "truncations": 230, "crashes between actions": 70, "events by the steady path": 4000,
}  # fmt: skip


def run(seed: int) -> Counter[str]:
    world = ChangingWorld(seed)
    try:
        world.run()
    except Exception as error:
        smaller = minimise(seed, ChangingWorld)
        pytest.fail(f"{error}\n{command(seed, *smaller, kind=ChangingWorld)}")
    return world.counts


@pytest.mark.timeout(900)
def test_the_invariants_hold_while_members_change() -> None:
    counts = Counter[str]()
    fresh = time.time_ns() // 1_000_000_000
    with small_limits():
        for seed in range(SEEDS):
            counts += run(seed)
        for seed in range(fresh, fresh + FRESH):
            run(seed)
    rare = {what: counts[what] for what, least in MUST_BE_COVERED.items() if counts[what] < least}
    assert not rare, f"{SEEDS} seeds met too few of {rare}"


def test_a_seed_is_a_run() -> None:
    """Twice the same, or no failure could be repeated."""
    with small_limits():
        worlds = [ChangingWorld(11), ChangingWorld(11)]
        for world in worlds:
            world.run()
    one, other = worlds
    assert (one.steps, one.counts) == (other.steps, other.counts)
    assert one.invariants.committed.wal == other.invariants.committed.wal
