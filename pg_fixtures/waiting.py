"""`wait_until`: the one way to wait in fixtures and tests, for a condition, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal, TypeVar

from pg_fixtures.errors import DeadlineExceeded

T = TypeVar("T")

POLL_INTERVAL = 0.01  # seconds: below what a test can notice, above what two cores can


def wait_until(
    condition: Callable[[], T | Literal[False] | None],
    timeout: float,
    what: str,
    *,
    interval: float = POLL_INTERVAL,
) -> T:
    """Poll `condition` until it returns something true, and return that.

    It is called at least once. Its exceptions pass through: a condition that can no longer come
    true should raise. Raises DeadlineExceeded, naming `what`, after `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() >= deadline:
            raise DeadlineExceeded(f"waited {timeout:g} s for {what}")
        time.sleep(interval)
