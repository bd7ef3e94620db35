"""After the election: messages to each peer, commits, and the absence of both."""

from __future__ import annotations

import pytest
from leader_world import World, appends_to, grow
from proposer_steps import (
    OURS,
    answer,
    ballot,
    campaigning,
    connect,
    greet,
    history,
    leading,
    members,
    new_proposer,
    of_kind,
    sent,
    the_stop,
    vote,
)
from wal_log import PAGE_SIZE, START_LSN, WalLog

from quorum_wal.consensus.messages import Append, Elected
from quorum_wal.walproposer.stream import progress
from quorum_wal.walproposer.stream.events import (
    CatchUpWal,
    ClosePeer,
    Outcome,
    PeerLost,
    ReportFlushed,
    StartCatchUp,
    Stop,
    Stopping,
    TailRead,
    Tick,
    WalReceived,
)
from quorum_wal.walproposer.stream.leader import HEARTBEAT_MS
from quorum_wal.walproposer.stream.proposer import SMALL_ROUND_BYTES_MAX, TELL_ALL_MS, State


def test_rule_4_each_is_streamed_from_its_own_common_point() -> None:
    """0 has the whole log; 1 lacks its end; 2 has the tail of another ballot."""
    log = WalLog()
    ends = grow(log, 4)
    a, b = ballot(1, "a"), ballot(2, "b")
    donors = history((a, START_LSN), (b, ends[1]))
    proposer = new_proposer()
    for peer in range(3):
        greet(proposer, peer, ballot(2, "b"))
    vote(proposer, 0, ends[3], term_history=donors)
    vote(proposer, 1, ends[2], term_history=donors)
    vote(proposer, 2, ends[3], term_history=history((a, START_LSN)))
    proposer.step(TailRead(bytes(log.wal)))
    actions = proposer.step(WalReceived(START_LSN, bytes(log.wal)))
    starts = {peer: message.start_streaming_at for peer, message in sent(actions, Elected)}
    assert starts == {0: ends[3], 1: ends[2], 2: ends[1]}
    assert of_kind(actions, StartCatchUp) == [
        StartCatchUp(1, donor=0, begin_lsn=ends[2]),
        StartCatchUp(2, donor=0, begin_lsn=ends[1]),
    ]


def test_rule_4_a_member_that_joins_late_follows(world: World) -> None:
    world.write(100)
    world.proposer.step(PeerLost(2, "gone"))
    world.write(100)
    actions = world.rejoin(2, START_LSN)
    ((_, elected),) = sent(actions, Elected)
    assert elected.start_streaming_at == START_LSN
    (append,) = appends_to(actions, 2)
    assert (append.begin_lsn, append.end_lsn) == (START_LSN, world.position)
    assert bytes(append.wal) == world.log.wal


def test_a_history_that_contradicts_ours_closes_the_connection(world: World) -> None:
    world.proposer.step(PeerLost(2, "gone"))
    greet(world.proposer, 2, OURS)
    terms = history((OURS, START_LSN + 64))
    (close,) = vote(world.proposer, 2, START_LSN + 64, term_history=terms)
    assert isinstance(close, ClosePeer)
    assert "one ballot has two starts" in close.reason


# ---- streaming


def test_wal_goes_to_every_follower_as_one_object(world: World) -> None:
    """It is encoded once; and one that is lost is sent nothing."""
    actions = world.write(100)
    assert [peer for peer, _ in sent(actions, Append)] == [0, 1, 2]
    assert len({id(message) for _, message in sent(actions, Append)}) == 1
    world.proposer.step(PeerLost(1, "gone"))
    assert [peer for peer, _ in sent(world.write(100), Append)] == [0, 2]


def test_the_last_record_boundary_is_named(world: World) -> None:
    """A record that spans pages: its middle parts name the boundary before it."""
    world.write(100)
    before_lsn = world.position
    messages = appends_to(world.write_in_pages(3 * PAGE_SIZE), 0)
    assert len(messages) == 4
    assert [m.record_end_lsn for m in messages] == [before_lsn] * 3 + [world.position]


def test_a_slow_member_is_sent_no_more_than_fits_in_flight(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "IN_FLIGHT_BYTES_MAX", 1000)
    sizes = [len(m.wal) for m in appends_to(world.write(*[400] * 9), 2)]
    assert 1000 <= sum(sizes) <= 1400
    actions = world.answer(2, lsn=START_LSN + sum(sizes))
    assert appends_to(actions, 2)[0].begin_lsn == START_LSN + sum(sizes)


# ---- group commit: a small round is worth waiting for


def test_a_small_round_is_open_until_a_quorum_has_answered_it(world: World) -> None:
    world.answer(0, 1)
    assert not world.proposer.is_round_small
    world.write(100)
    assert world.proposer.is_round_small
    world.answer(0)
    assert world.proposer.is_round_small
    world.answer(1)
    assert not world.proposer.is_round_small


