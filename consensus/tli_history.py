"""Postgres timeline histories as functions LSN -> TLI, and where two of them differ. Pure.

A primary may continue a log only if both functions are equal on the whole log. Its own promotion
may add a switch at or above the log's end (`docs/protocol.md`, the proposer's rule 3).
"""

from __future__ import annotations

from quorum_wal.pgwal.history import TimelineHistory


def first_difference(
    one: TimelineHistory, other: TimelineHistory, begin_lsn: int, end_lsn: int
) -> int | None:
    """The first LSN in [begin_lsn, end_lsn) at which the timelines differ, or None."""
    switches = {entry.switch_lsn for history in (one, other) for entry in history.entries}
    for lsn in sorted({begin_lsn, *switches}):
        if begin_lsn <= lsn < end_lsn and one.tli_at(lsn) != other.tli_at(lsn):
            return lsn
    return None


def clipped_tli_history(history: TimelineHistory, lsn: int) -> TimelineHistory:
    """Only the timelines that wrote WAL below `lsn`."""
    switches = tuple(entry for entry in history.entries if entry.switch_lsn < lsn)
    return TimelineHistory(history.tli_at(max(lsn - 1, 0)), switches)


def last_switch_lsn(history: TimelineHistory) -> int:
    """The start of the newest timeline; 0 for the first timeline."""
    return history.entries[-1].switch_lsn if history.entries else 0
