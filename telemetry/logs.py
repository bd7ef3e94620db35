"""Logs: one line for each event on stderr, as text or as JSON. They never contain a secret, and no
character that a terminal obeys."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from enum import Enum
from typing import Any

from quorum_wal.telemetry.printable import printable
from quorum_wal.telemetry.recent_events import RECENT_EVENTS


@contextmanager
def _without(name: str) -> Iterator[None]:
    """The module cannot be imported inside the block, unless it was imported before."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]  # documented: it raises ImportError
    try:
        yield
    finally:
        del sys.modules[name]


with _without("rich"):  # it takes a tenth of the start, and we do not use its tracebacks
    import structlog


class LogFormat(Enum):
    TEXT = "text"
    JSON = "json"


#: What `format_exc_info` writes: several lines.
_TRACEBACKS = ("exception", "stack")


class _Quoted:
    """The renderer prints a text that has no space as it is, and the repr() of other values."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return repr(self._text)


def _escape_controls(
    logger: Any, method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """A processor of structlog, for text."""
    for name, value in event.items():
        if isinstance(value, str) and not value.isprintable():
            if name in _TRACEBACKS:
                event[name] = printable(value)
            elif name == "event":
                event[name] = printable(value).replace("\n", "\\n")
            else:
                event[name] = _Quoted(value)
    return event


def configure_logs(log_format: LogFormat, level: str) -> None:
    """Sets up structlog for the process. `level` is a name of the logging module, in any case."""
    renderers: list[structlog.typing.Processor]
    if log_format is LogFormat.JSON:
        renderers = [structlog.processors.JSONRenderer()]
    else:
        renderers = [_escape_controls, structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            RECENT_EVENTS.keep,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            *renderers,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
