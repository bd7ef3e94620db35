"""Logs: one line an event on stderr, for people or as JSON; never a secret in them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

from telemetry.recent_events import RECENT_EVENTS


@contextmanager
def _without(name: str) -> Iterator[None]:
    """In the block the module cannot be imported, unless it was before."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]  # documented: it raises ImportError
    try:
        yield
    finally:
        del sys.modules[name]


with _without("rich"):  # it takes a tenth of a start, for tracebacks that ours are not
    import structlog


class LogFormat(Enum):
    TEXT = "text"
    JSON = "json"


def configure_logs(log_format: LogFormat, level: str) -> None:
    """Set up structlog for the process. `level` is a name of the logging module, any case."""
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
