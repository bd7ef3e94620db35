"""The coordinator's core keeps the laws of the limbo, in a world with faults.

The number of seeds is the same on any machine: SEEDS are always the same, FRESH are others in every
run.
"""

from __future__ import annotations

import pytest

from . import seeds
from .limbo_world import LimboWorld

SEEDS = 70
FRESH = 15
#: What SEEDS must cover at least: about half of what they covered when this was written.
MUST_BE_COVERED = {
    "limbo: prepared": 2000, "limbo: confirmed": 1800, "limbo: refused": 5000,
    "limbo: decoded Prepare": 1300, "limbo: decoded CommitPrepared": 1000,
    "limbo: decoded RollbackPrepared": 80, "limbo: readings": 900, "limbo: searches": 1000,
    "limbo: finished: True": 680, "limbo: finished: False": 16, "limbo: finished: 42704": 45,
    "limbo: finished: 08006": 45, "limbo: client's end: True": 720,
    "limbo: client's end: False": 240, "limbo: client's end: 42704": 100,
    "limbo: outcome committed": 800, "limbo: outcome rolled_back": 700,
    "limbo: outcome pending": 1700, "limbo: outcome unknown": 100, "limbo: barriers": 300,
    "limbo: resolved committed": 10, "limbo: resolved rolled_back": 8, "limbo: by hand": 20,
    "limbo: promoted primaries opened": 45, "limbo: crashes before a PREPARE": 20,
    "limbo: stalls at a PREPARE": 12, "limbo: alarms": 400, "timeline switches": 100,
    "stop: fenced": 250,
}  # fmt: skip


@pytest.mark.timeout(900)
def test_the_laws_of_the_limbo_hold() -> None:
    seeds.check(LimboWorld, SEEDS, FRESH, MUST_BE_COVERED)


def test_a_seed_is_a_run() -> None:
    seeds.check_repeats(LimboWorld)
