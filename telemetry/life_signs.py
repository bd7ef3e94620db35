"""Whether a process lives: what must have moved lately, each with a name.

A thread that only says "alive" proves that it runs itself. So whoever pings a watchdog asks here,
and here those are asked who do the work: when did your loop turn last?
"""

from __future__ import annotations

from collections.abc import Callable


class LifeSigns:
    """May be asked by any thread."""

    def __init__(self) -> None:
        self._silences: dict[str, Callable[[], float]] = {}

    def add(self, name: str, silent_seconds: Callable[[], float]) -> None:
        """`silent_seconds`: since it moved last; 0 when it need not move now."""
        self._silences[name] = silent_seconds

    def missing(self, silent_seconds_max: float) -> str:
        """Which of them is silent for longer; "" when none is."""
        for name, silent_seconds in self._silences.items():
            if silent_seconds() > silent_seconds_max:
                return name
        return ""
