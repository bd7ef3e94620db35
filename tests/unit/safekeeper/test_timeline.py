"""The shell around an acceptor: what is published when, what a start refuses, how it stops."""

from __future__ import annotations

from pathlib import Path

import pytest
from acceptor_steps import A, C, append, history
from timeline_on_disk import (
    Pusher,
    create_timeline,
    filled_timeline,
    flip,
    leading_pusher,
    load_timeline,
    log_of,
    segment_file,
    state_of,
)
from wal_log import START_LSN, WAL_SEG_SIZE, WalLog

import quorum_wal.safekeeper.timeline
from quorum_wal.safekeeper.control_file import ControlFile
from quorum_wal.safekeeper.errors import SafekeeperError, TimelineError
from quorum_wal.safekeeper.flush_times import FlushTimes
from quorum_wal.safekeeper.join_rules import activated
from quorum_wal.safekeeper.replica import stop_replicas
from quorum_wal.safekeeper.timeline import Refused, Timeline
from quorum_wal.safekeeper.timeline_hooks import TimelineHooks
from quorum_wal.safekeeper.timeline_state import TimelineState


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


# ---- what is published, and when


def test_an_answer_comes_back_and_positions_are_published(tmp_path: Path) -> None:
    pusher = leading_pusher(tmp_path)
    pusher.log.append("R1")
    answer = pusher.push(commit_lsn=pusher.log.lsn)
    assert answer.flush_lsn == answer.commit_lsn == pusher.log.lsn
    positions = pusher.timeline.positions
    assert positions.written_lsn == positions.flush_lsn == positions.commit_lsn == pusher.log.lsn


def test_nothing_is_published_before_it_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pusher = leading_pusher(tmp_path)
    pusher.log.append("R1")
    seen = []
    flush = pusher.timeline.store.flush

    def watched() -> None:
        seen.append(pusher.timeline.positions.flush_lsn)
        flush()

    monkeypatch.setattr(pusher.timeline.store, "flush", watched)
    pusher.push()
    assert seen == [START_LSN]


def test_the_promise_is_readable_only_once_it_is_on_disk(tmp_path: Path) -> None:
    pusher = Pusher(create_timeline(tmp_path))
    pusher.timeline.connect(pusher)
    assert pusher.vote().granted
    assert pusher.timeline.control.promised == ControlFile.read(tmp_path).state.promised == A


def test_readers_are_woken_by_new_positions(tmp_path: Path) -> None:
    pusher = leading_pusher(tmp_path)
    pusher.log.append("R1")
    timeline, seen = pusher.timeline, []
    with timeline.watchers.woken(lambda: seen.append(timeline.positions.flush_lsn)):
        pusher.push()
        assert seen[-1] == pusher.log.lsn
        stop_replicas(timeline)
    told = len(seen)
    pusher.log.append("R2")
    pusher.push()
    assert len(seen) == told > 1


# ---- hints


def test_hints_are_never_ahead_of_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Housekeeping runs during a flush; the power may fail before the flush is done.

    A commit_lsn on disk beyond the end of the log would make the next start report damage.
    """
    pusher = leading_pusher(tmp_path)
    pusher.log.append("R1")
    saved = []

    def flush() -> None:
        pusher.timeline.maintain_files()
        saved.append(ControlFile.read(tmp_path).state.commit_lsn)

    monkeypatch.setattr(pusher.timeline.store, "flush", flush)
    pusher.push(commit_lsn=pusher.log.lsn)
    assert saved == [START_LSN]
    pusher.timeline.maintain_files()
    assert ControlFile.read(tmp_path).state.commit_lsn == pusher.log.lsn


def test_a_promise_does_not_lower_the_hints(tmp_path: Path) -> None:
    """They determine what a start must decode, and how much of it should be valid."""
    pusher = leading_pusher(tmp_path)
    pusher.log.append("R1")
    pusher.push(commit_lsn=pusher.log.lsn, truncate_lsn=pusher.log.lsn)
    pusher.timeline.maintain_files()
    other = Pusher(pusher.timeline, number=2, node_id=C)
    other.timeline.connect(other)
    other.vote()
    state = ControlFile.read(tmp_path).state
    assert state.promised == C
    assert state.commit_lsn == state.truncate_lsn == pusher.log.lsn


def test_housekeeping_is_called_when_the_hints_lag_too_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They bound what a start must decode."""
    monkeypatch.setattr(quorum_wal.safekeeper.timeline, "HINTS_BYTES_MAX", 1000)
    filled_timeline(tmp_path, WalLog())
    calls: list[int] = []
    hooks = TimelineHooks(lambda: calls.append(pusher.log.lsn), FlushTimes())
    pusher = Pusher(load_timeline(tmp_path, hooks), number=2).lead()
    for _ in range(5):
        pusher.log.append(f"R{len(pusher.log.ends)}", 400)
        pusher.push(commit_lsn=pusher.log.lsn)
    ends = list(pusher.log.ends)
    assert calls == ends[2:], "again and again until it comes"
    pusher.timeline.maintain_files()
    pusher.push(commit_lsn=pusher.log.lsn)
    assert calls == ends[2:]


