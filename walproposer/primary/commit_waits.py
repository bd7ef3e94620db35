"""The commits of a primary that wait for a synchronous standby, and whether they progress.

A busy primary always has some that wait. A commit is stuck if the same transaction still waits some
time later. Source: Postgres `syncrep.c` (SyncRepWaitForLSN): a waiting backend still has its
transaction id, and the wait event SyncRep. Postgres does not show when the wait began. The
statement began before it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import psycopg

# A commit that waits this long is stuck.
STUCK_SECONDS = 2.0
POLL_SECONDS = 0.1

_WAITS = (
    "SELECT pid, coalesce(backend_xid::text, ''),"
    " coalesce(extract(epoch FROM clock_timestamp() - query_start), 0)::float8"
    " FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
)

_SEES_ALL = "SELECT pg_has_role(current_user, 'pg_read_all_stats', 'USAGE')"

_Waits = dict[tuple[int, str], float]


@dataclass(frozen=True, slots=True)
class CommitWaits:
    """`stuck_count` of `count` waited for all of STUCK_SECONDS. `longest_seconds` is the time since
    the oldest statement began."""

    count: int = 0
    stuck_count: int = 0
    longest_seconds: float = 0.0

    def __str__(self) -> str:
        waits = "commit waits" if self.count == 1 else "commits wait"
        return f"{self.count} {waits}, the longest for {self.longest_seconds:.0f} s"


NO_WAITS = CommitWaits()


def may_see_waits(connection: psycopg.Connection) -> bool:
    """Without the privilege, Postgres shows only the sessions of the role itself."""
    row = connection.execute(_SEES_ALL).fetchone()
    return row is not None and row[0]


def read_commit_waits(connection: psycopg.Connection) -> CommitWaits:
    """Polls until the first waiting commits have returned, or for STUCK_SECONDS."""
    waits = _read(connection)
    first, deadline = set(waits), time.monotonic() + STUCK_SECONDS
    while first & set(waits) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)  # Postgres does not report the end of a wait
        waits = _read(connection)
    return CommitWaits(len(waits), len(first & set(waits)), max(waits.values(), default=0.0))


def _read(connection: psycopg.Connection) -> _Waits:
    rows = connection.execute(_WAITS).fetchall()
    return {(pid, transaction): seconds for pid, transaction, seconds in rows}
