"""`wait_until`: the one way to wait in fixtures and tests, for a condition, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal, TypeVar

from pg_server.errors import DeadlineExceeded

T = TypeVar("T")

POLL_INTERVAL = 0.01  # seconds: below what a test can notice
PAUSE_SECONDS_MAX = 0.25
#: Of what was waited: who waits for long is not in a hurry, and leaves the processor to the others.
PAUSE_SHARE = 0.1


def wait_until(
    condition: Callable[[], T | Literal[False] | None],
    timeout: float,
    what: str,
    *,
    interval: float = POLL_INTERVAL,
) -> T:
    """Poll `condition` until it returns something true, and return that.

    It is called at least once. Its exceptions pass through: a condition that can no longer come
    true should raise. The pauses grow from `interval` on, and are as long as the condition takes.
    Raises DeadlineExceeded, naming `what`, after `timeout` seconds.
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
