"""Reduces a failing seed: fewer faults, and an earlier end.

Omitting a fault changes later random events, so the same law may break elsewhere; any run in which
it breaks is accepted. Faults are omitted in halves, quarters, and so on, down to single ones.
"""

from __future__ import annotations

from .faults import Plan
from .mutants import law_of
from .world import World, plan_with

RUNS_MAX = 300


def broken_law(seed: int, plan: Plan, kind: type[World] = World) -> str:
    """The law that breaks in this run, or ""."""
    try:
        kind(seed, plan).run()
    except Exception as error:
        return law_of(error)
    return ""


def minimise(seed: int, kind: type[World] = World) -> tuple[list[int], int]:
    """The numbers of the faults that must remain, and the horizon. The seed must fail."""
    plan = kind.plan_of(seed)
    law, runs = broken_law(seed, plan, kind), 0
    kept, horizon_us = list(range(len(plan.faults))), plan.horizon_us

    def fails(faults: list[int], until_us: int) -> bool:
        nonlocal runs
        runs += 1
        return runs <= RUNS_MAX and (
            broken_law(seed, plan_with(plan, faults, until_us), kind) == law
        )

    size = len(kept)
    while size:
        begin = 0
        while begin < len(kept):
            fewer = kept[:begin] + kept[begin + size :]
            if fails(fewer, horizon_us):
                kept = fewer
            else:
                begin += size
        size //= 2
    while horizon_us > 20_000 and fails(kept, horizon_us // 2):
        horizon_us //= 2
    return kept, horizon_us


def command(seed: int, kept: list[int], horizon_us: int, *, kind: type[World] = World) -> str:
    """The command that repeats the run, with its log."""
    faults = ",".join(map(str, kept)) or "none"
    return (
        f"python -m tests.simulation --seed {seed} {kind.option}"
        f"--faults {faults} "
        f"--horizon-ms {horizon_us // 1000} --trace"
    )
