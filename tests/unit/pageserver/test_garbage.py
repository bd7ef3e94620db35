"""What may be deleted: never an object that is needed, or that a reader may still use."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from quorum_wal.generations.suffix import Suffix
from quorum_wal.pageserver.attachments.garbage import (
    KEPT_INDICES,
    kept_indices,
    next_horizon_lsn,
    without_garbage,
)
from quorum_wal.pageserver.objects.page_index import Cut, FrameRef, LayerRef, PageIndex
from quorum_wal.pageserver.objects.page_keys import IndexName

OLD, OWN = Suffix.pack(1, 1, 1), Suffix.pack(2, 1, 1)


def index_of(count: int, horizon_lsn: int = 0) -> PageIndex:
    """Cuts that end at 100, 200, ..., one every 10 s."""
    ends = [100 * number for number in range(1, count + 1)]
    return PageIndex(
        horizon_lsn,
        tuple(Cut(end - 50, end - 20, end, 1, end // 10) for end in ends if end >= horizon_lsn),
        tuple(LayerRef(end, 0, OWN, end, 1) for end in ends),
        tuple(FrameRef(end, OWN, end + 1, 1) for end in ends if end >= horizon_lsn),
    )


def test_the_horizon_is_the_newest_cut_that_is_old_enough() -> None:
    assert next_horizon_lsn(index_of(5), 60, 30) == 300
    assert next_horizon_lsn(index_of(5), 60, 60) == 0
    assert next_horizon_lsn(PageIndex(), 60, 0) == 0


def test_the_horizon_never_decreases() -> None:
    """Independent of the clock."""
    index, _ = without_garbage(index_of(5), 300)
    assert next_horizon_lsn(index, 0, 30) == 300
    assert without_garbage(index, 100) == (index, [])


def test_layers_are_kept_when_cuts_and_frames_are_dropped() -> None:
    index, frames = without_garbage(index_of(5), 300)
    assert index == index_of(5, 300)
    assert [frame.end_lsn for frame in frames] == [100, 200]


@given(
    st.dictionaries(
        st.builds(IndexName, st.sampled_from([OLD, OWN]), st.integers(0, 20)),
        st.integers(0, 200),
        min_size=1,
    ),
    st.integers(1, 100),
)
def test_an_index_that_was_the_newest_within_the_grace_is_kept(
    modified_ms: dict[IndexName, int], grace_ms: int
) -> None:
    now_ms = 200
    kept = kept_indices(modified_ms, OWN, now_ms, grace_ms)
    assert kept <= modified_ms.keys()
    for at_ms in range(now_ms - grace_ms + 1, now_ms + 1):
        there = [name for name, created_ms in modified_ms.items() if created_ms <= at_ms]
        assert not there or max(there) in kept
    newest = sorted(name for name in modified_ms if name.suffix == OWN)[-KEPT_INDICES:]
    assert set(newest) <= kept
    before = [name for name in modified_ms if name.suffix == OLD]
    assert not before or max(before) in kept


def test_other_indices_are_not_kept() -> None:
    names = [IndexName(OLD, 1), IndexName(OLD, 2), *(IndexName(OWN, n) for n in range(3, 9))]
    modified_ms = {name: name.seq for name in names}
    kept = kept_indices(modified_ms, OWN, 1000, 100)
    assert kept == {IndexName(OLD, 2), *names[-KEPT_INDICES:]}
