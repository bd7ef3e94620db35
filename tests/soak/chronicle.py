"""Which faults lasted when, and the longest time without a commit with the faults during it."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

WATCH_INTERVAL = 0.01  # seconds


def is_over(deadline: float, stopping: threading.Event) -> bool:
    """Whether a run ends: its time is over, or `stopping` is set."""
    return stopping.is_set() or time.monotonic() >= deadline


@dataclass(slots=True)
class Spell:
    """The time of one fault, in time.monotonic()."""

    what: str
    began: float
    ended: float = math.inf


@dataclass(frozen=True, slots=True)
class Silence:
    """No commit returned in between."""

    began: float = 0.0
    ended: float = 0.0

    @property
    def seconds(self) -> float:
        return self.ended - self.began


@dataclass(slots=True)
class Chronicle:
    """Spells are only added, so another thread may read them."""

    begun: float = field(default_factory=time.monotonic)
    spells: list[Spell] = field(default_factory=list)
    survived: Counter[str] = field(default_factory=Counter)

    def note(self, text: str) -> None:
        print(f"{time.monotonic() - self.begun:7.1f} s  {text}", flush=True)

    def begin(self, what: str) -> Spell:
        self.note(what)
        spell = Spell(what, time.monotonic())
        self.spells.append(spell)
        return spell

    @contextmanager
    def during(self, what: str) -> Iterator[None]:
        spell = self.begin(what)
        yield
        spell.ended = time.monotonic()

    def at(self, silence: Silence) -> list[str]:
        """The faults during that time."""
        return [s.what for s in self.spells if s.began < silence.ended and s.ended > silence.began]


class SilenceWatch(threading.Thread):
    """Watches a counter of commits, until stop()."""

    def __init__(self, acknowledged: Callable[[], int]) -> None:
        super().__init__(name="silence watch", daemon=True)
        self._acknowledged = acknowledged
        self._stopping = threading.Event()
        self._seen = acknowledged()
        self._last_at = time.monotonic()
        self.longest = Silence()

    def run(self) -> None:
        while not self._stopping.wait(WATCH_INTERVAL):
            now = time.monotonic()
            seen = self._acknowledged()
            if seen == self._seen:
                continue
            self._note(Silence(self._last_at, now))
            self._seen, self._last_at = seen, now

    def _note(self, silence: Silence) -> None:
        if silence.seconds > self.longest.seconds:
            self.longest = silence

    @property
    def silent_since(self) -> float:
        """The time of the last commit."""
        return self._last_at

    def stop(self) -> None:
        """A silence that lasts until now counts, too. Allowed if stopped."""
        if not self._stopping.is_set():
            self._stopping.set()
            self.join()
            self._note(Silence(self._last_at, time.monotonic()))
