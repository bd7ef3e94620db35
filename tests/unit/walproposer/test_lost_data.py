"""A member that reports lost data does not count, whatever it had acknowledged."""

from __future__ import annotations

import pytest
from leader_world import World, grow
from proposer_steps import answer, campaigning, greet, leading, sent, vote
from wal_log import START_LSN, WalLog

from quorum_wal.consensus.messages import Append
from quorum_wal.walproposer.stream.events import (
    Action,
    CatchUpLost,
    CatchUpWal,
    ClosePeer,
    Outcome,
    PeerLost,
    ReportFlushed,
    StartCatchUp,
    Stop,
    TailRead,
    Tick,
    UpstreamStarted,
    WalReceived,
)
from quorum_wal.walproposer.stream.proposer import Proposer

LOST = "no such timeline"


@pytest.fixture
def world() -> World:
    log = WalLog()
    return World(leading(log, peers=(0, 1, 2)), log)


def ours(proposer: Proposer) -> None:
    """A new connection of peer 0, as far as its vote is asked for."""
    assert proposer.node_id is not None
    greet(proposer, 0, proposer.node_id)


def reported(actions: list[Action]) -> list[int]:
    return [action.commit_lsn for action in actions if isinstance(action, ReportFlushed)]


def test_its_old_position_is_no_part_of_a_quorum(world: World) -> None:
    world.answer(0, 1, 2)
    before_lsn = world.position
    world.write(100)
    world.answer(0)  # ahead of the others
    world.proposer.step(PeerLost(0, LOST, lost_data=True))
    assert world.proposer.commit_lsn == before_lsn  # it never goes back
    assert reported(world.answer(1)) == []
    assert reported(world.answer(2)) == [world.position]


def test_a_connection_that_is_only_lost_changes_nothing(world: World) -> None:
    world.write(100)
    world.answer(0)
    world.proposer.step(PeerLost(0, "connection lost"))
    assert reported(world.answer(1)) == [world.position]


def test_nor_of_what_all_have_flushed(world: World) -> None:
    """The others keep what it might need if it returns."""
    world.answer(0, 1, 2)
    leader = world.proposer.leader
    assert leader is not None
    leader.tick(1000)
    truncate_lsn = leader.truncate_lsn
    assert truncate_lsn == world.position
    world.proposer.step(PeerLost(0, LOST, lost_data=True))
    world.write(100)
    world.answer(1, 2)
    leader.tick(2000)
    assert leader.truncate_lsn == truncate_lsn


def test_a_vote_that_shows_less_takes_the_old_position_away(world: World) -> None:
    world.answer(0, 1, 2)
    before_lsn = world.position
    world.write(100)
    world.answer(0)
    world.proposer.step(PeerLost(0, "restarted"))
    for _ in range(2):  # it is asked again and again
        ours(world.proposer)
        (close,) = vote(world.proposer, 0, before_lsn)
        assert isinstance(close, ClosePeer)
        assert "safekeeper 1 lost data: its log ends at" in close.reason
        assert world.proposer.peers[0].has_lost_data
    assert reported(world.answer(1)) == []
    assert reported(world.answer(2)) == [world.position]


def test_data_that_reappears_counts_again(world: World) -> None:
    """Its disk was mounted elsewhere for a while."""
    world.write(100)
    world.answer(0)
    world.proposer.step(PeerLost(0, LOST, lost_data=True))
    world.rejoin(0, world.position)
    assert not world.proposer.peers[0].has_lost_data
    assert reported(answer(world.proposer, 1, world.position)) == []
    assert reported(world.answer(0)) == [world.position]
    assert [peer for peer, _ in sent(world.write(100), Append)] == [0, 1, 2]


def test_a_donor_that_lost_its_data_while_the_primary_is_checked() -> None:
    proposer = campaigning((0, 1))
    vote(proposer, 0, START_LSN + 64)
    vote(proposer, 1, START_LSN)
    (stop,) = proposer.step(PeerLost(0, LOST, lost_data=True))
    assert isinstance(stop, Stop)
    assert stop.outcome is Outcome.RESTART


def test_a_term_whose_donor_lost_its_data_before_another_had_it_restarts() -> None:
    """The two that are left have caught up with each other, and wait: no server has the rest."""
    log = WalLog()
    ends = grow(log, 3)
    proposer = campaigning((0, 1, 2))
    for peer in (0, 1, 2):
        vote(proposer, peer, ends[2] if peer == 0 else ends[peer - 1])
    proposer.step(UpstreamStarted(log.lsn))
    proposer.step(TailRead(bytes(log.wal)))
    proposer.step(WalReceived(START_LSN, bytes(log.wal)))
    answer(proposer, 1, ends[0])
    answer(proposer, 2, ends[1])
    proposer.step(PeerLost(0, LOST, lost_data=True))
    proposer.step(CatchUpLost(1, "the donor is away"))
    proposer.step(CatchUpLost(2, "the donor is away"))
    assert StartCatchUp(1, donor=2, begin_lsn=ends[0]) in proposer.step(Tick(2000))
    wal = log.read(ends[0], ends[1])
    proposer.step(CatchUpWal(1, ends[0], wal))
    answer(proposer, 1, ends[1])
    (stop,) = proposer.step(Tick(2100))
    assert isinstance(stop, Stop)
    assert stop.outcome is Outcome.RESTART
    assert "no safekeeper has the WAL" in stop.message
