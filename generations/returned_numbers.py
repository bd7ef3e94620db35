"""What this process has given out: against a database that goes back in time while it is served.

A restore to a point in time, or a failover to a standby that lacked the last commits, takes numbers
back; they would be given a second time, and what is stale would be valid again. So this memory is a
lower bound of every number. Law: it may say no, only the database may say yes. A service that was
just started knows no more than its database; then the claims in the object store are what is left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock

import structlog

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class LowerBounds:
    """What had been returned before a transaction began, which therefore sees it; unless the
    database has gone back. `whose`: "node 3", "tenant ..."."""

    numbers: Mapping[str, int]

    def greatest(self, whose: str, number: int) -> int:
        """Of what was returned, and `number`, which the database has."""
        returned = self.numbers.get(whose, 0)
        if returned > number:
            log.error(
                "the database has gone back in time: was it restored, or did a failover lose "
                "commits? sk generations advance, for each tenant",
                of=whose, has=number, was_given=returned,
            )  # fmt: skip
        return max(returned, number)


class ReturnedNumbers:
    """Any thread may use it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._greatest: dict[str, int] = {}

    def note(self, whose: str, number: int) -> None:
        """It is about to be returned: its transaction has ended."""
        with self._lock:
            self._greatest[whose] = max(number, self._greatest.get(whose, 0))

    def bounds(self) -> LowerBounds:
        """For a transaction that begins after this."""
        with self._lock:
            return LowerBounds(self._greatest.copy())
