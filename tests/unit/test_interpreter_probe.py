"""The probe sees what holds the interpreter, and nothing else."""

from __future__ import annotations

import time

from tests.interpreter_probe import longest_hold


def test_a_long_copy_holds_it() -> None:
    large = bytes(256 << 20)
    assert longest_hold(lambda: bytearray(large)) > 0.02


def test_work_in_the_interpreter_does_not() -> None:
    """It gives way every few milliseconds."""
    assert longest_hold(lambda: sum(i * i for i in range(500_000))) < 0.02


def test_waiting_does_not() -> None:
    assert longest_hold(lambda: time.sleep(0.1)) < 0.02
