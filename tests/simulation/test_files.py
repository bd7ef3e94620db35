"""Whole runs with the real files of safekeepers, the codec and the order of their calls to a disk.

The same seeds as without files stand for other runs, because writes fail at other places.
"""

from __future__ import annotations

from collections import Counter

import pytest

from .bugs_of_files import FILE_PLANTS
from .file_world import run_on_files
from .limits import small_limits
from .planting import Plant, planted

SEEDS = 25
SEEDS_OF_A_BUG = 5
MUST_BE_COVERED = (
    "elections", "commits", "truncations", "truncations interrupted", "torn tails",
    "timeline switches", "catch-ups from a donor", "segments begun", "removals of segments",
    "records that end with their segment",
    "losses of what was not synced",
    "crashes between calls to the disk", "crashes in a recovery",
    "disk: an error that stops the timeline",
)  # fmt: skip
#: Of a safekeeper and of a leader; a third of the values when this was written.
STEADY = {"batches by the steady path": 2000, "events by the steady path": 500}


@pytest.mark.timeout(900)
def test_the_invariants_hold_on_files() -> None:
    counts = Counter[str]()
    for seed in range(SEEDS):
        try:
            with small_limits():
                counts += run_on_files(seed).counts
        except Exception as error:
            pytest.fail(f"{error}\npython -m tests.simulation --seed {seed} --files --trace")
    missing = [what for what in MUST_BE_COVERED if not counts[what]]
    missing += [what for what, least in STEADY.items() if counts[what] < least]
    assert not missing, f"{SEEDS} seeds did not meet {missing}"


def test_a_seed_is_a_run_on_files() -> None:
    with small_limits():
        one, other = run_on_files(7), run_on_files(7)
    assert (one.steps, one.counts) == (other.steps, other.counts)
    assert one.invariants.committed.wal == other.invariants.committed.wal


@pytest.mark.parametrize("bug", FILE_PLANTS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_caught_on_files(bug: Plant) -> None:
    with small_limits(), planted(bug), pytest.raises(AssertionError):  # a BrokenLaw is one, too
        run_until_it_fails()


def run_until_it_fails() -> None:
    for seed in range(SEEDS_OF_A_BUG):
        run_on_files(seed)
