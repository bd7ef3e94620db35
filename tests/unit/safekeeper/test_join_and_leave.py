"""JOIN_TIMELINE and LEAVE_TIMELINE on a data directory: results, refusals, and what stays."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from acceptor_steps import B1, A, C, append, configure, elected, greeting, history, vote_request
from joining_on_disk import Leader, files_of, joined_leader, left, log_to_join, opened
from joining_steps import (
    JOIN_LSN,
    OUTSIDE,
    offer_of,
    with_four,
    without_four,
)
from new_timeline import SERVER, TIMELINE
from timeline_on_disk import Pusher, raising
from wal_log import START_LSN

from quorum_wal.consensus.ids import NodeId, TimelineId
from quorum_wal.consensus.join import TimelineOffer
from quorum_wal.consensus.membership import Membership, Stamp
from quorum_wal.consensus.messages import AppendResponse, SafekeeperGreeting
from quorum_wal.pgwal.errors import WalError
from quorum_wal.pgwal.history import TimelineHistory, TimelineSwitch
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.safekeeper.data_directory import folder_name
from quorum_wal.safekeeper.errors import SafekeeperError, TimelineError
from quorum_wal.safekeeper.replica import committed_lsn
from quorum_wal.safekeeper.timeline import Refused
from quorum_wal.safekeeper.timeline_state import TimelineState
from quorum_wal.safekeeper.timelines import Timelines
from quorum_wal.storage.errors import StorageError

OTHER = TimelineId(b"other tenant".ljust(16), b"other timeline".ljust(16))


@pytest.fixture
def timelines(tmp_path: Path) -> Iterator[Timelines]:
    with opened(tmp_path / "data") as opened_timelines:
        yield opened_timelines


# ---- JOIN


def test_a_joined_log_begins_at_the_offered_start_and_knows_the_histories_below(
    timelines: Timelines,
) -> None:
    timelines.join(TIMELINE, offer_of())
    timeline = timelines.get(TIMELINE)
    control = timeline.control
    assert timeline.state is TimelineState.ACTIVE
    assert (timeline.positions.flush_lsn, timeline.positions.commit_lsn) == (JOIN_LSN, JOIN_LSN)
    assert (control.local_start_lsn, control.timeline_start_lsn) == (JOIN_LSN, START_LSN)
    assert (control.promised, control.membership) == (A, without_four(A, 1))
    assert control.term_history == history((A, START_LSN))


def test_a_log_that_was_forced_is_marked_on_every_safekeeper_that_joins_it(tmp_path: Path) -> None:
    """Also after the forced only member has left."""
    forced = replace(without_four(A, 1), is_forced=True)
    with opened(tmp_path) as timelines:
        timelines.join(TIMELINE, offer_of(membership=forced))
    with opened(tmp_path) as timelines:
        assert timelines.get(TIMELINE).control.is_forced


def test_a_joined_log_survives_a_restart_though_it_is_empty(tmp_path: Path) -> None:
    with opened(tmp_path) as timelines:
        timelines.join(TIMELINE, offer_of())
    with opened(tmp_path) as timelines:
        timeline = timelines.get(TIMELINE)
        assert timeline.state is TimelineState.ACTIVE, timeline.stopped_reason
        assert timeline.positions.flush_lsn == JOIN_LSN


def test_a_learner_follows_becomes_a_member_and_is_there_after_a_restart(tmp_path: Path) -> None:
    with opened(tmp_path) as timelines:
        leader = joined_leader(timelines)
        (answer,) = leader.send(configure(with_four(A, 2), leader.number))
        assert isinstance(answer, AppendResponse)
        assert (answer.generation, answer.flush_lsn) == (2, leader.log.lsn)
        lsn = leader.log.lsn
    with opened(tmp_path) as timelines:
        timeline = timelines.get(TIMELINE)
        assert timeline.positions.flush_lsn == lsn
        assert timeline.control.membership == with_four(A, 2)
        assert timeline.store.read(JOIN_LSN, 100) == log_to_join().read(JOIN_LSN, JOIN_LSN + 100)


def test_a_joined_log_whose_wal_is_lost_is_damaged(tmp_path: Path) -> None:
    """It differs from the empty log of a safekeeper that has just joined."""
    with opened(tmp_path) as timelines:
        joined_leader(timelines)
        wal = timelines.data_directory.folder(TIMELINE) / "wal"
    for path in wal.iterdir():
        path.unlink()
    with opened(tmp_path) as timelines:
        assert timelines.get(TIMELINE).state is TimelineState.DAMAGED


def test_the_first_elected_brings_the_switch_above_the_start(timelines: Timelines) -> None:
    """The offer's histories end where the log begins; the leader's own continue."""
    switch = TimelineSwitch(1, Lsn(JOIN_LSN + 8000), "promoted")
    whole = TimelineHistory(2, (switch,))
    timelines.join(TIMELINE, offer_of())
    timeline = timelines.get(TIMELINE)
    leader = Leader(timeline, terms=history((A, START_LSN)))
    timeline.connect(leader)
    membership = without_four(A, 1)

    def told(tli_history: TimelineHistory) -> Any:
        terms = history((A, START_LSN))
        return elected(A, JOIN_LSN, terms, tli_history=tli_history, membership=membership)

    leader.send(told(whole))
    assert timeline.control.tli_history == whole
    for other in (TimelineHistory(1), TimelineHistory(3, (switch,))):
        with pytest.raises(Refused, match="but now sends"):
            leader.send(told(other))


def test_the_same_offer_again_is_answered_the_same(timelines: Timelines) -> None:
    leader = joined_leader(timelines)
    before = leader.timeline
    timelines.join(TIMELINE, offer_of())
    assert timelines.get(TIMELINE) is before
    assert before.positions.flush_lsn == leader.log.lsn
    assert leader.closed_reason == ""


@pytest.mark.parametrize(
    "offer",
    [offer_of(A, 2), offer_of(B1), offer_of(start_lsn=START_LSN)],
    ids=["a later membership", "another leader", "another start"],
)
def test_a_safekeeper_that_has_the_timeline_is_given_no_other(
    timelines: Timelines, offer: TimelineOffer
) -> None:
    timelines.join(TIMELINE, offer_of())
    with pytest.raises(TimelineError, match="exists already") as caught:
        timelines.join(TIMELINE, offer)
    assert caught.value.sqlstate == "42710"


@pytest.mark.parametrize(
    ("offer", "problem", "sqlstate"),
    [
        (offer_of(membership=with_four(A, 2)), "safekeeper 4 is a member already", "55000"),
        (offer_of(start_lsn=JOIN_LSN + 8), "is not a segment's start", "22023"),
        (offer_of(server=replace(SERVER, wal_seg_size=1000)), "segment size 1000", ""),
        (offer_of(server=replace(SERVER, pg_version=90600)), "9", ""),
    ],
    ids=["a member", "inside a segment", "segment size", "Postgres 9.6"],
)
def test_impossible_offers_are_refused(
    timelines: Timelines, offer: TimelineOffer, problem: str, sqlstate: str
) -> None:
    with pytest.raises((TimelineError, WalError), match=problem) as caught:
        timelines.join(TIMELINE, offer)
    assert not sqlstate or getattr(caught.value, "sqlstate", "") == sqlstate
    assert timelines.all() == []
    assert list(timelines.data_directory.timelines.iterdir()) == []


def test_amnesia_a_deleted_or_damaged_timeline_is_not_joined(tmp_path: Path) -> None:
    """In both cases the promises are lost."""
    with opened(tmp_path) as timelines:
        timelines.join(TIMELINE, offer_of())
        timelines.join(OTHER, offer_of())
        timelines.delete(TIMELINE)
        with pytest.raises(TimelineError, match="never used again"):
            timelines.join(TIMELINE, offer_of())
    (tmp_path / "timelines" / folder_name(OTHER) / "control").unlink()
    with opened(tmp_path) as timelines, pytest.raises(TimelineError, match="does not exist"):
        timelines.join(OTHER, offer_of())


def test_a_join_that_failed_can_be_repeated_in_the_same_process(
    timelines: Timelines, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", raising(OSError(28, "No space left on device")))
        with pytest.raises(StorageError):
            timelines.join(TIMELINE, offer_of())
    assert timelines.all() == []
    assert joined_leader(timelines)


# ---- LEAVE


def test_leaving_keeps_the_control_file_and_nothing_else(timelines: Timelines) -> None:
    leader = joined_leader(timelines)
    leader.timeline.slots.create("standby", JOIN_LSN)
    leader.timeline.maintain_files()
    assert len(files_of(timelines)) > 3
    timeline = left(timelines)
    assert files_of(timelines) == {"control"}
    assert timeline.state is TimelineState.LEFT
    assert timeline.control.has_left
    assert (timeline.control.promised, timeline.control.membership) == (A, without_four(A, 1))
    assert timeline.slots.all() == []
    assert leader.closed_reason == "this member has left the timeline"
    leader.timeline.maintain_files()
    leader.timeline.save_positions()
    assert files_of(timelines) == {"control"}, "what is under way in another thread writes nothing"


def test_after_leaving_and_a_restart_it_greets_and_refuses_all_else(tmp_path: Path) -> None:
    with opened(tmp_path) as timelines:
        joined_leader(timelines)
        left(timelines)
    with opened(tmp_path) as timelines:
        timeline = timelines.get(TIMELINE)
        stranger = Pusher(timeline, node_id=C)
        timeline.connect(stranger)
        (answer,) = stranger.send(greeting())
        instance = timelines.data_directory.instance
        assert answer == SafekeeperGreeting(4, instance, True, A, without_four(A, 1))
        for event in (vote_request(C), configure(without_four(A, 2)), append(A, JOIN_LSN, 8)):
            with pytest.raises(Refused, match="has left timeline") as caught:
                stranger.send(event)
            assert "1 at 10.0.0.1:5454" in caught.value.hint


def test_consumers_are_sent_to_the_present_members(timelines: Timelines) -> None:
    streamed = joined_leader(timelines).timeline
    timeline = left(timelines)
    for seen in (streamed, timeline):
        with pytest.raises(SafekeeperError, match="has left timeline") as caught:
            committed_lsn(seen)
        assert caught.value.sqlstate == "55000"
        assert caught.value.hint.endswith(
            "1 at 10.0.0.1:5454, 2 at 10.0.0.2:5454, 3 at 10.0.0.3:5454."
        )
    with pytest.raises(TimelineError, match="has left timeline"):
        timelines.activate(TIMELINE)


def test_a3_a_named_member_does_not_leave(timelines: Timelines) -> None:
    leader = joined_leader(timelines)
    for membership in (with_four(A, 2), Membership(Stamp(A, 3), (4,))):
        with pytest.raises(TimelineError, match="but the membership names it") as caught:
            timelines.leave(TIMELINE, membership)
        assert caught.value.sqlstate == "22023"
    leader.log.append("R")
    assert leader.push().flush_lsn == leader.log.lsn, "nobody was disturbed"


@pytest.mark.parametrize(
    ("membership", "problem"),
    [
        (without_four(A, 2), f"membership {A}/2 is older than {A}/3"),
        (without_four(NodeId.ZERO, 9), "is older than"),
        (replace(without_four(A, 3), members=(1, 2), roster=()), f"membership {A}/3 has the sets"),
    ],
)
def test_leaving_is_refused_after_a_greater_membership(
    timelines: Timelines, membership: Membership, problem: str
) -> None:
    leader = joined_leader(timelines)
    leader.send(configure(without_four(A, 3), leader.number))
    with pytest.raises(TimelineError, match=problem):
        timelines.leave(TIMELINE, membership)
    assert timelines.get(TIMELINE).state is TimelineState.ACTIVE


def test_leaving_again_is_answered_the_same_and_adopts_a_newer_membership(
    timelines: Timelines,
) -> None:
    joined_leader(timelines)
    left(timelines)
    assert left(timelines).control.membership == without_four(A, 1)
    newer = Membership(Stamp(B1, 3), (7, 8, 9))
    assert left(timelines, newer).control.membership == newer
    with pytest.raises(TimelineError, match="is older than"):
        timelines.leave(TIMELINE, without_four(A, 1))
    assert timelines.get(TIMELINE).control.promised == A, "a membership is no ballot"


def test_a_damaged_member_that_was_replaced_leaves(tmp_path: Path) -> None:
    with opened(tmp_path) as timelines:
        joined_leader(timelines)
        wal = timelines.data_directory.folder(TIMELINE) / "wal"
    for path in wal.iterdir():
        path.unlink()
    with opened(tmp_path) as timelines:
        assert timelines.get(TIMELINE).state is TimelineState.DAMAGED
        assert left(timelines).state is TimelineState.LEFT


def test_a_timeline_that_does_not_exist_cannot_be_left(timelines: Timelines) -> None:
    with pytest.raises(TimelineError, match="no such timeline"):
        timelines.leave(TIMELINE, OUTSIDE)


def test_a_failing_disk_stops_a_timeline_that_is_left_and_the_next_attempt_continues(
    timelines: Timelines, monkeypatch: pytest.MonkeyPatch
) -> None:
    timeline = joined_leader(timelines).timeline
    with monkeypatch.context() as broken:
        broken.setattr(os, "pwrite", raising(OSError(5, "Input/output error")))
        with pytest.raises(StorageError):
            timelines.leave(TIMELINE, without_four(A, 1))
    assert timeline.state is TimelineState.STOPPED
    assert not timeline.control.has_left
    assert left(timelines).state is TimelineState.LEFT


def test_files_that_could_not_be_removed_are_removed_by_the_next_attempt(
    timelines: Timelines, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined_leader(timelines)
    with monkeypatch.context() as broken:
        broken.setattr(os, "unlink", raising(OSError(5, "Input/output error")))
        with pytest.raises(StorageError):
            timelines.leave(TIMELINE, without_four(A, 1))
    assert timelines.get(TIMELINE).state is TimelineState.LEFT, "it has left, durably"
    assert len(files_of(timelines)) > 1
    left(timelines)
    assert files_of(timelines) == {"control"}


def test_an_interrupted_removal_is_finished_by_the_next_start(tmp_path: Path) -> None:
    with opened(tmp_path) as timelines:
        joined_leader(timelines)
        left(timelines)
        wal = timelines.data_directory.folder(TIMELINE) / "wal"
        (wal / "000000010000000000000003").write_bytes(b"remains")
    with opened(tmp_path) as timelines:
        assert files_of(timelines) == {"control"}
