"""Timeline histories as functions LSN -> TLI, compared at every position."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from quorum_wal.consensus.tli_history import clipped_tli_history, first_difference, last_switch_lsn
from quorum_wal.pgwal.history import TimelineHistory, TimelineSwitch
from quorum_wal.pgwal.lsn import Lsn

END = 30


@st.composite
def histories(draw: st.DrawFn) -> TimelineHistory:
    tlis = sorted(draw(st.sets(st.integers(1, 6), min_size=1, max_size=4)))
    lsns = sorted(draw(st.integers(0, END)) for _ in tlis[1:])
    entries = (TimelineSwitch(t, Lsn(lsn)) for t, lsn in zip(tlis, lsns, strict=False))
    return TimelineHistory(tlis[-1], tuple(entries))


@given(histories(), histories(), st.integers(0, END), st.integers(0, END + 5))
def test_the_first_difference_is_the_first_position_of_two_timelines(
    one: TimelineHistory, other: TimelineHistory, begin_lsn: int, end_lsn: int
) -> None:
    differing = [lsn for lsn in range(begin_lsn, end_lsn) if one.tli_at(lsn) != other.tli_at(lsn)]
    expected = differing[0] if differing else None
    assert first_difference(one, other, begin_lsn, end_lsn) == expected
    assert first_difference(other, one, begin_lsn, end_lsn) == expected


@given(histories())
def test_a_history_agrees_with_itself_and_its_timelines_ascend(history: TimelineHistory) -> None:
    assert first_difference(history, history, 0, END + 5) is None
    tlis = [history.tli_at(lsn) for lsn in range(END + 5)]
    assert tlis == sorted(tlis)
    assert tlis[-1] == history.tli


@given(histories(), st.integers(1, END + 5))
def test_a_clipped_history_is_equal_below_and_has_nothing_above(
    history: TimelineHistory, lsn: int
) -> None:
    clipped = clipped_tli_history(history, lsn)
    assert [clipped.tli_at(at) for at in range(lsn)] == [history.tli_at(at) for at in range(lsn)]
    assert clipped.tli == history.tli_at(lsn - 1)
    assert last_switch_lsn(clipped) < lsn


@given(histories())
def test_the_newest_timeline_begins_at_the_last_switch(history: TimelineHistory) -> None:
    switch_lsn = last_switch_lsn(history)
    assert history.tli_at(switch_lsn) == history.tli
    assert switch_lsn == 0 or history.tli_at(switch_lsn - 1) != history.tli


@given(histories())
def test_a_history_survives_its_text(history: TimelineHistory) -> None:
    assert TimelineHistory.parse(history.tli, history.format()) == history
