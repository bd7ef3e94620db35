"""The command: `python -m tests.simulation`.

--seeds 1000:2000 --minutes 5          many seeds: progress, rate, what was covered
--seed 7 --trace                       one seed, one line per event
--seed 7 --faults 3,5 --horizon-ms 90  the same with less in it, as a failure prints it
--seed 7 --files                       on real files, which lose what is not synced; many seeds, too
--seed 7 --changing                    members join, leave, move, lose their disks; many seeds, too
--seed 7 --limbo                       transactions wait for the quorum; many seeds, too
--seed 7 --pageserver                  pageservers, their service and store; many seeds, too
--mutants                              the planted bugs; fails if one is not caught; rare ones
--exhaustive                           every interleaving of small models; --minutes of a larger one
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter

from . import exhaustive, mutants
from .changing_world import ChangingWorld
from .faults import Plan
from .file_world import run_on_files
from .limbo_world import LimboWorld
from .limits import small_limits
from .minimise import command, minimise
from .pageserver_world import PageserverWorld
from .planted_bugs import (
    CHANGE_PLANTS,
    LIMBO_PLANTS,
    PAGESERVER_PLANTS,
    PLANTS,
    RARE_LIMBO_PLANTS,
    RARE_PAGESERVER_PLANTS,
    RARE_PLANTS,
)
from .trace import Trace
from .world import World, plan_with

PROGRESS_SECONDS = 10.0


def main() -> int:
    arguments = _parser().parse_args()
    if arguments.mutants:
        return _mutants()
    if arguments.exhaustive:
        return _exhaustive(arguments.minutes)
    with small_limits():
        if arguments.seed is not None:
            return _one(arguments)
        return _many(arguments)


def _exhaustive(minutes: float) -> int:
    for model in exhaustive.COMPLETE:
        print(f"{model}: {exhaustive.search(model)}", flush=True)
    large = exhaustive.LARGE
    print(f"{large}: {exhaustive.search(large, minutes * 60)}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--seeds", type=_range, default=range(0, 1_000_000), metavar="A:B")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--faults", type=_numbers, metavar="I,J,...|none")
    parser.add_argument("--horizon-ms", type=int)
    parser.add_argument("--files", action="store_true")
    parser.add_argument("--changing", action="store_true")
    parser.add_argument("--limbo", action="store_true")
    parser.add_argument("--pageserver", action="store_true")
    parser.add_argument("--mutants", action="store_true")
    parser.add_argument("--exhaustive", action="store_true")
    return parser


def _range(text: str) -> range:
    begin, _, end = text.partition(":")
    return range(int(begin), int(end))


def _numbers(text: str) -> list[int]:
    return [] if text == "none" else [int(number) for number in text.split(",")]


def _one(arguments: argparse.Namespace) -> int:
    seed = arguments.seed
    plan = _kind(arguments).plan_of(seed)
    kept = range(len(plan.faults)) if arguments.faults is None else arguments.faults
    horizon_us = arguments.horizon_ms * 1000 if arguments.horizon_ms else None
    plan = plan_with(plan, kept, horizon_us)
    trace = Trace(print if arguments.trace else None)
    try:
        world = _run(arguments, seed, plan, trace)
    except Exception as error:
        print(f"seed {seed} fails: {_describe(error)}")
        return 1
    print(f"seed {seed} holds: {world.steps} steps")
    print(_table(world.counts))
    return 0


def _kind(arguments: argparse.Namespace) -> type[World | PageserverWorld]:
    if arguments.pageserver:
        return PageserverWorld
    if arguments.limbo:
        return LimboWorld
    return ChangingWorld if arguments.changing else World


def _run(
    arguments: argparse.Namespace,
    seed: int,
    plan: Plan | None = None,
    trace: Trace | None = None,
) -> World | PageserverWorld:
    """The world after its run. Raises the error of the run."""
    if arguments.files:
        return run_on_files(seed, plan, trace)
    world = _kind(arguments)(seed, plan, trace)
    world.run()
    return world


def _many(arguments: argparse.Namespace) -> int:
    begun = said = time.monotonic()
    counts: Counter[str] = Counter()
    steps = done = 0
    for seed in arguments.seeds:
        try:
            world = _run(arguments, seed)
        except Exception as error:
            return _failed(arguments, seed, error)
        steps, done = steps + world.steps, done + 1
        counts += world.counts
        now = time.monotonic()
        if now - said > PROGRESS_SECONDS:
            said = now
            print(f"seed {seed}: {done} seeds, {_rate(steps, now - begun)}", flush=True)
        if now - begun > arguments.minutes * 60:
            break
    print(_table(counts))
    print(f"{done} seeds hold: {_rate(steps, time.monotonic() - begun)}")
    return 0


def _rate(steps: int, seconds: float) -> str:
    return f"{steps} steps in {seconds:.0f} s, {steps / seconds:.0f} steps/s"


def _failed(arguments: argparse.Namespace, seed: int, error: Exception) -> int:
    print(f"seed {seed} fails: {_describe(error)}")
    if arguments.files:
        print(f"python -m tests.simulation --seed {seed} --files --trace")
        return 1
    print("making it smaller ...", flush=True)
    kind = _kind(arguments)
    print(command(seed, *minimise(seed, kind), kind=kind))
    return 1


def _describe(error: Exception) -> str:
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({place.filename}:{place.lineno})"


def _table(counts: Counter[str]) -> str:
    return "\n".join(f"{count:9}  {what}" for what, count in sorted(counts.items()))


def _mutants() -> int:
    bugs = [*PLANTS, *CHANGE_PLANTS, *LIMBO_PLANTS, *PAGESERVER_PLANTS]
    escaped = mutants.run(bugs, say)
    print(f"{len(bugs) - len(escaped)} of {len(bugs)} planted bugs were caught")
    rare_bugs = [*RARE_PLANTS, *RARE_LIMBO_PLANTS, *RARE_PAGESERVER_PLANTS]
    rare = mutants.run_rare(rare_bugs, say)
    print(f"{len(rare_bugs) - len(rare)} of {len(rare_bugs)} rare ones were caught")
    return 1 if escaped else 0


def say(row: str) -> None:
    print(row, flush=True)


if __name__ == "__main__":
    sys.exit(main())
