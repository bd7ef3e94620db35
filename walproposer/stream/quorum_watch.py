"""Logs when commits cannot proceed, and when they can again; measures the commit rate."""

from __future__ import annotations

import time
from collections import deque
from datetime import UTC, datetime

import structlog

log = structlog.get_logger()

# A value that changes every second, and has not for this long, indicates a hang.
SILENT_SECONDS_MAX = 5.0
# The commit rate is an average over this many samples, one per second.
RATE_SAMPLES = 10


class QuorumWatch:
    """Updated on every tick; read by the status page. Without a primary no commit waits: the log is
    being completed."""

    def __init__(self, *, has_primary: bool) -> None:
        self._has_primary = has_primary
        self.ok = False
        self.since = datetime.now(UTC)
        self.losses_count = 0
        self._commit_lsn = 0
        self._updated_at = 0.0
        self._moved_at: float | None = None
        self._samples: deque[tuple[float, int]] = deque(maxlen=RATE_SAMPLES)

    def update(self, *, ok: bool, unconfirmed_bytes: int, commit_lsn: int) -> None:
        """`unconfirmed_bytes` of complete records, above `commit_lsn`."""
        now = self._updated_at = time.monotonic()
        if self._moved_at is None or commit_lsn != self._commit_lsn or unconfirmed_bytes <= 0:
            self._commit_lsn, self._moved_at = commit_lsn, now
        if not self._samples or now - self._samples[-1][0] >= 1.0:
            self._samples.append((now, commit_lsn))
        if ok == self.ok:
            return
        lasted = (datetime.now(UTC) - self.since).total_seconds()
        self.ok, self.since = ok, datetime.now(UTC)
        if ok:
            goes_on = "commits proceed" if self._has_primary else "the log is completed on it"
            log.info(f"quorum is available, {goes_on}", seconds_without=round(lasted, 1))
        else:
            self.losses_count += 1
            waits = "commits wait" if self._has_primary else "the log cannot be completed"
            log.error(f"QUORUM LOST, {waits}", unconfirmed_bytes=unconfirmed_bytes)

    @property
    def unconfirmed_seconds(self) -> float:
        """Time without an advance of commit_lsn while there were records to confirm, up to the last
        update; it may have advanced since."""
        return self._updated_at - self._moved_at if self._moved_at is not None else 0.0

    @property
    def commit_bytes_per_second(self) -> float:
        """WAL confirmed per second, averaged over the last samples."""
        if len(self._samples) < 2:
            return 0.0
        (begun, begin_lsn), (ended, end_lsn) = self._samples[0], self._samples[-1]
        return max(0.0, (end_lsn - begin_lsn) / (ended - begun)) if begin_lsn else 0.0
