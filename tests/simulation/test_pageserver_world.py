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

SEEDS = 20
FRESH = 8
SERVICE_SEEDS = 10
#: What SEEDS must cover at least: about half of what they covered when this was written.
MUST_BE_COVERED = {
    "changes stored": 660, "keys deleted": 10_000, "lists removed": 500,
    "lists of before removed": 33, "hints": 260, "orphans": 12_000, "scrubs": 660,
    "scrubs broken off": 80, "readers": 1200, "validations": 800, "verdict: outdated": 43,
    "verdict: rivalled": 4, "alarm: stale": 40, "alarm: rivalled": 8, "refused: generation": 2,
    "emergency starts": 33, "emergencies that went on": 3, "processes that found a successor": 6,
    "processes that were replaced": 6, "killed between actions": 4, "frozen between actions": 8,
    "timelines removed": 66, "merges": 66, "merges broken off": 6, "fault: migrate": 8,
    "fault: put service back": 4, "fault: move during validation": 6, "fault: late claim": 5,
    "store: copied": 320, "store: late": 130, "store: lost": 66, "store: unheard": 73,
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
