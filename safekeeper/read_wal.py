"""Reading WAL that leaves this member, and what happens when it is found damaged.

A committed segment becomes a hole, which others can fill; what lies above is the lost end of the
log, which a leader brings back. Either way the reader is sent away before it gets a bad byte.
"""

from __future__ import annotations

from pgwal.segment import segno_of
from safekeeper.errors import WalDamaged
from safekeeper.timeline import Timeline
from safekeeper.timeline_state import TimelineState


def read_wal(timeline: Timeline, lsn: int, length: int) -> bytes:
    """Up to `length` bytes at `lsn`, of one segment, as they were written; fewer only where no more
    exist. Raises WalDamaged, StorageError."""
    store = timeline.store
    check_not_hole(timeline, lsn)
    while True:
        first_lsn = timeline.control.local_start_lsn
        try:
            return store.checked.read(lsn, length, store.facts(first_lsn))
        except WalDamaged as damage:
            # Where the log begins moves up before a file goes, and who leaves has left before: what
            # went meanwhile is no damage.
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
        raise WalDamaged(lsn, timeline.holes.all().get(segno, "it is being mended"))


def found_damage(timeline: Timeline, damage: WalDamaged) -> None:
    """From here on this member gives no vote, also after a restart. Raises StorageError."""
    store, positions = timeline.store, timeline.positions
    first, last = (segno_of(lsn, store.wal_seg_size) for lsn in (damage.lsn, damage.end_lsn - 1))
    tail = segno_of(min(positions.commit_lsn, positions.flush_lsn), store.wal_seg_size)
    for segno in range(first, min(last + 1, tail)):
        timeline.holes.add(store, segno, damage.reason)
    if first < tail:
        timeline.holes_changed()
    if last >= tail:
        timeline.lose_from(max(damage.lsn, tail * store.wal_seg_size))
