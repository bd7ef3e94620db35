"""The threads that wait for a timeline's positions to change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Watchers:
    """Without watchers, notifying costs a commit nothing."""

    def __init__(self) -> None:
        self.wakes: set[Callable[[], None]] = set()

    def notify(self) -> None:
        # A thread that begins to watch after this check sees the positions published before it.
        if self.wakes:
            for wake in tuple(self.wakes):
                wake()

    @contextmanager
    def woken(self, wake: Callable[[], None]) -> Iterator[None]:
        """Inside, `wake` is called after every batch and failure. Read the positions inside."""
        self.wakes.add(wake)
        try:
            yield
        finally:
            self.wakes.discard(wake)
