"""Reading WAL that leaves this member, and the reaction to damage.

A committed segment becomes a hole, which other members can fill. Damage above the committed
segments becomes the lost end of the log, which a leader sends again. In both cases the reader gets
an error before it gets a bad byte.
"""

from __future__ import annotations

from quorum_wal.pgwal.segment import segno_of
from quorum_wal.safekeeper.errors import WalDamaged
from quorum_wal.safekeeper.timeline import Timeline
from quorum_wal.safekeeper.timeline_state import TimelineState


def read_wal(timeline: Timeline, lsn: int, length: int) -> bytes:
    """Returns up to `length` bytes at `lsn`, of one segment, as they were written; fewer only at
    the end of the log. Raises WalDamaged, StorageError."""
    store = timeline.store
    check_not_hole(timeline, lsn)
    while True:
        first_lsn = timeline.control.local_start_lsn
        try:
            return store.checked.read(lsn, length, store.facts(first_lsn))
        except WalDamaged as damage:
            # local_start_lsn moves up before files are removed, and a timeline is marked as left
            # before its log is removed. WAL that was removed meanwhile is not damaged.
            is_left = timeline.state is TimelineState.LEFT
            if is_left or lsn < timeline.control.local_start_lsn:
                return b""
            if first_lsn == timeline.control.local_start_lsn:
                found_damage(timeline, damage)
                raise


def check_not_hole(timeline: Timeline, lsn: int) -> None:
    """Raises WalDamaged."""
    segno = segno_of(lsn, timeline.store.wal_seg_size)
    if segno in timeline.holes:
        raise WalDamaged(lsn, timeline.holes.all().get(segno, "it is being repaired"))


def found_damage(timeline: Timeline, damage: WalDamaged) -> None:
    """From here on this member grants no vote, also after a restart. Raises StorageError."""
    store, positions = timeline.store, timeline.positions
    first, last = (segno_of(lsn, store.wal_seg_size) for lsn in (damage.lsn, damage.end_lsn - 1))
    tail = segno_of(min(positions.commit_lsn, positions.flush_lsn), store.wal_seg_size)
    for segno in range(first, min(last + 1, tail)):
        timeline.holes.add(store, segno, damage.reason)
    if first < tail:
        timeline.holes_changed()
    if last >= tail:
        timeline.lose_from(max(damage.lsn, tail * store.wal_seg_size))
