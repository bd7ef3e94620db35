"""A quorum is lost for good: an operator sets other members, durably, and they are marked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from acceptor_steps import A
from new_timeline import INSTANCE, TIMELINE, first_membership
from test_timelines import create, opened
from timeline_on_disk import Pusher, leading_pusher, load_timeline
from wal_log import START_LSN

from quorum_wal.consensus.ids import NodeId
from quorum_wal.consensus.membership import Member, Membership, Stamp
from quorum_wal.safekeeper.errors import TimelineError
from quorum_wal.safekeeper.force_rule import forced
from quorum_wal.safekeeper.timeline import Timeline

AUTHOR = NodeId((1 << 20) + 7, b"operator".ljust(16))
KEEPER = Member(1, INSTANCE, "10.0.0.1", 5454)
ALONE = Membership(Stamp(AUTHOR, 2), (1,), (), (KEEPER,))
OTHER = Membership(Stamp(AUTHOR, 2), (2,), (), (replace(KEEPER, id=2),))


def force(timeline: Timeline, membership: Membership) -> None:
    timeline.amend(lambda control: forced(1, INSTANCE, control, membership), "forced")


def test_the_only_member_keeps_its_log_and_is_marked(tmp_path: Path) -> None:
    pusher = leading_pusher(tmp_path)
    pusher.log.append("row", 30_000)
    pusher.push()
    pusher.timeline.disconnect(pusher)
    end_lsn = pusher.timeline.positions.flush_lsn
    assert end_lsn > START_LSN
    force(pusher.timeline, ALONE)
    for timeline in (pusher.timeline, load_timeline(tmp_path)):
        assert timeline.control.membership == ALONE
        assert timeline.control.promised == AUTHOR
        assert timeline.control.forced
        assert timeline.positions.flush_lsn == end_lsn


def test_the_same_again_is_fine(tmp_path: Path) -> None:
    timeline = leading_pusher(tmp_path).timeline
    force(timeline, ALONE)
    control = timeline.control
    force(timeline, ALONE)
    assert timeline.control == control


def test_a_former_member_keeps_its_log_unmarked(tmp_path: Path) -> None:
    timeline = leading_pusher(tmp_path).timeline
    force(timeline, OTHER)
    assert (timeline.control.membership, timeline.control.forced) == (OTHER, False)
    assert timeline.control.promised == AUTHOR


def test_the_previous_leader_is_fenced(tmp_path: Path) -> None:
    pusher = leading_pusher(tmp_path)
    force(pusher.timeline, ALONE)
    assert pusher.closed_reason == "forced"
    again = Pusher(pusher.timeline, number=2)
    pusher.timeline.connect(again)
    answer = again.vote()
    assert (answer.granted, answer.promised) == (False, AUTHOR)
    assert answer.membership == ALONE


REFUSED: list[tuple[Membership, dict[str, Any], str]] = [
    (Membership(Stamp(A, 1), (1,)), {"membership": ALONE}, "is older than"),
    (replace(ALONE, new_members=(1, 2)), {}, "expected a single one"),
    (replace(ALONE, members=(1, 2)), {}, "expected a single one"),
    (replace(ALONE, roster=(replace(KEEPER, instance=b"another."),)), {}, "this one is"),
    (ALONE, {"lost_lsn": START_LSN + 1}, "and is damaged"),
    (ALONE, {"active": False}, "its creation did not finish"),
    (ALONE, {"has_left": True}, "has left timeline"),
]


@pytest.mark.parametrize(("membership", "control", "reason"), REFUSED)
def test_what_is_refused(
    tmp_path: Path, membership: Membership, control: dict[str, Any], reason: str
) -> None:
    """And nothing is changed."""
    before = replace(leading_pusher(tmp_path).timeline.control, **control)
    with pytest.raises(TimelineError, match=reason):
        forced(1, INSTANCE, before, membership)


def test_while_a_proposer_streams_it_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as timelines:
        create(timelines, membership=first_membership(1, 2, 3))
        timelines.activate(TIMELINE)
        timeline = timelines.get(TIMELINE)
        known = replace(KEEPER, instance=timelines.data_directory.instance)
        alone = replace(ALONE, roster=(known,))
        pusher = Pusher(timeline).lead()
        with pytest.raises(TimelineError, match="streams to this safekeeper") as caught:
            timelines.force(TIMELINE, alone)
        assert "Stop the proposer first" in caught.value.hint
        timeline.disconnect(pusher)
        timelines.force(TIMELINE, alone)
        assert timeline.control.forced
