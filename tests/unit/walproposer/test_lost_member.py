"""A member that lost a part of its log: streamed to like any other, without a vote, counted
again."""

from __future__ import annotations

from leader_world import World
from proposer_steps import (
    answer,
    campaigning,
    greet,
    history,
    of_kind,
    sent,
    the_stop,
    vote,
)
from wal_log import START_LSN, WalLog

from quorum_wal.consensus.messages import Append, Elected
from quorum_wal.walproposer.stream.events import (
    Action,
    CatchUpLost,
    Outcome,
    PeerLost,
    ReportFlushed,
    StartCatchUp,
    TailRead,
    Tick,
    UpstreamStarted,
    WalReceived,
)
from quorum_wal.walproposer.stream.leader import HEARTBEAT_MS
from quorum_wal.walproposer.stream.proposer import Proposer, State


def come_back(proposer: Proposer, peer: int, flush_lsn: int) -> list[Action]:
    """On a new connection, with a shorter log; it promises, and gives no vote."""
    proposer.step(PeerLost(peer, "the test says so"))
    assert proposer.node_id is not None
    greet(proposer, peer, proposer.node_id)
    leader = proposer.leader
    terms = leader.term.term_history.clipped(flush_lsn) if leader is not None else history()
    return vote(proposer, peer, flush_lsn, granted=False, term_history=terms)


def test_rule_5_it_does_not_elect() -> None:
    proposer = campaigning((0, 1, 2))
    vote(proposer, 0)
    vote(proposer, 1, granted=False)
    assert proposer.state is State.CAMPAIGNING
    vote(proposer, 2)
    assert proposer.state is not State.CAMPAIGNING


def test_rule_5_it_is_no_donor() -> None:
    """However long its log is."""
    proposer = campaigning((0, 1, 2))
    vote(proposer, 0, START_LSN + 800, granted=False)
    vote(proposer, 1)
    vote(proposer, 2)
    assert proposer.leader is not None
    assert proposer.leader.term.donor in (1, 2)
    assert proposer.leader.term.term_start_lsn == START_LSN


def test_rule_5_a_vote_that_it_gave_before_counts_no_more() -> None:
    proposer = campaigning((0, 1, 2))
    vote(proposer, 0)
    come_back(proposer, 0, START_LSN)
    vote(proposer, 1)
    assert proposer.state is State.CAMPAIGNING


def test_it_is_streamed_to_as_any_other(world: World) -> None:
    world.write(100)
    world.answer(0, 1, 2)
    actions = come_back(world.proposer, 2, START_LSN)
    ((_, elected),) = sent(actions, Elected)
    assert elected.start_streaming_at == START_LSN
    assert [peer for peer, _ in sent(actions, Append)] == [2]


def test_rule_5_a_loss_that_was_reported_counts_as_nothing(world: World) -> None:
    """Otherwise a commit could count on it again, after the member was informed that it is
    complete."""
    world.write(100)
    world.answer(0)
    assert world.proposer.commit_lsn == START_LSN
    lost_lsn = world.position
    come_back(world.proposer, 0, START_LSN)
    assert not of_kind(world.answer(1), ReportFlushed), "on one disk only"
    assert of_kind(answer(world.proposer, 0, lost_lsn), ReportFlushed), "it has it again"


def test_what_it_is_sent_names_every_commit_that_counted_on_it(world: World) -> None:
    world.write(100)
    world.answer(0, 1)
    commit_lsn = world.position
    assert world.proposer.commit_lsn == commit_lsn
    ((_, append),) = sent(come_back(world.proposer, 0, START_LSN), Append)
    assert append.commit_lsn == commit_lsn


def test_a_donor_that_lost_its_log_is_asked_for_nothing_more() -> None:
    """It was the donor of the election, and no other member has what the others lack. A new
    incarnation asks the primary again, and no useless stream is begun."""
    log = WalLog()
    log.append("R1", 1000)
    proposer = campaigning((0, 1, 2))
    vote(proposer, 0, log.lsn)
    vote(proposer, 1)
    assert proposer.leader is not None
    assert proposer.leader.term.donor == 0
    lead(proposer, log)
    vote(proposer, 2)
    actions = come_back(proposer, 0, START_LSN)
    assert proposer.peers[0].is_following
    for peer in (1, 2):
        assert proposer.peers[peer].donor == 0, "it was being read for both"
        actions += proposer.step(CatchUpLost(peer, "the donor went"))
        actions += answer(proposer, peer, START_LSN)
    actions += proposer.step(Tick(HEARTBEAT_MS))
    assert not of_kind(actions, StartCatchUp)
    stop = the_stop(actions)
    assert stop.outcome is Outcome.RESTART
    assert "no safekeeper has the WAL" in stop.message


def lead(proposer: Proposer, log: WalLog) -> None:
    proposer.step(UpstreamStarted(log.lsn))
    proposer.step(TailRead(bytes(log.wal)))
    proposer.step(WalReceived(START_LSN, bytes(log.wal)))
    assert proposer.state is State.LEADING
