"""What this process has given out: against a database that goes back in time while it is served.

A restore to a point in time, or a failover to a standby that lacked the last commits, takes numbers
back; the next ones would be given a second time, and what is stale would be valid again. Law: this
memory only refuses. It answers nothing, and a service that was just started knows as much as the
database; then the claims in the object store are what is left.
"""

from __future__ import annotations

from threading import Lock

from generations.errors import GenerationDatabaseError


class ReturnedNumbers:
    """Any thread may use it. `whose`: "node 3", "tenant ..."."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._greatest: dict[str, int] = {}

    def note(self, whose: str, number: int) -> None:
        """It is about to be returned: its transaction has ended."""
        with self._lock:
            self._greatest[whose] = max(number, self._greatest.get(whose, 0))

    def check(self, whose: str, number: int) -> None:
        """Within a transaction: the greatest that the database knows. Raises
        GenerationDatabaseError."""
        greatest = self._greatest.get(whose, 0)
        if number < greatest:
            raise GenerationDatabaseError(
                f"the database has gone back in time: {whose} has generation {number}, and "
                f"{greatest} was given out",
                hint="Was it restored, or did a failover lose commits? sk generations advance "
                "TENANT SUFFIX, for each tenant with the greatest suffix in its store.",
            )
