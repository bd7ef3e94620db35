"""Every planted bug must be caught: how many seeds it takes, and which invariant falls."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from .invariants import BrokenLaw
from .limits import small_limits
from .planted_bugs import Plant, planted
from .world import World

SEEDS_MAX = 500


@dataclass(frozen=True, slots=True)
class Caught:
    """`seeds` is how many runs it took; the text is what the last of them said."""

    bug: str
    seeds: int
    law: str
    text: str


def law_of(error: Exception) -> str:
    """The law that fell; an error inside a core is one of its own assertions, or a bug's crash."""
    if isinstance(error, BrokenLaw):
        return error.law
    return f"{type(error).__name__} in a core"


def catch(bug: Plant, seeds_max: int = SEEDS_MAX) -> Caught | None:
    for seed in range(seeds_max):
        with small_limits(), planted(bug):
            try:
                World(seed).run()
            except Exception as error:
                name = bug.__name__.replace("_s_", "'s ").replace("_", " ")
                return Caught(name, seed + 1, law_of(error), str(error))
    return None


def run(bugs: Iterable[Plant], say: Callable[[str], None]) -> list[str]:
    """Says a table, row by row; returns the names of the bugs that were not caught."""
    escaped = []
    say("| planted bug | seeds needed | what fell |")
    say("|---|---|---|")
    for bug in bugs:
        caught = catch(bug)
        if caught is None:
            escaped.append(bug.__name__)
            say(f"| {bug.__name__} | not in {SEEDS_MAX} | - |")
        else:
            say(f"| {caught.bug} | {caught.seeds} | {caught.law} |")
    return escaped