def test_an_orderly_end_saves_the_hints(tmp_path: Path) -> None:
    log = log_of(100_000)
    filled_timeline(tmp_path, log, commit_lsn=log.lsn)
    assert ControlFile.read(tmp_path).state.commit_lsn == log.lsn


# ---- connections


def test_a_newer_connection_closes_the_older_and_its_messages_are_refused(tmp_path: Path) -> None:
    """Its thread may hold messages that it read before it was closed."""
    older = leading_pusher(tmp_path)
    newer = Pusher(older.timeline, number=2).lead()
    assert older.closed_reason == f"vote given to {A}"
    with pytest.raises(TimelineError, match="a newer connection took over"):
        older.vote()
    assert older.timeline.streaming is newer
    older.timeline.disconnect(older)
    assert older.timeline.streaming is newer


def test_a_proposer_that_only_connected_does_not_hide_the_last_leader(tmp_path: Path) -> None:
    """A deposed one greets, and is fenced; the leader runs on without a connection."""
    leader = leading_pusher(tmp_path)
    timeline = leader.timeline
    deposed = Pusher(timeline, 2)
    timeline.connect(deposed)
    timeline.disconnect(deposed)
    timeline.disconnect(leader)
    known = timeline.last_proposers.describe()
    assert (known["last_proposer"], known["last_leader"]) == (deposed.describe(), leader.describe())


def test_a_refusal_ends_the_connection_and_not_the_timeline(tmp_path: Path) -> None:
    pusher = leading_pusher(tmp_path)
    with pytest.raises(Refused, match="append begins at"):
        pusher.send(append(A, START_LSN + 8, 8))
    pusher.timeline.disconnect(pusher)
    assert pusher.timeline.state is TimelineState.ACTIVE
    again = Pusher(pusher.timeline, number=2, log=pusher.log).lead()
    again.log.append("R1")
    assert again.push().flush_lsn == again.log.lsn


def test_messages_before_a_refusal_in_a_batch_are_kept_and_flushed(tmp_path: Path) -> None:
    pusher = leading_pusher(tmp_path)
    wal = pusher.log.append("R1")
    good = append(A, START_LSN, len(wal), wal=wal)
    with pytest.raises(Refused):
        pusher.send(good, append(A, START_LSN, len(wal), wal=wal))
    pusher.timeline.disconnect(pusher)
    assert pusher.timeline.positions.flush_lsn == pusher.log.lsn
    assert load_timeline(tmp_path).positions.flush_lsn == pusher.log.lsn


def test_disconnecting_twice_is_harmless(tmp_path: Path) -> None:
    pusher = leading_pusher(tmp_path)
    pusher.timeline.disconnect(pusher)
    assert pusher.timeline.streaming is None
    pusher.timeline.disconnect(pusher)


def test_a_closed_timeline_refuses_everything(tmp_path: Path) -> None:
    pusher = leading_pusher(tmp_path)
    pusher.timeline.close("it was deleted")
    assert pusher.closed_reason == "it was deleted"
    for command in (pusher.vote, pusher.push, lambda: pusher.timeline.connect(pusher)):
        with pytest.raises(TimelineError, match="is stopped: it was deleted"):
            command()
    pusher.timeline.disconnect(pusher)
    pusher.timeline.close("again")
    pusher.timeline.maintain_files()


# ---- activation


def test_activation_is_durable_and_can_be_repeated(tmp_path: Path) -> None:
    timeline = create_timeline(tmp_path, active=False)
    assert timeline.state is TimelineState.CREATING
    timeline.amend(activated, "it was activated")
    timeline.amend(activated, "it was activated")
    assert state_of(timeline) is TimelineState.ACTIVE
    assert load_timeline(tmp_path).state is TimelineState.ACTIVE


def test_a_timeline_that_is_being_created_never_votes(tmp_path: Path) -> None:
    pusher = Pusher(create_timeline(tmp_path, active=False))
    pusher.timeline.connect(pusher)
    with pytest.raises(Refused, match="is not active"):
        pusher.vote()


# ---- a start


def test_rule_7_a_start_finds_the_end_by_decoding(tmp_path: Path) -> None:
    log = log_of(1_500_000)
    filled_timeline(tmp_path, log)
    timeline = load_timeline(tmp_path)
    assert timeline.state is TimelineState.ACTIVE
    assert timeline.positions.flush_lsn == timeline.positions.written_lsn == log.lsn


