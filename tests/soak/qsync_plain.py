"""Plain commits beside transactions of qsync: they must never be delayed.

A machine stalls now and then, with all its processes. So a *control* runs at the same time: a query
to the same server that reads and writes nothing, and a write to the same disk. The time of a commit
beyond the longest turn of the control that overlaps it is its own delay.
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

#: Of a commit, beyond the control, on a primary without faults.
DELAY_SECONDS_MAX = 0.5
LOCAL = "-c synchronous_commit=local"
_TURNS = 2000
_BLOCK = bytes(8192)


@dataclass
class Trouble:
    """Whether the primary has a fault. Law: a fault is announced before it begins."""

    #: The number of its beginnings and ends.
    changes: int = 0
    what: str = ""

    @contextmanager
    def during(self, what: str) -> Iterator[None]:
        """It lasts if the block raises."""
        self.what, self.changes = what, self.changes + 1
        yield
        self.what, self.changes = "", self.changes + 1


@dataclass
class Turns:
    """The turns of the control: begin and end of each."""

    _past: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_TURNS))
    _begun: float | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def turn(self, now: float) -> None:
        """One ends and the next begins, so that the pause between counts: it may contain a
        stall."""
        with self._lock:
            if self._begun is not None:
                self._past.append((self._begun, now))
            self._begun = now

    def stop(self) -> None:
        """The control itself has failed, and excuses no commit."""
        with self._lock:
            self._begun = None

    def longest(self, began: float, ended: float) -> float:
        """Seconds of the longest turn that overlaps; of an unfinished one, until `ended`."""
        with self._lock:
            turns = [turn for turn in self._past if turn[0] < ended and turn[1] > began]
            if self._begun is not None and self._begun < ended:
                turns.append((self._begun, ended))
        return max((end - begin for begin, end in turns), default=0.0)


class Control(Watcher):
    """`folder` is on the disk of the servers."""

    pause_seconds = 0.04  # part of a turn, and so of the delay that is not noticed

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
    """Commits its own rows, with the server's settings; with `waits_by_names` commits there wait
    for the quorum, so it uses a local one."""

    def __init__(
        self, dsn: str, book: QsyncBook, trouble: Trouble, turns: Turns, *, waits_by_names: bool
    ) -> None:
        super().__init__("plain client", dsn, f"{OPTIONS} {LOCAL}" if waits_by_names else OPTIONS)
        self._book = book
        self._trouble = trouble
        self._turns = turns
        self._connection: psycopg.Connection[Any] | None = None
        self._connected_at = 0  # of the faults' changes
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