def test_a_bulk_load_is_not_held_up_by_answers(world: World) -> None:
    world.answer(0, 1)
    world.write(SMALL_ROUND_BYTES_MAX)
    assert not world.proposer.is_round_small


# ---- rule 5: the commit rule


def test_rule_5_committed_when_a_quorum_has_flushed(world: World) -> None:
    world.write(100)
    assert not of_kind(world.answer(0), ReportFlushed)
    assert of_kind(world.answer(1), ReportFlushed) == [ReportFlushed(world.position)]
    assert not of_kind(world.answer(2), ReportFlushed), "nothing new"
    assert world.proposer.commit_lsn == world.position


def test_rule_5_the_report_goes_first(world: World) -> None:
    """Clients wait for it; the next WAL can wait."""
    world.write(100)
    world.answer(0)
    world.write(100)
    actions = world.answer(1, lsn=world.log.ends[0])
    assert isinstance(actions[0], ReportFlushed)


def test_rule_5_an_idle_term_commits_its_start() -> None:
    log = WalLog()
    log.append("R0")
    proposer = leading(log)
    assert proposer.commit_lsn == 0
    answer(proposer, 0, log.lsn)
    assert of_kind(answer(proposer, 1, log.lsn), ReportFlushed) == [ReportFlushed(log.lsn)]


def test_rule_5_a_member_below_the_term_start_counts_as_nothing() -> None:
    """Figure 8: a record of an older term on a quorum may still be truncated."""
    log = WalLog()
    ends = grow(log, 3)
    proposer = campaigning((0, 1))
    vote(proposer, 0, log.lsn)
    vote(proposer, 1, START_LSN)
    proposer.step(TailRead(bytes(log.wal)))
    proposer.step(WalReceived(START_LSN, bytes(log.wal)))
    answer(proposer, 0, ends[2])
    for lsn in (START_LSN, ends[0], ends[1]):
        actions = answer(proposer, 1, lsn)
        assert not of_kind(actions, ReportFlushed)
        assert proposer.commit_lsn == 0
    assert of_kind(answer(proposer, 1, ends[2]), ReportFlushed) == [ReportFlushed(ends[2])]


def test_rule_5_a_vote_is_no_answer() -> None:
    """What a member had before it followed may be another ballot's."""
    log = WalLog()
    log.append("R0")
    proposer = leading(log)
    answer(proposer, 0, log.lsn)
    assert proposer.commit_lsn == 0


def test_rule_5_what_a_lost_member_had_flushed_stays_flushed(world: World) -> None:
    world.write(100)
    world.answer(0)
    world.proposer.step(PeerLost(0, "power failed"))
    assert of_kind(world.answer(1), ReportFlushed) == [ReportFlushed(world.position)]


def test_rule_5_it_never_goes_back(world: World) -> None:
    world.write(100)
    world.answer(0, 1)
    committed_lsn = world.proposer.commit_lsn
    assert not of_kind(answer(world.proposer, 1, START_LSN), ReportFlushed)
    assert world.proposer.commit_lsn == committed_lsn


def test_rule_5_bytes_of_an_unfinished_record_commit_nothing(world: World) -> None:
    world.write(100)
    boundary_lsn = world.position
    world.answer(0, 1)
    world.write_in_pages(3 * PAGE_SIZE)
    for peer in (0, 1):
        answer(world.proposer, peer, boundary_lsn, durable_lsn=boundary_lsn + PAGE_SIZE)
    assert world.proposer.commit_lsn == boundary_lsn


def test_rule_5_a_joint_configuration_needs_both_quorums() -> None:
    joint = members((1, 2, 3), (3, 4, 5))
    proposer = campaigning((0, 1, 2, 3, 4), joint)
    for peer in range(5):
        vote(proposer, peer)
    log = WalLog()
    proposer.step(WalReceived(START_LSN, log.append("R0")))
    for peer in (0, 1):
        assert not of_kind(answer(proposer, peer, log.lsn), ReportFlushed)
    assert not of_kind(answer(proposer, 3, log.lsn), ReportFlushed)
    assert of_kind(answer(proposer, 4, log.lsn), ReportFlushed) == [ReportFlushed(log.lsn)]


# ---- rule 6: truncate_lsn


def test_rule_6_truncate_lsn_is_what_all_members_have(world: World) -> None:
    assert world.proposer.leader is not None
    leader = world.proposer.leader
    world.write(100)
    first_lsn = world.position
    world.answer(0, 1, 2)
    world.write(100)
    world.answer(0, 1)
    world.proposer.step(Tick(1))
    assert leader.truncate_lsn == first_lsn, "the slowest member decides"
    world.answer(2)
    world.proposer.step(Tick(2))
    assert leader.truncate_lsn == world.position, "also on a log that has become quiet"


def test_rule_6_a_member_that_never_came_holds_it_back() -> None:
    log = WalLog()
    world = World(leading(log, peers=(0, 1)), log)
    world.write(100)
    world.answer(0, 1)
    world.proposer.step(Tick(1))
    assert world.proposer.leader is not None
    assert world.proposer.leader.truncate_lsn == 0


