"""Actors: generators on the simulated clock. `yield 500` waits 500 us, `yield reply` waits for
it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

from .clock import Clock

T = TypeVar("T")


class Reply(Generic[T]):
    """A value that an actor waits for; the first value counts."""

    def __init__(self) -> None:
        self.is_there = False
        self.value: T | None = None
        self._then: Callable[[], None] | None = None

    def give(self, value: T) -> None:
        if not self.is_there:
            self.is_there, self.value = True, value
            if self._then is not None:
                self._then()

    def then(self, call: Callable[[], None]) -> None:
        self._then = call
        if self.is_there:
            call()


Script = Generator[int | Reply[Any], Any, None]


class Actor:
    """Runs a script to its end, or until it dies: at resumption number `dies_at`."""

    def __init__(
        self,
        clock: Clock,
        script: Script,
        dies_at: int | None = None,
        bury: Callable[[], None] | None = None,
    ) -> None:
        self.is_over = False
        self._clock = clock
        self._script = script
        self._left = dies_at
        self._bury = bury
        clock.call_later(0, self._resume, None)

    def _resume(self, reply: Reply[Any] | None) -> None:
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                self._end()
                return
        try:
            wanted = self._script.send(None if reply is None else reply.value)
        except StopIteration:
            self._end()
            return
        if isinstance(wanted, Reply):
            wanted.then(lambda: self._clock.call_later(0, self._resume, wanted))
        else:
            self._clock.call_later(wanted, self._resume, None)

    def _end(self) -> None:
        self.is_over = True
        self._script.close()
        if self._bury is not None:
            self._bury()
