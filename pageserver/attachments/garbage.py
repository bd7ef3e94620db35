"""Decides which objects are no longer needed. Pure functions of an index, a listing, and times.

cuts     |   c1   |   c2   |   c3   |   c4   |   c5   |
                      ^ horizon: the newest cut that is older than the promised history
deleted: cuts below the horizon, and their frames
kept:    every layer, because c2 is read from all layers that end at or below it. Only a compaction,
         which writes one layer in their place, drops layers (`compaction.py`)
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from quorum_wal.generations.suffix import Suffix
from quorum_wal.pageserver.objects.page_index import FrameRef, PageIndex
from quorum_wal.pageserver.objects.page_keys import IndexName

#: Newest indices of its own generation that are kept for manual inspection.
KEPT_INDICES = 3


def next_horizon_lsn(index: PageIndex, now_unix_s: int, history_seconds: int) -> int:
    """The end of the newest cut that is at least that old. It never decreases, because layers below
    the horizon may be merged."""
    old = (cut.end_lsn for cut in index.cuts if cut.time_unix_s <= now_unix_s - history_seconds)
    return max(index.horizon_lsn, max(old, default=0))


def without_garbage(index: PageIndex, horizon_lsn: int) -> tuple[PageIndex, list[FrameRef]]:
    """The index with that horizon, and the frames that it no longer needs."""
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
    """`modified_ms` are all listed indices up to `own`, with times of the store's clock.

    Kept are the newest of suffix `own`, the last one of an earlier suffix, all that are younger
    than the grace period, and all that were the newest one during it: a reader may still use them.
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