def test_rule_6_at_most_what_is_committed(world: World) -> None:
    world.write(100)
    world.answer(0)
    world.proposer.step(Tick(1))
    assert world.proposer.leader is not None
    assert world.proposer.leader.truncate_lsn <= world.proposer.commit_lsn


# ---- time


def test_an_idle_connection_gets_a_heartbeat(world: World) -> None:
    world.proposer.step(Tick(0))
    assert not sent(world.proposer.step(Tick(HEARTBEAT_MS - 1)), Append)
    beats = sent(world.proposer.step(Tick(HEARTBEAT_MS)), Append)
    assert [(peer, m.begin_lsn, len(m.wal)) for peer, m in beats] == [
        (peer, world.position, 0) for peer in (0, 1, 2)
    ]
    assert not sent(world.proposer.step(Tick(HEARTBEAT_MS + 1)), Append)


def test_consumers_learn_of_the_last_commit_though_nothing_follows_it(world: World) -> None:
    world.write(100)
    world.answer(0, 1, 2)
    beats = sent(world.proposer.step(Tick(1)), Append)
    assert [(peer, m.commit_lsn) for peer, m in beats] == [
        (peer, world.position) for peer in (0, 1, 2)
    ]
    assert not sent(world.proposer.step(Tick(2)), Append), "once"


def test_its_last_words_are_the_last_commit(world: World) -> None:
    world.write(100)
    world.answer(0, 1, 2)
    words = sent(world.proposer.step(Stopping()), Append)
    assert [(peer, m.commit_lsn, m.wal) for peer, m in words] == [
        (peer, world.position, b"") for peer in (0, 1, 2)
    ]
    assert world.proposer.state is State.STOPPED
    assert world.write(100) == []


def test_a_member_that_comes_back_to_an_idle_log_learns_the_commit(world: World) -> None:
    world.write(100)
    world.answer(0, 1, 2)
    world.proposer.step(Tick(1))
    world.proposer.step(PeerLost(2, "gone"))
    world.rejoin(2, world.position)
    world.answer(2)
    ((peer, beat),) = sent(world.proposer.step(Tick(2)), Append)
    assert (peer, beat.commit_lsn) == (2, world.position)


def test_a_member_that_was_away_for_long_is_given_time_to_answer(world: World) -> None:
    world.proposer.step(PeerLost(2, "gone"))
    for now_ms in range(0, 100_000, 1000):
        world.proposer.step(Tick(now_ms))
        world.answer(0, 1)
    connect(world.proposer, 2)
    assert not of_kind(world.proposer.step(Tick(100_000)), ClosePeer)


# ---- without a primary


def test_without_a_primary_the_tail_is_completed_and_reported() -> None:
    log = WalLog()
    log.append("R0")
    proposer = campaigning((0, 1), primary=None)
    vote(proposer, 0, log.lsn)
    actions = vote(proposer, 1, START_LSN)
    assert of_kind(actions, StartCatchUp) == [StartCatchUp(1, donor=0, begin_lsn=START_LSN)]
    answer(proposer, 0, log.lsn)
    proposer.step(CatchUpWal(1, START_LSN, bytes(log.wal)))
    actions = answer(proposer, 1, log.lsn)
    assert of_kind(actions, ReportFlushed) == [ReportFlushed(log.lsn)]
    assert [m.commit_lsn for _, m in sent(actions, Append)] == [log.lsn] * 2
    assert not of_kind(answer(proposer, 0, log.lsn, commit_lsn=log.lsn), ReportFlushed)
    assert not of_kind(answer(proposer, 1, log.lsn, commit_lsn=log.lsn), Stop)
    proposer.step(Tick(100))
    stop = the_stop(proposer.step(Tick(100 + TELL_ALL_MS)))
    assert stop.outcome is Outcome.COMPLETED
    assert proposer.state is State.STOPPED


def test_without_a_primary_it_ends_at_once_when_all_members_know() -> None:
    log = WalLog()
    log.append("R0")
    proposer = campaigning((0, 1, 2), primary=None)
    for peer in range(3):
        vote(proposer, peer, log.lsn)
    for peer in range(3):
        answer(proposer, peer, log.lsn)
    for peer in range(2):
        assert not of_kind(answer(proposer, peer, log.lsn, commit_lsn=log.lsn), Stop)
    stop = the_stop(answer(proposer, 2, log.lsn, commit_lsn=log.lsn))
    assert stop.outcome is Outcome.COMPLETED


def test_the_quorum_is_connected_only_while_it_answers(world: World) -> None:
    assert world.proposer.leader is not None
    leader = world.proposer.leader
    assert leader.quorum_is_connected
    world.proposer.step(PeerLost(0, "gone"))
    assert leader.quorum_is_connected
    world.proposer.step(PeerLost(1, "gone"))
    assert not leader.quorum_is_connected
    world.rejoin(1, START_LSN)
    assert not leader.quorum_is_connected, "it follows, and has not answered"
    world.answer(1)
    assert leader.quorum_is_connected
