"""Logs that connections cannot be accepted: once when it begins, and once when it ends.

The reason is nearly always that no file descriptor is free. All that can be done is to retry, and
one log line for each attempt would fill the disk.
"""

from __future__ import annotations

from typing import Any

#: The pause between two attempts.
RETRY_SECONDS = 0.1


class AcceptTrouble:
    """The state of one listener."""

    def __init__(self, log: Any, listener: str) -> None:
        self._log = log
        self._listener = listener
        self._failed_count = 0

    def failed(self, error: OSError) -> None:
        """A waiting connection could not be accepted."""
        if not self._failed_count:
            self._log.error(
                "could not accept connections, retrying",
                listener=self._listener,
                reason=error.strerror or str(error),
            )
        self._failed_count += 1

    def accepted(self) -> None:
        if self._failed_count:
            self._log.warning(
                "connections are accepted again",
                listener=self._listener,
                failed_tries=self._failed_count,
            )
            self._failed_count = 0
