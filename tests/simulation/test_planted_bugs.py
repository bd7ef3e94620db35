"""Tests of the simulator: planted bugs are caught, and a failing seed is reduced.

`make mutants` does it for all of them, from the first seed on.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from . import exhaustive
from .broken_law import BrokenLaw
from .bugs_of_proposer import votes_count_as_answers
from .bugs_of_safekeeper import (
    answer_before_the_fsync,
    equal_term_granted_to_another_proposer,
    vote_without_persisting,
)
from .faults import Plan
from .limits import small_limits
from .minimise import broken_law, command, minimise
from .mutants import catch, name_of, try_seed
from .planted_bugs import (
    CHANGE_PLANTS,
    LIMBO_PLANTS,
    PAGESERVER_PLANTS,
    PLANTS,
    RARE_LIMBO_PLANTS,
    RARE_PAGESERVER_PLANTS,
    RARE_PLANTS,
    Plant,
    planted,
)
from .world import plan_with

PLANTS_MIN = 25
ALL_PLANTS = [*PLANTS, *CHANGE_PLANTS, *LIMBO_PLANTS, *PAGESERVER_PLANTS]
ALL_RARE_PLANTS = [*RARE_PLANTS, *RARE_LIMBO_PLANTS, *RARE_PAGESERVER_PLANTS]
MANUAL = (Path(__file__).parents[2] / "docs/proof.md").read_text()


def test_there_are_enough_planted_bugs() -> None:
    assert len(PLANTS) >= PLANTS_MIN
    all_plants = [*ALL_PLANTS, *ALL_RARE_PLANTS]
    assert len(all_plants) == len({bug.__name__ for bug in all_plants})


def test_the_manual_names_all_planted_bugs() -> None:
    for bug in ALL_PLANTS:
        assert f"| {name_of(bug)} |" in MANUAL
    for bug in ALL_RARE_PLANTS:
        assert f"- {name_of(bug)}\n" in MANUAL
    core, change = MANUAL.split("\nIn worlds whose members change", maxsplit=1)
    assert f"All {len(PLANTS)} are caught" in " ".join(core.split())
    change, limbo = change.split("\nIn worlds with a limbo", maxsplit=1)
    assert f"All {len(CHANGE_PLANTS)} are caught" in " ".join(change.split())
    limbo, pages = limbo.split("\nIn worlds of pageservers", maxsplit=1)
    assert f"All {len(LIMBO_PLANTS)} are caught" in " ".join(limbo.split())
    assert f"All {len(PAGESERVER_PLANTS)} are caught" in " ".join(pages.split())


def manual_seed(bug: Plant) -> int:
    """The first that catches it, according to the manual."""
    (needed,) = re.findall(rf"^\| {re.escape(name_of(bug))} \| ([0-9]+) \|", MANUAL, re.MULTILINE)
    return int(needed) - 1


@pytest.mark.parametrize("bug", ALL_PLANTS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_caught(bug: Plant) -> None:
    """First by the seed in the manual, because the seeds before it take time and catch nothing. If
    a change has made another seed catch it, by any of the first."""
    assert try_seed(bug, manual_seed(bug)) or catch(bug)


@pytest.mark.parametrize(
    ("bug", "model"),
    [
        (equal_term_granted_to_another_proposer, exhaustive.RIVALS[2]),
        (answer_before_the_fsync, exhaustive.SHARED),
        (vote_without_persisting, exhaustive.SHARED),
        (votes_count_as_answers, exhaustive.SUCCESSOR),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_small_model_shows_it_too(bug: Plant, model: exhaustive.Model) -> None:
    with planted(bug), pytest.raises(BrokenLaw):
        exhaustive.search(model)


def test_a_failing_seed_is_reduced() -> None:
    seed = 0
    with small_limits(), planted(answer_before_the_fsync):
        kept, horizon_us = minimise(seed)
        smaller = plan_with(Plan.of(seed), kept, horizon_us)
        assert len(kept) < len(Plan.of(seed).faults)
        assert broken_law(seed, smaller) == "Durable"
    assert command(seed, kept, horizon_us).startswith("python -m tests.simulation --seed 0 ")
