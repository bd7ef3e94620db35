"""From the election on: who gets what, what is committed, and how those behind catch up."""

from __future__ import annotations

import pytest
from proposer_steps import (
    OURS,
    answer,
    ballot,
    campaigning,
    connect,
    greet,
    history,
    leading,
    new_proposer,
    of_kind,
    sent,
    the_stop,
    vote,
)
from wal_builder import PAGE_SIZE, START_LSN, WalBuilder

from consensus.membership import Membership
from consensus.messages import Append, Elected
from walproposer import progress
from walproposer.events import (
    Action,
    CatchUpLost,
    CatchUpWal,
    ClosePeer,
    Outcome,
    PeerLost,
    ReportFlushed,
    Send,
    StartCatchUp,
    StopCatchUp,
    TailRead,
    Tick,
    WalReceived,
)
from walproposer.leader import HEARTBEAT_MS
from walproposer.progress import PeerState
from walproposer.proposer import Proposer, State


class World:
    """A leader, and the log of its primary."""

    def __init__(self, proposer: Proposer, log: WalBuilder) -> None:
        self.proposer = proposer
        self.log = log

    def write(self, *lengths: int) -> list[Action]:
        """The primary writes records and ships them, each by itself."""
        actions = []
        for length in lengths:
            begin_lsn = self.log.lsn
            wal = self.log.append(f"R{len(self.log.records)}", length)
            actions += self.proposer.step(WalReceived(begin_lsn, wal))
        return actions

    def write_in_pages(self, length: int) -> list[Action]:
        """One record, shipped as it is flushed: a page at a time."""
        begin_lsn = self.log.lsn
        self.log.append(f"R{len(self.log.records)}", length)
        page_lsn = begin_lsn - begin_lsn % PAGE_SIZE + PAGE_SIZE
        actions = []
        for end_lsn in [*range(page_lsn, self.log.lsn, PAGE_SIZE), self.log.lsn]:
            wal = self.log.read(begin_lsn, end_lsn)
            actions += self.proposer.step(WalReceived(begin_lsn, wal))
            begin_lsn = end_lsn
        return actions

    @property
    def position(self) -> int:
        return self.log.lsn

    def answer(self, *peers: int, lsn: int | None = None) -> list[Action]:
        actions = []
        for peer in peers:
            actions += answer(self.proposer, peer, self.log.lsn if lsn is None else lsn)
        return actions

    def rejoin(self, peer: int, flush_lsn: int) -> list[Action]:
        """A new connection of a member whose log ends there, under our NodeId."""
        assert self.proposer.node_id is not None
        assert self.proposer.leader is not None
        greet(self.proposer, peer, self.proposer.node_id)
        terms = self.proposer.leader.term.term_history.clipped(flush_lsn)
        return vote(self.proposer, peer, flush_lsn, term_history=terms)


@pytest.fixture
def world() -> World:
    """Three members, an empty log, everybody streaming and answered."""
    log = WalBuilder()
    world = World(leading(log, peers=(0, 1, 2)), log)
    world.answer(0, 1, 2)
    return world


def grow(log: WalBuilder, records: int) -> list[int]:
    """Their ends."""
    for number in range(records):
        log.append(f"R{number}")
    return [record.end_lsn for record in log.records]


def appends_to(actions: list[Action], peer: int) -> list[Append]:
    return [message for to, message in sent(actions, Append) if to == peer]


# ---- rule 4: each from its own highest common point


def test_rule_4_each_is_streamed_from_its_own_common_point() -> None:
    """0 has the log whole; 1 lacks its end; 2 has another ballot's tail."""
    log = WalBuilder()
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


def test_wal_goes_to_everybody_who_follows_as_one_object(world: World) -> None:
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


# ---- rule 5: the commit rule


