"""Every planted bug must be caught: by how many seeds, from which one on, and which invariant
breaks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from .broken_law import BrokenLaw
from .changing_world import ChangingWorld
from .limbo_world import LimboWorld
from .limits import small_limits
from .pageserver_world import PageserverWorld
from .planted_bugs import (
    CHANGE_PLANTS,
    LIMBO_PLANTS,
    PAGESERVER_PLANTS,
    RARE_LIMBO_PLANTS,
    RARE_PAGESERVER_PLANTS,
    RARE_PLANTS,
    Plant,
    planted,
)
from .world import World

#: A bug that so many seeds do not catch could pass `make test`.
SEEDS_MAX = 100
#: A bug that needs more seeds could pass `make mutants`.
RARE_SEEDS_MAX = 2000


@dataclass(frozen=True, slots=True)
class Caught:
    """By one seed: the law that broke, and its message."""

    seed: int
    law: str
    text: str


def law_of(error: Exception) -> str:
    """The law that broke; an error inside a core is one of its assertions, or a crash of the
    bug."""
    if isinstance(error, BrokenLaw):
        return error.law
    return f"{type(error).__name__} in a core"


def kind_of(bug: Plant) -> type[World | PageserverWorld]:
    """The kind of world in which it has an effect."""
    if bug in PAGESERVER_PLANTS or bug in RARE_PAGESERVER_PLANTS:
        return PageserverWorld
    if bug in LIMBO_PLANTS or bug in RARE_LIMBO_PLANTS:
        return LimboWorld
    return ChangingWorld if bug in CHANGE_PLANTS or bug in RARE_PLANTS else World


def try_seed(bug: Plant, seed: int) -> Caught | None:
    with small_limits(), planted(bug):
        try:
            kind_of(bug)(seed).run()
        except Exception as error:
            return Caught(seed, law_of(error), str(error))
    return None


def catch(bug: Plant, seeds_max: int = SEEDS_MAX) -> Caught | None:
    """By the first seed that catches it."""
    tries = (try_seed(bug, seed) for seed in range(seeds_max))
    return next((caught for caught in tries if caught is not None), None)


def run_rare(bugs: Iterable[Plant], say: Callable[[str], None]) -> list[str]:
    """For bugs that only one of hundreds of runs shows: up to the first seed that catches it."""
    escaped = []
    say("| rare planted bug | seeds needed | what fell |")
    say("|---|---|---|")
    for bug in bugs:
        caught = catch(bug, RARE_SEEDS_MAX)
        if caught is None:
            escaped.append(bug.__name__)
        needed = f"more than {RARE_SEEDS_MAX}" if caught is None else f"{caught.seed + 1}"
        say(f"| {name_of(bug)} | {needed} | {caught.law if caught else '-'} |")
    return escaped


def name_of(bug: Plant) -> str:
    return bug.__name__.replace("_s_", "'s ").replace("_", " ")


def run(bugs: Iterable[Plant], say: Callable[[str], None]) -> list[str]:
    """Prints a table, row by row; returns the names of the bugs that were not caught."""
    escaped = []
    say(f"| planted bug | seeds needed | caught by, of {SEEDS_MAX} | what fell |")
    say("|---|---|---|---|")
    for bug in bugs:
        name = name_of(bug)
        all_caught = [c for seed in range(SEEDS_MAX) if (c := try_seed(bug, seed)) is not None]
        if not all_caught:
            escaped.append(bug.__name__)
            say(f"| {name} | more than {SEEDS_MAX} | 0 | - |")
            continue
        laws = Counter(caught.law for caught in all_caught).most_common(2)
        fell = ", ".join(law for law, _ in laws)
        say(f"| {name} | {all_caught[0].seed + 1} | {len(all_caught)} | {fell} |")
    return escaped
