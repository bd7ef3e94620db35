"""The last events of this process, for its web page: its log lines, from info upwards.

    log.warning("safekeeper lost", ...) --> RecentEvents.keep --> the renderer of the log
                                                 `--> two short lists, read by the page

Law: memory is bounded. Warnings and errors have a list of their own, so routine events do not
displace them. A repeated event is counted, not stored again. Events that any client can cause
without a password are not kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import MutableMapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from threading import Lock
from typing import Any

#: Of each urgency.
EVENTS_MAX = 100
TEXT_CHARACTERS_MAX = 400
URGENT_LEVELS = ("warning", "error", "critical")
KEPT_LEVELS = ("info", *URGENT_LEVELS)
#: Routine, or caused by any client. A unit test checks that each of them is logged.
NOISE = frozenset({
    "connection refused", "refused", "client broke the protocol", "canceled by its client",
    "WAL removed", "scrub done", "timeline loaded", "replayed epoch", "merged old layers",
    "WAL below this position may be removed", "commit path", "all timelines checked",
})  # fmt: skip
_NOT_FIELDS = ("event", "level", "timestamp", "exc_info", "exception", "stack_info")


@dataclass(frozen=True, slots=True)
class Event:
    """`details` are the fields of the log line. `count`: how often it came, `at` for the last
    time."""

    at: datetime
    level: str
    text: str
    details: str = ""
    count: int = 1

    @property
    def is_urgent(self) -> bool:
        return self.level in URGENT_LEVELS


class RecentEvents:
    """For any thread. `keep` is a processor of structlog."""

    def __init__(self, events_max: int = EVENTS_MAX) -> None:
        self._lock = Lock()
        self._urgent: deque[Event] = deque(maxlen=events_max)
        self._routine: deque[Event] = deque(maxlen=events_max)

    def keep(
        self, logger: Any, method: str, event: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        """Returns the event as it came."""
        level, text = str(event.get("level", method)), str(event.get("event", ""))
        if level in KEPT_LEVELS and text not in NOISE:
            details = ", ".join(
                f"{key} {value}"
                for key, value in event.items()
                if key not in _NOT_FIELDS and value is not None
            )
            self.add(Event(datetime.now(UTC), level, _short(text), _short(details)))
        return event

    def add(self, event: Event) -> None:
        """One that is equal to the last of its urgency is counted there."""
        with self._lock:
            ring = self._urgent if event.is_urgent else self._routine
            last = ring[-1] if ring else None
            if last is not None and _is_repeated(last, event):
                ring[-1] = replace(last, at=event.at, count=last.count + event.count)
            else:
                ring.append(event)

    def newest(self, count: int) -> list[Event]:
        """The newest first."""
        with self._lock:
            events = [*self._urgent, *self._routine]
        return sorted(events, key=lambda event: event.at, reverse=True)[:count]


def _is_repeated(last: Event, event: Event) -> bool:
    return (last.level, last.text, last.details) == (event.level, event.text, event.details)


def _short(text: str) -> str:
    line = " ".join(text.split())
    if len(line) <= TEXT_CHARACTERS_MAX:
        return line
    return line[: TEXT_CHARACTERS_MAX - 3] + "..."


#: Those of this process, as its log is.
RECENT_EVENTS = RecentEvents()