def test_rule_5_committed_when_a_quorum_has_flushed(world: World) -> None:
    world.write(100)
    assert not of_kind(world.answer(0), ReportFlushed)
    assert of_kind(world.answer(1), ReportFlushed) == [ReportFlushed(world.position)]
    assert not of_kind(world.answer(2), ReportFlushed), "nothing new"
    assert world.proposer.commit_lsn == world.position


def test_rule_5_the_report_goes_first(world: World) -> None:
    """Clients wait for just that; the next WAL can wait for it."""
    world.write(100)
    world.answer(0)
    world.write(100)
    actions = world.answer(1, lsn=world.log.records[0].end_lsn)
    assert isinstance(actions[0], ReportFlushed)


def test_rule_5_an_idle_term_commits_its_start() -> None:
    log = WalBuilder()
    log.append("R0")
    proposer = leading(log)
    assert proposer.commit_lsn == 0
    answer(proposer, 0, log.lsn)
    assert of_kind(answer(proposer, 1, log.lsn), ReportFlushed) == [ReportFlushed(log.lsn)]


def test_rule_5_a_member_below_the_term_start_counts_as_nothing() -> None:
    """Figure 8: a record of an older term on a quorum may still be truncated."""
    log = WalBuilder()
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
    log = WalBuilder()
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
    members = Membership(1, (1, 2, 3), (3, 4, 5))
    proposer = campaigning((0, 1, 2, 3, 4), membership=members)
    for peer in range(5):
        vote(proposer, peer)
    log = WalBuilder()
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
    log = WalBuilder()
    world = World(leading(log, peers=(0, 1)), log)
    world.write(100)
    world.answer(0, 1)
    world.proposer.step(Tick(1))
    assert world.proposer.leader is not None
    assert world.proposer.leader.truncate_lsn == START_LSN


def test_rule_6_at_most_what_is_committed(world: World) -> None:
    world.write(100)
    world.answer(0)
    world.proposer.step(Tick(1))
    assert world.proposer.leader is not None
    assert world.proposer.leader.truncate_lsn <= world.proposer.commit_lsn


# ---- rule 7: below the window


def lagging(world: World, record_bytes: int = 4000) -> list[Action]:
    """Member 2 does not answer while the others go on, and falls out of the window."""
    actions = []
    for _ in range(30):
        actions += world.write(record_bytes)
        actions += world.answer(0, 1)
    assert world.proposer.leader is not None
    assert world.proposer.leader.window.begin_lsn > world.proposer.peers[2].next_lsn
    return actions


def sent_to_lsn(world: World, peer: int) -> int:
    return world.proposer.peers[peer].next_lsn


@pytest.mark.usefixtures("small_limits")
def test_rule_7_a_member_below_the_window_is_caught_up_from_a_donor(world: World) -> None:
    lagging(world)
    begin_lsn = sent_to_lsn(world, 2)
    (start,) = of_kind(world.answer(2, lsn=begin_lsn), StartCatchUp)
    assert start == StartCatchUp(2, donor=0, begin_lsn=begin_lsn)
    caught: list[Action] = []
    while not of_kind(caught, StopCatchUp):
        begin_lsn = sent_to_lsn(world, 2)
        end_lsn = min(begin_lsn + 10_000, world.position)
        end_lsn -= 0 if end_lsn == world.position else end_lsn % PAGE_SIZE
        caught += world.proposer.step(CatchUpWal(2, begin_lsn, world.log.read(begin_lsn, end_lsn)))
        caught += answer(world.proposer, 2, 0, durable_lsn=sent_to_lsn(world, 2))
    assert world.proposer.peers[2].state is PeerState.STREAMING
    while sent_to_lsn(world, 2) < world.position:
        caught += answer(world.proposer, 2, 0, durable_lsn=sent_to_lsn(world, 2))
    wal = b"".join(bytes(m.wal) for m in appends_to(caught, 2))
    assert wal == world.log.read(start.begin_lsn, world.position), "no gap, nothing twice"


