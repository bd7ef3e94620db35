"""A safekeeper that has left joins again (condition A2); nothing of the old log may interfere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from acceptor_steps import B1, A, C
from joining_on_disk import joined_leader, left, opened
from joining_steps import (
    JOIN_LSN,
    offer_of,
    without_four,
)
from new_timeline import SERVER, TIMELINE
from timeline_on_disk import Pusher, raising
from wal_log import START_LSN, WAL_SEG_SIZE, WalLog

from quorum_wal.consensus.ids import NodeId, TimelineId
from quorum_wal.consensus.join import TimelineOffer
from quorum_wal.consensus.membership import Membership, Stamp
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.safekeeper.errors import TimelineError, WalDamaged
from quorum_wal.safekeeper.read_wal import found_damage, read_wal
from quorum_wal.safekeeper.scrub import cold_end_lsn
from quorum_wal.safekeeper.timeline_state import TimelineState
from quorum_wal.safekeeper.timelines import Timelines
from quorum_wal.storage.errors import StorageError

OTHER = TimelineId(b"other tenant".ljust(16), b"other timeline".ljust(16))


@pytest.fixture
def timelines(tmp_path: Path) -> Iterator[Timelines]:
    with opened(tmp_path / "data") as opened_timelines:
        yield opened_timelines


# ---- joining again (condition A2)


def test_a_safekeeper_that_left_joins_again_with_an_empty_log(timelines: Timelines) -> None:
    joined_leader(timelines)
    greeted = left(timelines)
    old = Pusher(greeted)
    greeted.connect(old)
    timelines.join(TIMELINE, offer_of(B1, 2))
    assert old.closed_reason == "this member joins the timeline again"
    with pytest.raises(TimelineError, match="joins the timeline again"):
        greeted.connect(old)
    timeline = timelines.get(TIMELINE)
    assert timeline.state is TimelineState.ACTIVE
    assert not timeline.control.has_left
    assert timeline.positions.flush_lsn == JOIN_LSN
    assert (timeline.control.promised, timeline.control.membership) == (B1, without_four(B1, 2))


def test_the_same_leader_may_let_it_join_again(timelines: Timelines) -> None:
    joined_leader(timelines)
    left(timelines, without_four(A, 2))
    again = joined_leader(timelines, offer_of(A, 3))
    assert again.timeline.positions.flush_lsn == again.log.lsn


def test_a_reader_of_the_old_log_does_not_touch_the_new_one(
    timelines: Timelines,
) -> None:
    """A scrub, a donor's stream: the names are the same, the bytes may differ."""
    old = joined_leader(timelines).timeline
    before = old.store.checked.read(JOIN_LSN, 8192, old.store.facts(JOIN_LSN))
    left(timelines)
    other = WalLog()
    other.append("other", 3 * WAL_SEG_SIZE)
    again = joined_leader(timelines, offer_of(B1, 2), other)
    assert again.timeline.store.read(JOIN_LSN, 8192) != before
    assert read_wal(old, JOIN_LSN, 8192) == b""
    found_damage(old, WalDamaged(JOIN_LSN, "its checksum is another"))
    assert cold_end_lsn(old) <= JOIN_LSN, "there is nothing to scrub"
    assert not again.timeline.holes
    wal = again.timeline.store.read(JOIN_LSN, 8192)
    assert wal == other.read(JOIN_LSN, JOIN_LSN + 8192), "its file is where it was"


@pytest.mark.parametrize(
    ("offer", "problem"),
    [
        (offer_of(NodeId(1, b"A" * 16)), "was promised before it was left"),
        (offer_of(A, 1), f"membership {A}/1 is older than {A}/2"),
        (offer_of(A, 2, membership=replace(without_four(A, 2), roster=())), "has the sets"),
        (offer_of(B1, server=replace(SERVER, system_id=9)), "with other parameters"),
    ],
    ids=["a lesser ballot", "a lesser stamp", "another membership", "another system"],
)
def test_a2_a_safekeeper_that_left_keeps_promise_and_stamp(
    tmp_path: Path, offer: TimelineOffer, problem: str
) -> None:
    with opened(tmp_path) as timelines:
        joined_leader(timelines)
        left(timelines, without_four(A, 2))
    with opened(tmp_path) as timelines:
        with pytest.raises(TimelineError, match=problem):
            timelines.join(TIMELINE, offer)
        assert timelines.get(TIMELINE).state is TimelineState.LEFT
        assert timelines.get(TIMELINE).control.promised == A


def test_a_stamp_that_was_adopted_by_leaving_binds_though_its_author_was_never_promised(
    timelines: Timelines,
) -> None:
    joined_leader(timelines)
    left(timelines, without_four(C, 2))
    with pytest.raises(TimelineError, match="is older than"):
        timelines.join(TIMELINE, offer_of(B1, 7))
    timelines.join(TIMELINE, offer_of(C, 3))


def test_a_failed_attempt_to_join_again_leaves_it_as_left(
    timelines: Timelines, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined_leader(timelines)
    left(timelines)
    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", raising(OSError(28, "No space left on device")))
        with pytest.raises(StorageError):
            timelines.join(TIMELINE, offer_of(B1, 2))
    assert timelines.get(TIMELINE).state is TimelineState.LEFT
    timelines.join(TIMELINE, offer_of(B1, 2))
    assert timelines.get(TIMELINE).state is TimelineState.ACTIVE


# ---- no second log


def test_no_timeline_is_made_where_one_of_its_system_was_left(timelines: Timelines) -> None:
    joined_leader(timelines)
    left(timelines)

    def create(system_id: int) -> None:
        server, members = replace(SERVER, system_id=system_id), Membership(Stamp.FIRST, (4,))
        timelines.create(OTHER, server, members, START_LSN, TimelineHistory(1))

    with pytest.raises(TimelineError, match="was left here, and continues on") as caught:
        create(SERVER.system_id)
    assert caught.value.sqlstate == "55000"
    assert "1 at 10.0.0.1:5454" in caught.value.hint
    create(SERVER.system_id + 1)
