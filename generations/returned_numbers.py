"""Remembers the numbers that this process returned, to detect a database that was set back.

Point-in-time recovery, or a failover to a standby without the last commits, sets numbers back. The
service would assign them again, and stale attachments would become valid. So this memory is a lower
bound for each number. Law: it can only make an answer negative; only the database can confirm.
After a restart the memory is empty; then only the claims in the object store protect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock

import structlog

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class LowerBounds:
    """Numbers returned before a transaction began. The transaction sees them, unless the database
    was set back. `whose` is "node 3" or "tenant ..."."""

    numbers: Mapping[str, int]

    def greatest(self, whose: str, number: int) -> int:
        """The greater of the returned number and `number`, the one in the database."""
        returned = self.numbers.get(whose, 0)
        if returned > number:
            log.error(
                "the database was set back: it was restored, or a failover lost commits; run sk "
                "generations advance for each tenant",
                of=whose, has=number, was_given=returned,
            )  # fmt: skip
        return max(returned, number)


class ReturnedNumbers:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._greatest: dict[str, int] = {}

    def note(self, whose: str, number: int) -> None:
        """Call it after the transaction ended, before the number is returned."""
        with self._lock:
            self._greatest[whose] = max(number, self._greatest.get(whose, 0))

    def bounds(self) -> LowerBounds:
        """Bounds for a transaction that begins after this call."""
        with self._lock:
            return LowerBounds(self._greatest.copy())
