"""The coordinator's core keeps the laws of the limbo, in a world with faults.

The number of seeds is the same on any machine: SEEDS are always the same, FRESH are others in every
run.
"""

from __future__ import annotations

import pytest

from . import seeds
from .limbo_world import LimboWorld

SEEDS = 45
FRESH = 15
#: What SEEDS must cover at least: about half of what they covered when this was written.
MUST_BE_COVERED = {
    "limbo: prepared": 1200, "limbo: confirmed": 1100, "limbo: refused": 3200,
    "limbo: decoded Prepare": 830, "limbo: decoded CommitPrepared": 640,
    "limbo: decoded RollbackPrepared": 51, "limbo: readings": 570, "limbo: searches": 640,
    "limbo: finished: True": 430, "limbo: finished: False": 10, "limbo: finished: 42704": 28,
    "limbo: finished: 08006": 28, "limbo: client's end: True": 460,
    "limbo: client's end: False": 150, "limbo: client's end: 42704": 64,
    "limbo: outcome committed": 510, "limbo: outcome rolled_back": 450,
    "limbo: outcome pending": 1000, "limbo: outcome unknown": 64, "limbo: barriers": 190,
    "limbo: resolved committed": 6, "limbo: resolved rolled_back": 5, "limbo: by hand": 12,
    "limbo: promoted primaries opened": 28, "limbo: crashes before a PREPARE": 12,
    "limbo: stalls at a PREPARE": 7, "limbo: alarms": 250, "timeline switches": 64,
    "stop: fenced": 160,
}  # fmt: skip


@pytest.mark.timeout(900)
def test_the_laws_of_the_limbo_hold() -> None:
    seeds.check(LimboWorld, SEEDS, FRESH, MUST_BE_COVERED)


def test_a_seed_is_a_run() -> None:
    seeds.check_repeats(LimboWorld)
