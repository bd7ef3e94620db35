"""Which member archives: each member computes the line alone, and silent members do not stop it."""

from __future__ import annotations

import pytest

from quorum_wal.consensus.ids import TimelineId
from quorum_wal.safekeeper.archive_turn import TAKEOVER_SECONDS, ArchiveTurn, rank_of

MEMBERS = (2, 5, 9)


@pytest.mark.parametrize("number", range(6))
def test_every_timeline_has_one_line(number: int) -> None:
    timeline = TimelineId(bytes(16), number.to_bytes(8, "big") + bytes(8))
    assert sorted(rank_of(member, MEMBERS, timeline) for member in MEMBERS) == [0, 1, 2]
    assert rank_of(MEMBERS[number % 3], MEMBERS, timeline) == 0
    assert rank_of(7, MEMBERS, timeline) == 3  # not a member: behind all


def test_the_first_in_line_never_checks_the_store() -> None:
    turn = ArchiveTurn(0, 3)
    assert turn.is_ours
    assert not turn.must_look(100.0, is_due=True)
    turn.found_archived(100.0)
    assert turn.is_ours


def test_the_next_checks_when_nothing_comes_and_takes_over_when_it_finds_nothing() -> None:
    turn = ArchiveTurn(1, 3)
    assert turn.wait_seconds == TAKEOVER_SECONDS / 2
    assert not turn.must_look(10.0, is_due=True)
    assert turn.must_look(10.0 + turn.wait_seconds, is_due=True)
    turn.looked(12.0, has_progressed=True)
    assert not turn.is_ours
    assert not turn.must_look(12.1, is_due=True)
    assert turn.must_look(12.0 + turn.wait_seconds, is_due=True)
    turn.looked(14.0, has_progressed=False)
    assert turn.is_ours


def test_the_wait_begins_again_when_nothing_is_due() -> None:
    turn = ArchiveTurn(2, 3)
    assert not turn.must_look(0.0, is_due=True)
    assert not turn.must_look(3.0, is_due=False)
    assert not turn.must_look(TAKEOVER_SECONDS + 1, is_due=True)


def test_a_member_that_took_over_stops_when_another_one_uploads() -> None:
    turn = ArchiveTurn(1, 3)
    turn.must_look(0.0, is_due=True)
    turn.looked(2.0, has_progressed=False)
    assert turn.is_ours
    turn.found_archived(3.0)
    assert not turn.is_ours
    assert not turn.must_look(3.1, is_due=True)
    assert turn.must_look(3.0 + turn.wait_seconds, is_due=True)
