"""Asks the safekeepers repeatedly, in a thread, while a browser shows the page.

Law: only the first view waits for the answer of the safekeepers, FIRST_WAIT_SECONDS at most. Later
views use the last answer. The thread spends at most ASK_SHARE of its time asking, so a cluster with
many timelines is asked less often.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Condition, Thread

import structlog

from quorum_wal.walproposer.errors import WalProposerError
from quorum_wal.walproposer.timelines.discovery import SafekeeperReport

ASK_SECONDS = 3.0
ASK_SHARE = 0.1
#: The thread ends when no browser has asked for the page for so long.
LOOK_SECONDS = 30.0
FIRST_WAIT_SECONDS = 2.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Asked:
    """What they answered, and when, by a clock that never goes back. `error`: why asking failed."""

    reports: tuple[SafekeeperReport, ...]
    at: float
    error: str = ""


class ClusterWatch:
    """Thread-safe. `ask` may raise WalProposerError, and may take long."""

    def __init__(
        self,
        ask: Callable[[], Sequence[SafekeeperReport]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask = ask
        self._clock = clock
        self._changed = Condition()
        self._latest: Asked | None = None
        self._looked_at = 0.0
        self._is_asking = False

    def latest(self) -> Asked | None:
        """None if there is no answer yet. When the thread has ended in between, the old answer is
        dropped."""
        with self._changed:
            self._looked_at = self._clock()
            if not self._is_asking:
                self._is_asking, self._latest = True, None
                Thread(target=self._run, name="page-ask", daemon=True).start()
            self._changed.wait_for(lambda: self._latest is not None, FIRST_WAIT_SECONDS)
            return self._latest

    def _run(self) -> None:
        while True:
            begun = self._clock()
            asked = self._asked()
            took_seconds = self._clock() - begun
            with self._changed:
                self._latest = asked
                self._changed.notify_all()
            time.sleep(max(ASK_SECONDS, took_seconds / ASK_SHARE))
            with self._changed:
                if self._clock() - self._looked_at > LOOK_SECONDS:
                    self._is_asking = False
                    return

    def _asked(self) -> Asked:
        try:
            return Asked(tuple(self._ask()), self._clock())
        except WalProposerError as error:
            return Asked((), self._clock(), str(error))
        except Exception as error:  # our own bug: the page shows it and goes on
            log.error("the web page cannot ask the safekeepers", reason=repr(error))
            return Asked((), self._clock(), repr(error))