def out_of_the_window_inside_a_record(world: World) -> int:
    """Member 2 was sent a part of a long record; the others went on. The boundary below it."""
    world.write(100)
    world.answer(0, 1, 2)
    boundary_lsn = world.position
    world.write_in_pages(9 * PAGE_SIZE)
    world.write(*[4000] * 10)
    assert world.proposer.leader is not None
    for peer in (0, 1):
        while sent_to_lsn(world, peer) < world.position:
            answer(world.proposer, peer, boundary_lsn, durable_lsn=sent_to_lsn(world, peer))
        answer(world.proposer, peer, boundary_lsn, durable_lsn=world.position)
    assert boundary_lsn < sent_to_lsn(world, 2) < world.proposer.leader.window.begin_lsn
    return boundary_lsn


@pytest.mark.usefixtures("small_limits")
def test_rule_7_a_member_that_falls_out_inside_a_record_starts_over(world: World) -> None:
    """Its donor's WAL would begin in the middle of a record, where no boundary can be found; the
    member would call the middle of a record flushed, and even committed."""
    boundary_lsn = out_of_the_window_inside_a_record(world)
    actions = answer(world.proposer, 2, boundary_lsn, durable_lsn=sent_to_lsn(world, 2))
    assert of_kind(actions, ClosePeer) == [ClosePeer(2, "fell below the window inside a record")]
    assert not of_kind(actions, StartCatchUp)
    world.answer(0, 1)
    again = world.rejoin(2, boundary_lsn)
    assert of_kind(again, StartCatchUp) == [StartCatchUp(2, donor=0, begin_lsn=boundary_lsn)]


@pytest.mark.usefixtures("small_limits")
def test_a_member_that_a_tick_closes_is_sent_no_heartbeat(world: World) -> None:
    out_of_the_window_inside_a_record(world)
    actions = world.proposer.step(Tick(5 * HEARTBEAT_MS))
    assert [close.peer for close in of_kind(actions, ClosePeer)] == [2]
    assert {action.peer for action in of_kind(actions, Send)} == {0, 1}


@pytest.mark.usefixtures("small_limits")
def test_a_donor_must_have_answered_under_our_node_id(world: World) -> None:
    """Before that its own diverged tail might still be there; only the election's donor is sure."""
    lagging(world)
    world.proposer.step(PeerLost(0, "gone"))
    world.proposer.step(PeerLost(1, "gone"))
    assert not of_kind(world.answer(2, lsn=sent_to_lsn(world, 2)), StartCatchUp)
    assert not of_kind(world.rejoin(1, world.position), StartCatchUp)
    assert not of_kind(world.proposer.step(Tick(1)), StartCatchUp)
    world.answer(1)
    (start,) = of_kind(world.proposer.step(Tick(2)), StartCatchUp)
    assert start.donor == 1


@pytest.mark.usefixtures("small_limits")
def test_a_lost_donor_is_replaced_at_the_next_tick(world: World) -> None:
    lagging(world)
    world.answer(2, lsn=sent_to_lsn(world, 2))
    assert world.proposer.step(CatchUpLost(2, "the donor left")) == []
    world.proposer.step(PeerLost(0, "gone"))
    (start,) = of_kind(world.proposer.step(Tick(1)), StartCatchUp)
    assert start.donor == 1


@pytest.mark.usefixtures("small_limits")
def test_a_donor_lost_inside_a_record_makes_the_member_start_over(world: World) -> None:
    lagging(world, record_bytes=20_000)
    begin_lsn = sent_to_lsn(world, 2)
    world.answer(2, lsn=begin_lsn)
    end_lsn = begin_lsn + PAGE_SIZE - begin_lsn % PAGE_SIZE
    world.proposer.step(CatchUpWal(2, begin_lsn, world.log.read(begin_lsn, end_lsn)))
    actions = world.proposer.step(CatchUpLost(2, "the donor left"))
    assert of_kind(actions, ClosePeer) == [
        ClosePeer(2, "lost its donor inside a record: the donor left")
    ]


