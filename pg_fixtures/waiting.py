"""`wait_until`: waits for a condition with a deadline. Fixtures and tests wait only with it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal, TypeVar

from quorum_wal.pg_server.errors import DeadlineExceeded

T = TypeVar("T")

POLL_INTERVAL = 0.01  # seconds: too short to matter in a test
PAUSE_SECONDS_MAX = 0.25
#: The pause as a share of the time waited so far: a long wait leaves the processor to others.
PAUSE_SHARE = 0.1


def wait_until(
    condition: Callable[[], T | Literal[False] | None],
    timeout: float,
    what: str,
    *,
    interval: float = POLL_INTERVAL,
) -> T:
    """Polls `condition` until it returns a true value. Returns that value.

    It is called at least once. Its exceptions are passed on; a condition that can no longer become
    true should raise one. The pauses grow from `interval` on, and are at least as long as the
    condition takes. Raises DeadlineExceeded, with `what`, after `timeout` seconds.
    """
    begun = time.monotonic()
    while True:
        asked = time.monotonic()
        result = condition()
        if result:
            return result
        now = time.monotonic()
        if now - begun >= timeout:
            raise DeadlineExceeded(f"waited {timeout:g} s for {what}")
        pause = max(now - asked, (now - begun) * PAUSE_SHARE)
        time.sleep(max(interval, min(pause, PAUSE_SECONDS_MAX)) if interval else 0)
