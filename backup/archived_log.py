"""The log in an archive, as ranges: which object holds which range, and where the gaps are.

    object   |==== 5 ====|==== 6 ====|     8     |= 9.partial =|
    gap                              |<-- 7, 8 ->|

Only the names of objects are read. `verify` checks their content.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from quorum_wal.objectstore.archive import TimelineArchive
from quorum_wal.objectstore.keys import ArchivedWal
from quorum_wal.objectstore.store import ObjectInfo
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.pgwal.lsn import format_lsn


@dataclass(frozen=True, slots=True)
class StoredWal:
    """An object and its metadata in the store."""

    wal: ArchivedWal
    info: ObjectInfo


@dataclass(frozen=True, slots=True)
class Gap:
    """No object holds [begin_lsn, end_lsn) of the log."""

    begin_lsn: int
    end_lsn: int

    def __str__(self) -> str:
        return f"{format_lsn(self.begin_lsn)} to {format_lsn(self.end_lsn)}"


@dataclass(frozen=True, slots=True)
class ArchivedLog:
    """`pieces` are in log order, at most one for each segment. A range that is neither in the
    pieces nor in the gaps lies outside of [begin_lsn, end_lsn)."""

    history: TimelineHistory
    begin_lsn: int
    end_lsn: int
    pieces: tuple[StoredWal, ...]
    gaps: tuple[Gap, ...]


def stored_wal(archive: TimelineArchive) -> Iterator[StoredWal]:
    """All WAL in the archive, of every timeline, in the order of the keys."""
    for info in archive.store.list(archive.keys.wal):
        wal = archive.keys.parse_wal(info.key)
        if wal is not None:
            yield StoredWal(wal, info)


def archived_log(
    archive: TimelineArchive,
    history: TimelineHistory,
    begin_lsn: int | None = None,
    end_lsn: int | None = None,
) -> ArchivedLog:
    """The log of `history` from the segment that contains `begin_lsn` (default: the beginning of
    the first object) to `end_lsn` (default: the end of the last object). Raises ObjectStoreError.
    """
    seg_size = archive.facts.wal_seg_size
    best: dict[int, StoredWal] = {}
    for stored in stored_wal(archive):
        wal = stored.wal
        if history.tli_at(wal.end_lsn - 1) != wal.tli:
            continue  # of another branch, or stored whole under a newer timeline
        if wal.segno not in best or best[wal.segno].wal.end_lsn < wal.end_lsn:
            best[wal.segno] = stored
    pieces = [best[segno] for segno in sorted(best)]
    if begin_lsn is None:
        begin_lsn = pieces[0].wal.segno * seg_size if pieces else archive.facts.timeline_start_lsn
    begin_lsn -= begin_lsn % seg_size
    if end_lsn is None:
        end_lsn = max(begin_lsn, pieces[-1].wal.end_lsn if pieces else 0)
    within = tuple(
        stored
        for stored in pieces
        if begin_lsn < stored.wal.end_lsn and stored.wal.segno * seg_size < end_lsn
    )
    return ArchivedLog(
        history, begin_lsn, end_lsn, within, tuple(_gaps(within, begin_lsn, end_lsn, seg_size))
    )


def _gaps(
    pieces: tuple[StoredWal, ...], begin_lsn: int, end_lsn: int, seg_size: int
) -> Iterator[Gap]:
    lsn = begin_lsn
    for stored in pieces:
        start_lsn = stored.wal.segno * seg_size
        if lsn < start_lsn:
            yield Gap(lsn, start_lsn)
        lsn = stored.wal.end_lsn
    if lsn < end_lsn:
        yield Gap(lsn, end_lsn)
