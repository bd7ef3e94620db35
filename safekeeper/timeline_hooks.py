"""The calls from a timeline to its process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from quorum_wal.safekeeper.flush_times import FlushTimes


@dataclass(frozen=True, slots=True)
class TimelineHooks:
    """Used on the append path, so they must be quick."""

    wants_housekeeping: Callable[[], None]
    flush_times: FlushTimes
