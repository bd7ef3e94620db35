"""Finds the WAL that an archive no longer needs.

    oldest segment ...   horizon                                    newest
    |====|====|====|====|====|====|=beginning=|====|====|=beginning=|
    `--- removed -----'          `-- removed: the whole segment is there

Laws. The WAL that the oldest backup needs is kept, even if more is asked for; so is the newest end
of the log. The oldest WAL is removed first, so an interrupted pruning leaves no gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quorum_wal.backup.archived_log import StoredWal
from quorum_wal.pgwal.history import TimelineHistory


@dataclass(frozen=True, slots=True)
class Pruning:
    """The WAL to remove: all below `horizon_lsn`, and beginnings replaced by a longer object."""

    horizon_lsn: int
    below: tuple[StoredWal, ...]
    replaced: tuple[StoredWal, ...]

    @property
    def all(self) -> tuple[StoredWal, ...]:
        return self.below + self.replaced

    @property
    def stored_bytes(self) -> int:
        return sum(stored.info.size_bytes for stored in self.all)


def plan_pruning(
    stored: Sequence[StoredWal], history: TimelineHistory, horizon_lsn: int, wal_seg_size: int
) -> Pruning:
    """`horizon_lsn` is at most the start LSN of the oldest backup that is kept."""
    horizon_segno = horizon_lsn // wal_seg_size
    longest: dict[int, int] = {}
    for each in stored:
        wal = each.wal
        if history.tli_at(wal.end_lsn - 1) == wal.tli:
            longest[wal.segno] = max(longest.get(wal.segno, 0), wal.end_lsn)
    below = [each for each in stored if each.wal.segno < horizon_segno]
    replaced = [
        each
        for each in stored
        if each.wal.segno >= horizon_segno
        and each.wal.end_lsn % wal_seg_size
        and history.tli_at(each.wal.end_lsn - 1) == each.wal.tli
        and each.wal.end_lsn < longest[each.wal.segno]
    ]
    below.sort(key=lambda each: (each.wal.segno, each.wal.end_lsn))
    return Pruning(horizon_segno * wal_seg_size, tuple(below), tuple(replaced))
