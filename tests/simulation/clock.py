"""`Clock`: simulated time, which determines the order of all events."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any


class Clock:
    """Events at one time happen in the order in which they were scheduled."""

    def __init__(self) -> None:
        self.now_us = 0
        self._events: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def call_later(self, delay_us: int, action: Callable[..., None], *args: Any) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now_us + delay_us, self._count, action, args))

    def run_next(self) -> None:
        self.now_us, _, action, args = heapq.heappop(self._events)
        action(*args)