def test_a_torn_tail_above_the_commit_is_cut(tmp_path: Path) -> None:
    """Nothing on disk shows that it was flushed: there was no vote, and no second has passed."""
    pusher = leading_pusher(tmp_path)
    pusher.log = log = log_of(1_500_000)
    pusher.push(commit_lsn=log.ends[-3])
    flip(tmp_path, log.lsn - 100)
    timeline = load_timeline(tmp_path)
    assert timeline.state is TimelineState.ACTIVE
    assert timeline.control.lost_lsn == 0
    assert timeline.positions.written_lsn == log.ends[-2]
    assert timeline.positions.flush_lsn == log.ends[-2]


def check_damaged(timeline: Timeline, *words: str) -> None:
    """It reports the reason, refuses everything, and has changed nothing."""
    assert timeline.state is TimelineState.DAMAGED
    for word in words:
        assert word in timeline.stopped_reason, timeline.stopped_reason
    before = files_of(timeline.directory)
    pusher = Pusher(timeline)
    for command in (pusher.vote, lambda: timeline.connect(pusher), timeline.activate):
        with pytest.raises(TimelineError, match="is damaged: ") as caught:
            command()
        assert caught.value.sqlstate == "XX001"
    timeline.maintain_files()
    timeline.maybe_resume(1 << 50)
    timeline.close("the test is over")
    assert timeline.state is TimelineState.DAMAGED
    assert files_of(timeline.directory) == before


def test_a_commit_on_a_segment_boundary_needs_no_next_file(tmp_path: Path) -> None:
    log = WalLog()
    while log.lsn < START_LSN + WAL_SEG_SIZE:
        log.fill_page(f"F{len(log.ends)}")
    filled_timeline(tmp_path, log, commit_lsn=log.lsn)
    timeline = load_timeline(tmp_path)
    assert timeline.state is TimelineState.ACTIVE
    assert timeline.positions.flush_lsn == log.lsn
    segment_file(tmp_path, START_LSN).unlink()
    timeline = load_timeline(tmp_path)
    assert timeline.positions.flush_lsn == log.lsn
    assert list(timeline.holes.all()) == [START_LSN // WAL_SEG_SIZE]


def test_a_short_file_with_the_whole_log_is_extended(tmp_path: Path) -> None:
    log = log_of(2_500_000)
    filled_timeline(tmp_path, log, commit_lsn=log.lsn)
    path = segment_file(tmp_path, log.lsn)
    path.write_bytes(path.read_bytes()[:-1])
    assert load_timeline(tmp_path).control.lost_lsn == 0
    assert path.stat().st_size == WAL_SEG_SIZE


def test_a_record_over_segment_boundaries_is_found_whole(tmp_path: Path) -> None:
    """The segment of the last known commit begins in the middle of a record."""
    log = log_of(900_000)
    log.append("long", 2_400_000)
    log.append("last")
    filled_timeline(tmp_path, log, commit_lsn=log.lsn)
    assert load_timeline(tmp_path).positions.flush_lsn == log.lsn


def test_two_proposers_in_turn_on_disk(tmp_path: Path) -> None:
    """Truncation and adoption, with the real store: the tail of the first is removed."""
    first = leading_pusher(tmp_path)
    first.log = log_of(2_300_000)
    first.push(commit_lsn=first.log.ends[10])
    first.timeline.disconnect(first)
    log = first.log.cut(first.log.ends[20])
    terms = history((A, START_LSN), (C, log.lsn))
    second = Pusher(first.timeline, number=2, node_id=C, log=log, terms=terms).lead(log.lsn)
    log.append("other", 500_000)
    second.push()
    timeline = load_timeline(tmp_path)
    assert timeline.positions.flush_lsn == log.lsn
    assert timeline.control.term_history == terms
    begin_lsn = log.lsn - 400_000
    assert timeline.store.read(begin_lsn, 1000) == log.read(begin_lsn, begin_lsn + 1000)


def test_a_refused_elected_leaves_the_timeline_as_it_was(tmp_path: Path) -> None:
    pusher = leading_pusher(tmp_path)
    pusher.log.append("R1")
    pusher.push(commit_lsn=pusher.log.lsn)
    before = files_of(tmp_path)
    other = Pusher(pusher.timeline, number=2, node_id=C, terms=history((C, START_LSN)))
    with pytest.raises(SafekeeperError, match="below the committed"):
        other.lead(START_LSN)
    after = files_of(tmp_path)
    control = str(tmp_path / "control")
    assert before.pop(control) != after.pop(control), "the vote before was given"
    assert before == after
