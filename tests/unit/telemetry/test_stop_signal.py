"""Callbacks run on a stop signal, also if it came before they were added."""

from __future__ import annotations

from contextlib import closing

from quorum_wal.telemetry.stop_signal import StopSignal


def test_a_callback_before_and_one_after_it_is_set() -> None:
    calls: list[str] = []
    with closing(StopSignal()) as stopping:
        stopping.on_set(lambda: calls.append("before"))
        assert not calls
        stopping.set()
        stopping.on_set(lambda: calls.append("after"))
        assert calls == ["before", "after"]
        assert stopping.wait(0)
