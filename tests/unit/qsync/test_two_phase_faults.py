"""Faults at each step of the protocol: every reported outcome is true."""

from __future__ import annotations

import itertools
from typing import get_args

import psycopg
import pytest
from two_phase_world import NEVER, Fault, Truth, TwoPhaseWorld

from quorum_wal.qsync.errors import NotCommitted
from quorum_wal.qsync.options import Confirm, OnTimeout, Options, Wait
from quorum_wal.qsync.outcome import Committed, Pending, Refused, RolledBack

CHOICES = [
    Options(on_timeout=on_timeout, confirm=confirm, wait=wait)
    for on_timeout in get_args(OnTimeout)
    for confirm in get_args(Confirm)
    for wait in get_args(Wait)
]
LAST_STEP = 14


def _name(options: Options) -> str:
    return f"{options.on_timeout}-{options.confirm}-{options.wait}"


def _check(options: Options, confirms_at: float, faults: dict[int, Fault]) -> type:
    """Run it, and compare the reported outcome with the final state."""
    world = TwoPhaseWorld(options, confirms_at=confirms_at, faults=faults)
    told: object
    try:
        world.begin()
    except psycopg.Error:
        return type(None)
    try:
        world.end()
        if options.wait == "submit":
            world.wait()
        told = world.two_phase.result
    except NotCommitted as error:
        told = error.outcome
    assert told == world.two_phase.outcome
    final = world.janitor()
    match told:
        case Committed():
            assert final is Truth.COMMITTED
        case RolledBack() | Refused():
            assert final is Truth.ROLLED_BACK
        case Pending():
            assert final in (Truth.COMMITTED, Truth.ROLLED_BACK)
        case _:
            raise AssertionError(told)
    # Or its gid would never be left to the janitor.
    assert isinstance(told, Committed) or not world.is_spoken_for
    return type(told)


@pytest.mark.parametrize("options", CHOICES, ids=_name)
@pytest.mark.parametrize("confirms_at", [0.0, 5.5])
def test_reported_outcomes_are_true_whatever_breaks(options: Options, confirms_at: float) -> None:
    """Each two faults, at each two requests. A fault that occurs twice counts as one."""
    faults = [(at, fault) for at in range(LAST_STEP) for fault in Fault]
    pairs = itertools.combinations_with_replacement(faults, 2)
    told = {_check(options, confirms_at, dict(pair)) for pair in pairs}
    assert told >= {Committed, RolledBack, Pending, Refused} - (
        set() if confirms_at == 0 or options.on_timeout == "rollback" else {Committed}
    )


@pytest.mark.parametrize("options", CHOICES, ids=_name)
@pytest.mark.parametrize("confirms_at", [3.0, 100.0, NEVER])
def test_reported_outcomes_are_true_whenever_the_quorum_answers(
    options: Options, confirms_at: float
) -> None:
    for at, fault in itertools.product(range(LAST_STEP), Fault):
        _check(options, confirms_at, {at: fault})
