"""Rule 7: a member below the window is caught up from a donor; memory stays bounded."""

from __future__ import annotations

import pytest
from leader_world import World, appends_to
from proposer_steps import (
    answer,
    of_kind,
    the_stop,
)
from wal_log import PAGE_SIZE, START_LSN

from quorum_wal.walproposer.stream.events import (
    Action,
    CatchUpLost,
    CatchUpWal,
    ClosePeer,
    Outcome,
    PeerLost,
    Send,
    StartCatchUp,
    Stop,
    StopCatchUp,
    Tick,
)
from quorum_wal.walproposer.stream.leader import DONOR_RETRY_MS, HEARTBEAT_MS, REMOVED_RETRY_MS
from quorum_wal.walproposer.stream.progress import PeerState


def lagging(world: World, record_bytes: int = 4000) -> list[Action]:
    """Member 2 does not answer while the others continue, and falls out of the window."""
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
    """Member 2 was sent a part of a long record; the others continued. The boundary below it."""
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
    """Its donor's WAL would begin inside a record, where no boundary can be found. The member would
    report a position inside a record as flushed, and even as committed."""
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
    """Before that it might still have its own diverged tail; only the election's donor is
    certain."""
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
def test_a_donor_that_failed_is_asked_again_after_a_while(world: World) -> None:
    lagging(world)
    world.answer(2, lsn=sent_to_lsn(world, 2))
    asked = []
    for now_ms in (0, 100, 200, DONOR_RETRY_MS + 100):
        world.proposer.step(CatchUpLost(2, "too many connections"))
        asked += [s.donor for s in of_kind(world.proposer.step(Tick(now_ms)), StartCatchUp)]
    assert asked == [1, 0]


@pytest.mark.usefixtures("small_limits")
def test_a_member_that_no_donor_has_the_wal_for_is_left_behind(world: World) -> None:
    """Each donor is asked once, then rarely. Commits continue, and an archive ends this state."""
    lagging(world)
    begin_lsn = sent_to_lsn(world, 2)
    leader, member = world.proposer.leader, world.proposer.peers[2]
    assert leader is not None
    (start,) = of_kind(world.answer(2, lsn=begin_lsn), StartCatchUp)
    asked, now_ms = [start.donor], 1
    while now_ms < REMOVED_RETRY_MS:
        world.proposer.step(CatchUpLost(2, "it was removed", is_removed=True))
        actions = world.proposer.step(Tick(now_ms))
        asked += [s.donor for s in of_kind(actions, StartCatchUp)]
        assert not of_kind(actions, Stop)
        world.answer(0, 1)
        world.answer(2, lsn=begin_lsn)
        now_ms += 1000
    assert asked == [0, 1]
    assert member.state is PeerState.LEFT_BEHIND
    assert "no safekeeper has WAL from" in member.error
    assert not member.can_confirm
    assert leader.quorum_is_connected
    world.write(100)
    world.answer(0, 1)
    assert leader.commit_lsn == world.position

    (start,) = of_kind(world.proposer.step(Tick(now_ms + 2000)), StartCatchUp)
    assert member.state is PeerState.LEFT_BEHIND
    end_lsn = begin_lsn + PAGE_SIZE - begin_lsn % PAGE_SIZE
    world.proposer.step(CatchUpWal(2, begin_lsn, world.log.read(begin_lsn, end_lsn)))
    assert member.state is PeerState.CATCHING_UP
    assert member.error == ""


@pytest.mark.usefixtures("small_limits")
def test_a_quorum_with_a_member_left_behind_is_none(world: World) -> None:
    lagging(world)
    world.answer(2, lsn=sent_to_lsn(world, 2))
    world.proposer.step(PeerLost(1, "gone"))
    assert world.proposer.leader is not None
    assert world.proposer.leader.quorum_is_connected
    world.proposer.step(CatchUpLost(2, "it was removed", is_removed=True))
    assert not world.proposer.leader.quorum_is_connected


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
    assert "invalid WAL" in of_kind(actions, ClosePeer)[0].reason
    assert not appends_to(actions, 2)


@pytest.mark.usefixtures("small_limits")
def test_catch_up_that_crossed_its_end_is_ignored(world: World) -> None:
    world.write(100)
    assert world.proposer.step(CatchUpWal(2, START_LSN, bytes(8))) == []
    assert world.proposer.step(CatchUpLost(2, "late")) == []


@pytest.mark.usefixtures("small_limits")
def test_the_window_keeps_what_no_quorum_has(world: World) -> None:
    """No other server has it, so the primary is not read further."""
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
def test_a_quorum_that_lacks_wal_of_no_member_needs_a_new_incarnation(world: World) -> None:
    """Only the primary has that WAL: one long record of which each had a part."""
    lagging(world)
    low_lsn = world.log.ends[1]
    for peer in (0, 1, 2):
        world.proposer.step(PeerLost(peer, "gone"))
        world.proposer.peers[peer].flush_lsn = 0
    for peer in (0, 1):
        world.rejoin(peer, low_lsn)
        answer(world.proposer, peer, low_lsn)
    stop = the_stop(world.proposer.step(Tick(1)))
    assert stop.outcome is Outcome.RESTART
    assert "no safekeeper has the WAL below the window" in stop.message
