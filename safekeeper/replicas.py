"""The replicas that stream a timeline from this safekeeper now, and their combined feedback."""

from __future__ import annotations

from collections.abc import Callable
from threading import Condition
from typing import Any, Protocol

from quorum_wal.consensus.messages import NO_FEEDBACK, HotStandbyFeedback
from quorum_wal.consensus.standby_feedback import oldest_feedback


class Replica(Protocol):
    """A stream to a replica, as other modules see it."""

    feedback: HotStandbyFeedback
    suffix: int | None  #: of a pageserver
    sent_lsn: int

    def describe(self) -> dict[str, Any]: ...


class Replicas:
    """Thread-safe. `report` is called with the combined feedback whenever it changes. A replica's
    feedback is dropped when it disconnects."""

    def __init__(self, report: Callable[[HotStandbyFeedback], None]) -> None:
        self.feedback = NO_FEEDBACK
        #: The safekeeper shuts down: every stream ends after it has sent the WAL that exists.
        self.stopping = False
        self._report = report
        self._replicas: list[Replica] = []
        self._lock = Condition()

    def all(self) -> list[Replica]:
        return list(self._replicas)

    def has_pageserver(self) -> bool:
        return any(replica.suffix is not None for replica in self.all())

    def add(self, replica: Replica) -> None:
        with self._lock:
            self._replicas.append(replica)

    def remove(self, replica: Replica) -> None:
        with self._lock:
            self._replicas.remove(replica)
            self._lock.notify_all()
        self.combine_feedback()

    def wait_empty(self, timeout_seconds: float) -> None:
        """Waits until no replica streams, or until the timeout."""
        with self._lock:
            self._lock.wait_for(lambda: not self._replicas, timeout_seconds)

    def combine_feedback(self) -> None:
        """Called when a replica's feedback has changed."""
        with self._lock:
            combined = oldest_feedback(replica.feedback for replica in self._replicas)
            if combined != self.feedback:
                self.feedback = combined
                self._report(combined)
