"""The log lines of refused requests.

Each refusal is answered and counted. A client that repeats a refused request gets one log line a
minute, with the number of requests. (A proposer asks twice a second for a stopped timeline.) Law:
memory is bounded, however many clients and reasons there are; the oldest entry is forgotten first.
So is the log: a client that needs no password for a refusal, and invents a name for each, gets
LINES_MAX short lines a minute.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

import structlog

log = structlog.get_logger()

#: Minimum time between two equal lines.
SAME_SECONDS_MIN = 60.0
REFUSALS_MAX = 1000
#: Lines for one address within SAME_SECONDS_MIN.
LINES_MAX = 60
TEXT_CHARACTERS_MAX = 400


@dataclass(slots=True)
class _Logged:
    at: float
    unlogged_count: int = 0


@dataclass(slots=True)
class _Lines:
    since: float
    count: int = 0


class RefusalLog:
    """Of one listener, used by the threads of all its clients."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = Lock()
        #: By address without port, and refusal; the most recent one is last.
        self._logged: dict[tuple[str, ...], _Logged] = {}
        self._lines: dict[str, _Lines] = {}  # by address; the oldest first
        self._count = 0

    @property
    def count(self) -> int:
        """Refusals so far, logged or not."""
        return self._count

    def note(self, event: str, client: str, **fields: str) -> None:
        """Logs a refusal of a client at "HOST:PORT"; `fields` are the fields of the line."""
        fields = {name: _short(text) for name, text in fields.items()}
        times = self._times_to_log((event, client.rpartition(":")[0], *fields.values()))
        if times == 1:
            log.warning(event, client=client, **fields)
        elif times:
            log.warning(event, client=client, **fields, times=times)

    def _times_to_log(self, refusal: tuple[str, ...]) -> int:
        """The number of these refusals since the last line; 0 if no line is due."""
        now = self._clock()
        with self._lock:
            self._count += 1
            logged = self._logged.pop(refusal, None)
            if logged is None:
                logged = _Logged(now - SAME_SECONDS_MIN)
            self._logged[refusal] = logged
            if len(self._logged) > REFUSALS_MAX:
                del self._logged[next(iter(self._logged))]
            logged.unlogged_count += 1
            if now - logged.at < SAME_SECONDS_MIN or not self._has_line(refusal[1], now):
                return 0
            times, logged.unlogged_count, logged.at = logged.unlogged_count, 0, now
            return times

    def _has_line(self, host: str, now: float) -> bool:
        """Whether the address may have one more line. Needs the lock."""
        lines = self._lines.get(host)
        if lines is None or now - lines.since >= SAME_SECONDS_MIN:
            self._lines.pop(host, None)
            lines = self._lines[host] = _Lines(now)
            if len(self._lines) > REFUSALS_MAX:
                del self._lines[next(iter(self._lines))]
        lines.count += 1
        return lines.count <= LINES_MAX


def _short(text: str) -> str:
    if len(text) <= TEXT_CHARACTERS_MAX:
        return text
    return text[: TEXT_CHARACTERS_MAX - 3] + "..."
