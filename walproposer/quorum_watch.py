"""Says loudly when commits cannot proceed, and when they can again; and how fast they do."""

from __future__ import annotations

import time
from collections import deque
from datetime import UTC, datetime

import structlog

log = structlog.get_logger()

# The commit rate is an average over so many samples, one a second.
RATE_SAMPLES = 10


class QuorumWatch:
    """Told on every tick; read by the status page."""

    def __init__(self) -> None:
        self.ok = False
        self.since = datetime.now(UTC)
        self.losses_count = 0
        self._samples: deque[tuple[float, int]] = deque(maxlen=RATE_SAMPLES)

    def update(self, *, ok: bool, unconfirmed_bytes: int, commit_lsn: int) -> None:
        now = time.monotonic()
        if not self._samples or now - self._samples[-1][0] >= 1.0:
            self._samples.append((now, commit_lsn))
        if ok == self.ok:
            return
        lasted = (datetime.now(UTC) - self.since).total_seconds()
        self.ok, self.since = ok, datetime.now(UTC)
        if ok:
            log.info("quorum is there, commits proceed", seconds_without=round(lasted, 1))
        else:
            self.losses_count += 1
            log.error("QUORUM LOST, commits wait", unconfirmed_bytes=unconfirmed_bytes)

    @property
    def commit_bytes_per_second(self) -> float:
        """WAL confirmed per second, lately."""
        if len(self._samples) < 2:
            return 0.0
        (begun, begin_lsn), (ended, end_lsn) = self._samples[0], self._samples[-1]
        return max(0.0, (end_lsn - begin_lsn) / (ended - begun)) if begin_lsn else 0.0
