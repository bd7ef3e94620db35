"""The cores keep the law in a world that fails; a failing seed is printed as one command.

At least SEEDS seeds, and at least SECONDS of them; beyond SEEDS, every run takes other ones.
"""

from __future__ import annotations

import time
from collections import Counter

import pytest

from . import exhaustive
from .limits import small_limits
from .minimise import command, minimise
from .world import World

SEEDS = 300
SECONDS = 60.0
#: What a run of SEEDS must have met, or nothing was proven.
MUST_BE_COVERED = (
    "elections", "commits", "truncations", "truncations interrupted", "torn tails",
    "figure-8 shapes", "timeline switches", "catch-ups from a donor", "damaged logs",
    "crashes between actions", "disk: fsync", "disk: write", "disk: full", "disk: control file",
    "stop: fenced", "stop: refused", "stop: restart", "stop: completed",
)  # fmt: skip


def run(seed: int) -> Counter[str]:
    world = World(seed)
    try:
        world.run()
    except Exception as error:
        pytest.fail(f"{error}\n{command(seed, *minimise(seed))}")
    return world.counts


@pytest.mark.timeout(900)
def test_the_invariants_hold_after_every_step() -> None:
    begun, counts = time.monotonic(), Counter[str]()
    fresh = time.time_ns() // 1_000_000_000
    with small_limits():
        for seed in range(SEEDS):
            counts += run(seed)
        while time.monotonic() - begun < SECONDS:
            fresh += 1
            run(fresh)
    missing = [what for what in MUST_BE_COVERED if not counts[what]]
    assert not missing, f"{SEEDS} seeds did not meet {missing}"


def test_a_seed_is_a_run() -> None:
    """Twice the same, or no failure could be repeated."""
    with small_limits():
        worlds = [World(11), World(11)]
        for world in worlds:
            world.run()
    one, other = worlds
    assert (one.steps, one.counts) == (other.steps, other.counts)
    assert one.invariants.committed.wal == other.invariants.committed.wal


def test_every_interleaving_of_a_small_model() -> None:
    result = exhaustive.search(5.0)
    assert result.states > 1000
    assert result.elections > 1
