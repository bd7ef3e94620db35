"""A lock that a test puts in place of a timeline's: another thread is faster by one step."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock


class OvertakenLock:
    """The first thread that takes it is overtaken by another one, which does `act` under it."""

    was_overtaken = False

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act
        self._lock = Lock()

    def __enter__(self) -> None:
        if not self.was_overtaken:
            self.was_overtaken = True
            self._act()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
