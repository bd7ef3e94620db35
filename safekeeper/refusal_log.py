"""The log lines of what clients were refused.

Each refusal is answered, and counted. A client that asks the same again, as a proposer does twice a
second of a timeline that is stopped, gets one line a minute, which says how often it asked.
Law: memory is bounded, however many clients and reasons there are; the oldest is forgotten first.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

import structlog

log = structlog.get_logger()

#: Between two lines that say the same.
SAME_SECONDS_MIN = 60.0
REFUSALS_MAX = 1000


@dataclass(slots=True)
class _Said:
    at: float
    unsaid_count: int = 0


class RefusalLog:
    """Of one safekeeper, used by the threads of all its clients."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = Lock()
        #: By address without the port, and what was refused; the last one asked for is the last.
        self._said: dict[tuple[str, ...], _Said] = {}
        self._count = 0

    @property
    def count(self) -> int:
        """Refusals so far, said or not."""
        return self._count

    def note(self, event: str, client: str, **fields: str) -> None:
        """Of a client at "HOST:PORT"; `fields` are those of the line."""
        times = self._times_to_say((event, client.rpartition(":")[0], *fields.values()))
        if times == 1:
            log.warning(event, client=client, **fields)
        elif times:
            log.warning(event, client=client, **fields, times=times)

    def _times_to_say(self, refusal: tuple[str, ...]) -> int:
        """How often this came since it was last said; 0 when it was said just before."""
        now = self._clock()
        with self._lock:
            self._count += 1
            said = self._said.pop(refusal, None)
            if said is None:
                said = _Said(now - SAME_SECONDS_MIN)
            self._said[refusal] = said
            if len(self._said) > REFUSALS_MAX:
                del self._said[next(iter(self._said))]
            said.unsaid_count += 1
            if now - said.at < SAME_SECONDS_MIN:
                return 0
            times, said.unsaid_count, said.at = said.unsaid_count, 0, now
            return times