@pytest.mark.usefixtures("small_limits")
def test_a_member_lost_while_it_catches_up_begins_again(world: World) -> None:
    lagging(world)
    begin_lsn = sent_to_lsn(world, 2)
    world.answer(2, lsn=begin_lsn)
    assert world.proposer.step(PeerLost(2, "gone")) == [StopCatchUp(2)]
    world.answer(0, 1)
    actions = world.rejoin(2, begin_lsn)
    assert of_kind(actions, StartCatchUp) == [StartCatchUp(2, donor=0, begin_lsn=begin_lsn)]


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("shift", [-8, 8])
def test_a_donor_that_sends_something_else_is_not_passed_on(world: World, shift: int) -> None:
    lagging(world)
    begin_lsn = sent_to_lsn(world, 2)
    world.answer(2, lsn=begin_lsn)
    actions = world.proposer.step(CatchUpWal(2, begin_lsn + shift, bytes(100)))
    assert of_kind(actions, StopCatchUp) == [StopCatchUp(2)]
    assert of_kind(actions, ClosePeer)[0].reason.startswith("donor sent 0/")
    assert not appends_to(actions, 2)


@pytest.mark.usefixtures("small_limits")
def test_a_donor_that_sends_no_wal_is_not_passed_on(world: World) -> None:
    lagging(world)
    begin_lsn = sent_to_lsn(world, 2)
    world.answer(2, lsn=begin_lsn)
    garbage = b"\xff" * (PAGE_SIZE - begin_lsn % PAGE_SIZE + PAGE_SIZE)
    actions = world.proposer.step(CatchUpWal(2, begin_lsn, garbage))
    assert "cannot be WAL" in of_kind(actions, ClosePeer)[0].reason
    assert not appends_to(actions, 2)


@pytest.mark.usefixtures("small_limits")
def test_catch_up_that_crossed_its_end_is_ignored(world: World) -> None:
    world.write(100)
    assert world.proposer.step(CatchUpWal(2, START_LSN, bytes(8))) == []
    assert world.proposer.step(CatchUpLost(2, "late")) == []


@pytest.mark.usefixtures("small_limits")
def test_the_window_keeps_what_no_quorum_has(world: World) -> None:
    """Nobody else has it: then the primary is read no further."""
    while world.proposer.wants_wal():
        world.write(4000)
    assert world.proposer.leader is not None
    assert world.proposer.leader.window.begin_lsn == START_LSN
    for peer in (0, 1):
        while sent_to_lsn(world, peer) < world.position:
            answer(world.proposer, peer, 0, durable_lsn=sent_to_lsn(world, peer))
    world.answer(0, 1)
    assert world.proposer.wants_wal()


@pytest.mark.usefixtures("small_limits")
def test_a_quorum_that_lacks_what_nobody_holds_asks_for_a_new_incarnation(world: World) -> None:
    """Only the primary has that WAL: one long record of which each held a part."""
    lagging(world)
    low_lsn = world.log.records[1].end_lsn
    for peer in (0, 1, 2):
        world.proposer.step(PeerLost(peer, "gone"))
        world.proposer.peers[peer].flush_lsn = 0
    for peer in (0, 1):
        world.rejoin(peer, low_lsn)
        answer(world.proposer, peer, low_lsn)
    stop = the_stop(world.proposer.step(Tick(1)))
    assert stop.outcome is Outcome.RESTART
    assert "no safekeeper has the WAL below the window" in stop.message


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


def test_without_a_primary_the_tail_is_completed_told_and_that_is_all() -> None:
    log = WalBuilder()
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
    stop = the_stop(answer(proposer, 1, log.lsn, commit_lsn=log.lsn))
    assert stop.outcome is Outcome.COMPLETED
    assert proposer.state is State.STOPPED


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
