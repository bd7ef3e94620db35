"""What is said when connections cannot be accepted: once when it begins, once when it is over.

The reason is nearly always that no file descriptor is left. Trying again is all there is to do, and
a line for each try would fill the disk that the descriptors are missed for.
"""

from __future__ import annotations

from typing import Any

#: Between two tries.
RETRY_SECONDS = 0.1


class AcceptTrouble:
    """Of one listener."""

    def __init__(self, log: Any, listener: str) -> None:
        self._log = log
        self._listener = listener
        self._failed_count = 0

    def failed(self, error: OSError) -> None:
        """A connection waits, and could not be accepted."""
        if not self._failed_count:
            self._log.error(
                "could not accept connections, trying on",
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
