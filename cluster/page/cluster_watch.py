"""Asks the safekeepers again and again, in a thread, for as long as somebody looks at the page.

Law: a page never waits for a safekeeper that does not answer, but for the first answer of all, and
then FIRST_WAIT_SECONDS at most. Asking takes a tenth of the time at most: a cluster of many
timelines is asked more seldom.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Condition, Thread

import structlog

from walproposer.errors import WalProposerError
from walproposer.timelines.discovery import SafekeeperReport

ASK_SECONDS = 3.0
ASK_SHARE = 0.1
#: The thread ends when nobody has looked for so long.
LOOK_SECONDS = 30.0
FIRST_WAIT_SECONDS = 2.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Asked:
    """What they answered, at this time of a clock that never goes back; `error`: why they could
    not be asked."""

    reports: tuple[SafekeeperReport, ...]
    at: float
    error: str = ""


class ClusterWatch:
    """For any thread. `ask` may raise WalProposerError, and may take long."""

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
        """None when nothing was answered yet. An answer of the last time somebody looked is too
        old."""
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
        except Exception as error:  # of ours: the page says so, and goes on without them
            log.error("the web page cannot ask the safekeepers", reason=repr(error))
            return Asked((), self._clock(), repr(error))
