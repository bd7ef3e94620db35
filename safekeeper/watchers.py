"""Who waits for a timeline's positions to change, and how they are woken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Watchers:
    """To tell nobody costs a commit nothing."""

    def __init__(self) -> None:
        self.wakes: set[Callable[[], None]] = set()

    def notify(self) -> None:
        # Who begins to watch after this look sees what was published before it.
        if self.wakes:
            for wake in tuple(self.wakes):
                wake()

    @contextmanager
    def woken(self, wake: Callable[[], None]) -> Iterator[None]:
        """Inside, `wake` is called after every batch and failure. Look at the positions inside."""
        self.wakes.add(wake)
        try:
            yield
        finally:
            self.wakes.discard(wake)
