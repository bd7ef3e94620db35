"""The primary as the core and a new timeline see it: values read before the election. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.pgwal.history import TimelineHistory


@dataclass(frozen=True, slots=True)
class Primary:
    """The answers of IDENTIFY_SYSTEM and TIMELINE_HISTORY and the slot's state, before the
    election.

    `slot_lsn` is the slot's restart_lsn: the primary has WAL from the start of its segment on.
    `start_us` is pg_postmaster_start_time() in microseconds since the Unix epoch.
    """

    server: ServerFacts
    tli_history: TimelineHistory
    flush_lsn: int
    slot_lsn: int
    start_us: int = 0


def describe_server(tli: int, start_us: int) -> str:
    """The server of a timeline, for messages. The start time distinguishes servers on timelines of
    the same number."""
    try:
        started = f"{datetime.fromtimestamp(start_us / 1e6, UTC):%F %T.%f} UTC"
    except (OverflowError, OSError, ValueError):
        started = f"{start_us} us"
    return f"timeline {tli}, started at {started}"
