"""The probe sees what holds the interpreter, and nothing else."""

from __future__ import annotations

import time

import pytest

from tests.interpreter_probe import longest_hold


def hold(times: int = 1) -> None:
    """One call into C, of some tenths of a second; none for 0."""
    sum(range(20_000_000 * times))


def test_a_long_call_holds_it() -> None:
    assert longest_hold(hold) > 0.02


@pytest.mark.parametrize(
    ("holds", "tries"),
    [
        ((0, 0, 1), 2),
        ((0, 1, 0), 3),
        ((1, 0, 0), 3),
        ((0, 1, 1), 3),
        ((1, 0, 1), 3),
        ((1, 1, 0), 3),
    ],
)
def test_what_most_tries_show_counts(holds: tuple[int, ...], tries: int) -> None:
    """Two that hold it for no longer than is allowed are enough."""
    coming = iter(holds)
    held_seconds = longest_hold(lambda: hold(next(coming)), enough=0.02)
    assert (held_seconds > 0.02) is (sum(holds) > 1)
    assert len(list(coming)) == 3 - tries


def test_work_in_the_interpreter_does_not() -> None:
    """It gives way every few milliseconds."""
    assert longest_hold(lambda: sum(i * i for i in range(500_000))) < 0.02


def test_waiting_does_not() -> None:
    assert longest_hold(lambda: time.sleep(0.1)) < 0.02
