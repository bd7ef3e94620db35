"""Plain commits beside transactions of qsync: they must never be delayed.

A machine stalls now and then, and everybody on it with it. So a *control* goes on beside: a
question to the same server that reads and writes nothing, and a write to the same disk. What a
commit took longer than any turn of the control that overlaps it is a delay of its own.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from .qsync_book import QsyncBook
from .qsync_watchers import OPTIONS, Watcher

#: Of a commit, beyond the control, on a primary that nothing is the matter with.
DELAY_SECONDS_MAX = 0.5
LOCAL = "-c synchronous_commit=local"
_TURNS = 2000
_BLOCK = bytes(8192)


@dataclass
class Trouble:
    """Whether anything is wrong with the primary itself. Law: who makes trouble says so before."""

    #: How often it has begun or ended.
    changes: int = 0
    what: str = ""

    @contextmanager
    def during(self, what: str) -> Iterator[None]:
        """It lasts when the block raises."""
        self.what, self.changes = what, self.changes + 1
        yield
        self.what, self.changes = "", self.changes + 1


@dataclass
class Turns:
    """Of the control: when each began, and ended."""

    _past: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_TURNS))
    _begun: float | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def turn(self, now: float) -> None:
        """One ends and the next begins, so that the pause between counts: a stall may be there."""
        with self._lock:
            if self._begun is not None:
                self._past.append((self._begun, now))
            self._begun = now

    def stop(self) -> None:
        """The control itself has failed, and excuses nobody."""
        with self._lock:
            self._begun = None

    def longest(self, began: float, ended: float) -> float:
        """Seconds of the longest turn that overlaps; of one that is not over, until `ended`."""
        with self._lock:
            turns = [turn for turn in self._past if turn[0] < ended and turn[1] > began]
            if self._begun is not None and self._begun < ended:
                turns.append((self._begun, ended))
        return max((end - begin for begin, end in turns), default=0.0)


class Control(Watcher):
    """`folder` is on the disk of the servers."""

    def __init__(self, dsn: str, folder: Path) -> None:
        super().__init__("control", dsn)
        self._fd = os.open(folder / "control", os.O_WRONLY | os.O_CREAT)
        self.turns = Turns()

    def watch(self, connection: psycopg.Connection[Any]) -> None:
        try:
            connection.execute("SELECT 1")
        except psycopg.Error:
            self.turns.stop()
            raise
        os.pwrite(self._fd, _BLOCK, 0)
        os.fdatasync(self._fd)
        self.turns.turn(time.monotonic())


class PlainClient(Watcher):
    """Commits rows of its own, with the server's settings; `waits_by_names`: commits there wait for
    the quorum, so it asks for a local one."""

    def __init__(
        self, dsn: str, book: QsyncBook, trouble: Trouble, turns: Turns, *, waits_by_names: bool
    ) -> None:
        super().__init__("plain client", dsn, f"{OPTIONS} {LOCAL}" if waits_by_names else OPTIONS)
        self._book = book
        self._trouble = trouble
        self._turns = turns
        self._connection: psycopg.Connection[Any] | None = None
        self._connected_at = 0  # of trouble's changes
        self.commits = 0
        self.longest_seconds = 0.0
        self.longest_delay_seconds = 0.0

    def watch(self, connection: psycopg.Connection[Any]) -> None:
        if connection is not self._connection:
            self._connection, self._connected_at = connection, self._trouble.changes
        changes, began = self._trouble.changes, time.monotonic()
        is_well = not self._trouble.what
        try:
            connection.execute("INSERT INTO plain DEFAULT VALUES")
        except psycopg.Error as error:
            if is_well and changes == self._trouble.changes == self._connected_at:
                self._book.violate("PLAIN_FAILED", f"a plain commit: {error}")
            raise
        ended = time.monotonic()
        self.commits += 1
        if is_well and changes == self._trouble.changes:
            self._judge(began, ended)

    def _judge(self, began: float, ended: float) -> None:
        delay = ended - began - self._turns.longest(began, ended)
        self.longest_seconds = max(self.longest_seconds, ended - began)
        self.longest_delay_seconds = max(self.longest_delay_seconds, delay)
        if delay > DELAY_SECONDS_MAX:
            self._book.violate(
                "PLAIN_DELAYED", f"a plain commit took {delay:.2f} s more than the control"
            )
