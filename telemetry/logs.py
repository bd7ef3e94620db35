"""Logs: one line for each event on stderr, as text or as JSON. They never contain a secret."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

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


def configure_logs(log_format: LogFormat, level: str) -> None:
    """Sets up structlog for the process. `level` is a name of the logging module, in any case."""
    renderer: structlog.typing.Processor
    if log_format is LogFormat.JSON:
        renderer = structlog.processors.JSONRenderer()
    else:
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            RECENT_EVENTS.keep,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
