"""What may go, and what must stay. Pure functions of an index, of a listing, of times.

cuts     |   c1   |   c2   |   c3   |   c4   |   c5   |
                      ^ horizon: the newest that is older than the history promised
go:      cuts below the horizon, and their frames
stay:    every layer: c2 is read from all that end at or below it. Only a compaction, which puts
         one in their place, drops layers (`compaction.py`)
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from generations.suffix import Suffix
from pageserver.objects.page_index import FrameRef, PageIndex
from pageserver.objects.page_keys import IndexName

#: Newest indices of the own generation that are kept for people.
KEPT_INDICES = 3


def next_horizon_lsn(index: PageIndex, now_unix_s: int, history_seconds: int) -> int:
    """The end of the newest cut that is at least so old. It never goes back: what was below may be
    merged."""
    old = (cut.end_lsn for cut in index.cuts if cut.time_unix_s <= now_unix_s - history_seconds)
    return max(index.horizon_lsn, max(old, default=0))


def without_garbage(index: PageIndex, horizon_lsn: int) -> tuple[PageIndex, list[FrameRef]]:
    """The index with that horizon, and the frames that it needs no more."""
    horizon_lsn = max(horizon_lsn, index.horizon_lsn)
    kept = PageIndex(
        horizon_lsn,
        tuple(cut for cut in index.cuts if cut.end_lsn >= horizon_lsn),
        index.layers,
        tuple(frame for frame in index.frames if frame.end_lsn >= horizon_lsn),
        index.base_backup_id,
    )
    return kept, [frame for frame in index.frames if frame.end_lsn < horizon_lsn]


def kept_indices(
    modified_ms: Mapping[IndexName, int], own: Suffix, now_ms: int, grace_ms: int
) -> Set[IndexName]:
    """Of all that are listed, up to the own suffix. Times are the store's.

    Kept are the newest of the own suffix, the last one before it, all that are younger than the
    grace, and all that were the newest within the grace: a reader may have begun with them.
    """
    names = sorted(modified_ms)
    mine = [name for name in names if name.suffix == own]
    before = [name for name in names if name.suffix < own]
    kept = {*mine[-KEPT_INDICES:], *before[-1:]}
    superseded_ms = now_ms
    for name in reversed(names):
        if superseded_ms > now_ms - grace_ms:
            kept.add(name)
        superseded_ms = min(superseded_ms, modified_ms[name])
        if modified_ms[name] > now_ms - grace_ms:
            kept.add(name)
    return kept
