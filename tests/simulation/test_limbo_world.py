"""The coordinator's core keeps the laws of the limbo, in a world with faults.

The number of seeds is the same on any machine: SEEDS are always the same, FRESH are others in every
run.
"""

from __future__ import annotations

import pytest

from . import seeds
from .limbo_world import LimboWorld

SEEDS = 24
FRESH = 10
#: What SEEDS must cover at least: about half of what they covered when this was written.
MUST_BE_COVERED = {
    "limbo: prepared": 640, "limbo: confirmed": 586, "limbo: refused": 1706,
    "limbo: decoded Prepare": 351, "limbo: decoded CommitPrepared": 295,
    "limbo: decoded RollbackPrepared": 24, "limbo: readings": 304, "limbo: searches": 300,
    "limbo: finished: True": 229, "limbo: finished: False": 5, "limbo: finished: 42704": 14,
    "limbo: finished: 08006": 14, "limbo: client's end: True": 245,
    "limbo: client's end: False": 80, "limbo: client's end: 42704": 34,
    "limbo: outcome committed": 272, "limbo: outcome rolled_back": 240,
    "limbo: outcome pending": 533, "limbo: outcome unknown": 34, "limbo: barriers": 101,
    "limbo: resolved committed": 3, "limbo: resolved rolled_back": 2, "limbo: by hand": 6,
    "limbo: promoted primaries opened": 14, "limbo: crashes before a PREPARE": 6,
    "limbo: stalls at a PREPARE": 3, "limbo: alarms": 133, "timeline switches": 34,
    "stop: fenced": 85,
}  # fmt: skip


@pytest.mark.timeout(900)
def test_the_laws_of_the_limbo_hold() -> None:
    seeds.check(LimboWorld, SEEDS, FRESH, MUST_BE_COVERED)


def test_a_seed_is_a_run() -> None:
    seeds.check_repeats(LimboWorld)
