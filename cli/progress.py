"""Progress of work that takes minutes: a bar on a terminal, lines in the log elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

import structlog
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

log = structlog.get_logger()

LOG_SECONDS = 10.0


class ByteProgress:
    """A context manager that shows progress. `total_bytes` may be an estimate."""

    def __init__(self, what: str, total_bytes: int = 0) -> None:
        self._what = what
        self._total_bytes = total_bytes
        self._done_bytes = 0
        self._logged_at = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not sys.stderr.isatty(),
        )
        self._task = self._bar.add_task(what, total=total_bytes or None)

    def __enter__(self) -> Self:
        self._bar.__enter__()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.__exit__(exc_type, exc, traceback)

    def expect(self, total_bytes: int) -> None:
        """Sets a new estimate of the total."""
        self._total_bytes = total_bytes
        self._bar.update(self._task, total=total_bytes)

    def at(self, done_bytes: int) -> None:
        """Sets the number of bytes that are done."""
        self._done_bytes = done_bytes
        self._bar.update(self._task, completed=done_bytes)
        now = time.monotonic()
        if self._bar.disable and now - self._logged_at > LOG_SECONDS:
            self._logged_at = now
            log.info(self._what, done_bytes=done_bytes, of_bytes=self._total_bytes)

    def more(self, length: int) -> None:
        """Adds to the number of bytes that are done."""
        self.at(self._done_bytes + length)
