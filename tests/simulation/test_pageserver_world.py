"""The cores of pageservers keep their laws, in a world with faults.

The number of seeds is the same on any machine: SEEDS are always the same, FRESH are others in every
run.
"""

from __future__ import annotations

import pytest

from . import seeds
from .bugs_of_pageserver import service_alone
from .pageserver_world import PageserverWorld
from .planting import planted

SEEDS = 30
FRESH = 8
SERVICE_SEEDS = 10
#: What SEEDS must cover at least: about half of what they covered when this was written.
MUST_BE_COVERED = {
    "changes stored": 1000, "keys deleted": 15_000, "lists removed": 750,
    "lists of before removed": 50, "hints": 400, "orphans": 18_000, "scrubs": 1000,
    "scrubs broken off": 120, "readers": 1800, "validations": 1200, "verdict: outdated": 65,
    "verdict: rivalled": 9, "alarm: stale": 60, "alarm: rivalled": 12, "refused: generation": 3,
    "emergency starts": 50, "emergencies that went on": 5, "processes that found a successor": 10,
    "processes that were replaced": 10, "killed between actions": 7, "frozen between actions": 13,
    "timelines removed": 100, "merges": 100, "merges broken off": 10, "fault: migrate": 12,
    "fault: put service back": 7, "fault: move during validation": 9, "fault: late claim": 8,
    "store: copied": 490, "store: late": 200, "store: lost": 100, "store: unheard": 110,
}  # fmt: skip


@pytest.mark.timeout(900)
def test_the_laws_of_pageservers_hold() -> None:
    seeds.check(PageserverWorld, SEEDS, FRESH, MUST_BE_COVERED)


def test_the_service_alone_is_enough_while_it_does_not_go_back() -> None:
    """Otherwise the laws that two planted bugs break would prove nothing."""
    with planted(service_alone):
        for seed in range(SERVICE_SEEDS):
            seeds.run(PageserverWorld, seed)


def test_a_seed_is_a_run() -> None:
    """Two runs are equal; otherwise no failure could be repeated."""
    worlds = [PageserverWorld(11), PageserverWorld(11)]
    for world in worlds:
        world.run()
    one, other = worlds
    assert (one.steps, one.counts) == (other.steps, other.counts)
    assert one.store.pages == other.store.pages
