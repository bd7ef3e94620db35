"""Many seeds of one kind of world: each must hold, and together they must cover enough."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping

import pytest

from .limits import small_limits
from .minimise import command, minimise
from .world import World


def run(kind: type[World], seed: int) -> Counter[str]:
    """What it covered. A failure prints the command that repeats it."""
    world = kind(seed)
    try:
        world.run()
    except Exception as error:
        pytest.fail(f"{error}\n{command(seed, *minimise(seed, kind), kind=kind)}")
    return world.counts


def check(kind: type[World], seeds: int, fresh: int, must_be_met: Mapping[str, int]) -> None:
    """The first `seeds`, which are the same in each run, cover enough of everything; `fresh` are
    new."""
    counts = Counter[str]()
    begin = time.time_ns() // 1_000_000_000
    with small_limits():
        for seed in range(seeds):
            counts += run(kind, seed)
        for seed in range(begin, begin + fresh):
            run(kind, seed)
    rare = {what: counts[what] for what, least in must_be_met.items() if counts[what] < least}
    assert not rare, f"{seeds} seeds met too few of {rare}"


def check_repeats(kind: type[World], seed: int = 11) -> None:
    """Two runs are equal; otherwise no failure could be repeated."""
    with small_limits():
        worlds = [kind(seed), kind(seed)]
        for world in worlds:
            world.run()
    one, other = worlds
    assert (one.steps, one.counts) == (other.steps, other.counts)
    assert one.invariants.committed.wal == other.invariants.committed.wal
