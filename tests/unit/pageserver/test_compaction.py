"""Which layers are merged: all that end at or below the horizon, if enough pages are dead."""

from __future__ import annotations

from quorum_wal.generations.suffix import Suffix
from quorum_wal.pageserver.attachments.compaction import (
    OLD_LAYERS_MAX,
    Merge,
    is_worth_merging,
    mergeable,
    planned_merge,
)
from quorum_wal.pageserver.objects.page_index import Cut, LayerRef, PageIndex

OWN = Suffix.pack(2, 1, 1)


def index_of(count: int, horizon_lsn: int) -> PageIndex:
    """Layers of two parts that end at 100, 200, ..."""
    ends = [100 * number for number in range(1, count + 1)]
    return PageIndex(
        horizon_lsn,
        tuple(Cut(end - 50, end - 20, end, 1, end) for end in ends if end >= horizon_lsn),
        tuple(LayerRef(end, part, OWN, end + part, 1) for end in ends for part in (0, 1)),
    )


def merge_of(count: int) -> Merge:
    found = planned_merge(index_of(count + 1, 100 * count), 1)
    assert found is not None
    return found


def test_layers_up_to_the_horizon_are_merged() -> None:
    index = index_of(5, 300)
    assert mergeable(index) == index.layers[:6]
    merge = planned_merge(index, 1)
    assert merge is not None
    assert (merge.cut, merge.layers) == (index.cuts[0], index.layers[:6])


def test_one_layer_is_not_merged() -> None:
    """With any number of parts."""
    assert mergeable(index_of(5, 100)) == mergeable(index_of(5, 0)) == mergeable(PageIndex()) == ()


def test_a_merge_needs_many_dead_pages_or_layers() -> None:
    assert not is_worth_merging(merge_of(2), 50, 100)
    assert is_worth_merging(merge_of(2), 49, 100)
    assert not is_worth_merging(merge_of(OLD_LAYERS_MAX), 100, 100)
    assert is_worth_merging(merge_of(OLD_LAYERS_MAX + 1), 100, 100)
    assert not is_worth_merging(merge_of(2), 0, 0)
