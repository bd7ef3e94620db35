"""Counting while the members change, and the end of a joint membership."""

from __future__ import annotations

from dataclasses import replace

from change_steps import Change, ask, found, leave, present, sets, state
from proposer_steps import (
    MEMBERS,
    OURS,
    PRIMARY,
    answer,
    ballot,
    campaigning,
    candidacy,
    greet,
    leading,
    member,
    of_kind,
    sent,
    vote,
)
from wal_log import START_LSN, WalLog

from quorum_wal.consensus.membership import Stamp
from quorum_wal.consensus.messages import Append, Elected, VoteRequest
from quorum_wal.walproposer.stream.events import (
    ChangeCancelled,
    ChangeState,
    ForgetPeer,
    Leave,
    Left,
    OpenPeer,
    OutsiderNamed,
    ReportFlushed,
    UpstreamStarted,
)
from quorum_wal.walproposer.stream.membership_change import TELL_MS
from quorum_wal.walproposer.stream.outsiders import FORGET_MS, RETRY_MS
from quorum_wal.walproposer.stream.progress import PeerState
from quorum_wal.walproposer.stream.proposer import Proposer
from quorum_wal.walproposer.stream.steady_leader import SteadyLeader

# ---- M2: the elected stamps the membership


def test_m2_the_elected_stamps_the_membership_with_its_own_ballot() -> None:
    proposer = leading()
    assert present(proposer) == MEMBERS.stamped(Stamp(OURS, 1))


def test_m2_elected_carries_the_whole_membership() -> None:
    proposer = campaigning((0, 1), primary=None)
    vote(proposer, 0)
    for _, elected in sent(vote(proposer, 1), Elected):
        assert elected.membership == MEMBERS.stamped(Stamp(OURS, 1))


# ---- C1: the commit rule over each set


def test_c1_a_joint_commit_needs_a_quorum_of_each_set(change: Change) -> None:
    change.enter(4, 5, 6)
    change.write(100)
    assert not of_kind(change.answer(0, 1, 2), ReportFlushed)
    assert not of_kind(change.answer(3), ReportFlushed)
    assert of_kind(change.answer(4), ReportFlushed) == [ReportFlushed(change.position)]


def test_c1_from_the_moment_that_it_is_written(change: Change) -> None:
    """Answers with the previous generation count as positions, for both sets."""
    change.begin(4, 5, 6)
    change.write(100)
    change.answer(3, 4, 5, lsn=START_LSN)
    assert present(change.proposer).is_joint
    for peer in (0, 1, 2):
        assert not of_kind(answer(change.proposer, peer, change.position), ReportFlushed)


def test_an_append_names_the_generation_behind_configure(change: Change) -> None:
    change.enter(1, 2, 3, 4)
    appends = [message for _, message in sent(change.write(100), Append)]
    assert {message.generation for message in appends} == {2}
    beats = [message for _, message in sent(change.tick(1000), Append)]
    assert {message.generation for message in beats} == {2}


# ---- L1, L2: leaving forward


def test_l1_a_quorum_of_the_old_set_must_know(change: Change) -> None:
    """It must not leave when Configure was sent, but when it was answered."""
    change.enter(4, 5, 6)
    change.inform(3, 4, 5)
    change.inform(0)
    assert present(change.proposer).is_joint
    change.inform(1)
    assert sets(change.proposer) == (3, (4, 5, 6), ())


def test_l1_an_answer_of_the_generation_before_is_none(change: Change) -> None:
    change.enter(4, 5, 6)
    for peer in (0, 1, 2):
        answer(change.proposer, peer, change.position, generation=1)
    change.tick()
    assert present(change.proposer).is_joint


def test_l1_what_a_lost_member_has_on_disk_counts(change: Change) -> None:
    change.enter(4, 5, 6)
    change.inform(0)
    change.lose(0)
    change.inform(1)
    assert sets(change.proposer) == (3, (4, 5, 6), ())


def test_l2_the_new_set_must_have_what_was_reported(change: Change) -> None:
    """Trace 5: a record on 1 2, and 4 has joined, empty."""
    change.begin(1, 4)
    change.write(100)
    change.answer(0, 1)
    assert change.proposer.commit_lsn == change.position
    answer(change.proposer, 3, START_LSN)
    assert sets(change.proposer) == (2, (1, 2, 3), (1, 4))
    change.inform(0, 1, 2)
    assert present(change.proposer).is_joint
    change.answer(3)
    assert sets(change.proposer) == (3, (1, 4), ())


def test_l2_the_terms_start_is_data() -> None:
    """Trace 6: nothing is reported yet, but the log has a record of an older leader."""
    change = found()
    change.answer(0, 1)
    answer(change.proposer, 3, START_LSN)
    assert change.proposer.commit_lsn == 0
    assert present(change.proposer).is_joint
    change.answer(3)
    assert sets(change.proposer) == (5, (1, 4, 5), ())


def test_a_commit_that_waited_for_the_set_that_goes_is_reported(change: Change) -> None:
    """The old set has only the record before; the new one has all of it."""
    change.enter(1, 4, 5)
    change.write(100)
    change.answer(0, 3, 4)
    assert change.proposer.commit_lsn < change.position
    actions = change.inform(1)
    assert sets(change.proposer) == (3, (1, 4, 5), ())
    assert of_kind(actions, ReportFlushed) == [ReportFlushed(change.position)]


# ---- D1: complete when in force; then those outside are informed


def test_d1_complete_when_the_last_membership_is_in_force(change: Change) -> None:
    change.enter(1, 2, 4)
    assert not of_kind(change.inform(0, 1, 2), Leave)
    assert state(change.proposer) is ChangeState.LEAVING
    assert not change.proposer.is_in_force
    assert not of_kind(change.inform(0), Leave)
    actions = change.inform(3)
    assert change.proposer.is_in_force
    assert of_kind(actions, Leave) == [leave(2, change.proposer)]
    assert state(change.proposer) is ChangeState.TELLING
    assert of_kind(change.proposer.step(Left(2)), ForgetPeer) == [ForgetPeer(2)]
    assert state(change.proposer) is ChangeState.DONE


def test_d1_one_that_does_not_answer_is_not_waited_for_for_ever(change: Change) -> None:
    change.enter(1, 2, 4)
    change.inform(0, 1, 2, 3)
    change.inform(0, 1, 3)
    assert state(change.proposer) is ChangeState.TELLING
    change.pass_time(TELL_MS + 1000, 0, 1, 3)
    assert state(change.proposer) is ChangeState.DONE


def test_d1_one_that_reconnects_later_gets_the_order_then(change: Change) -> None:
    change.lose(2)
    change.enter(1, 2, 4)
    change.inform(0, 1, 3)
    change.inform(0, 1, 3)
    assert state(change.proposer) is ChangeState.DONE
    actions = greet(change.proposer, 2)
    assert of_kind(actions, Leave) == [leave(2, change.proposer)]
    assert not sent(actions, VoteRequest)


def test_d1_the_order_is_not_repeated_before_its_answer(change: Change) -> None:
    """It deletes its WAL, which may take long; each repeated order would be one more waiting
    thread."""
    change.lose(2)
    change.enter(1, 2, 4)
    change.inform(0, 1, 3)
    change.inform(0, 1, 3)
    assert of_kind(greet(change.proposer, 2), Leave)
    assert not of_kind(change.pass_time(RETRY_MS * 3, 0, 1, 3), Leave)
    assert not of_kind(change.proposer.step(Left(2, "connection lost")), Leave)
    actions = change.pass_time(RETRY_MS, 0, 1, 3)
    assert of_kind(actions, Leave) == [leave(2, change.proposer)]


def test_an_outsider_named_by_sk_gets_the_order(change: Change) -> None:
    """The leader knows its own orders on their way, and the safekeepers to be added; sk does
    not."""
    actions = change.proposer.step(OutsiderNamed("sk9", 5454))
    assert of_kind(actions, OpenPeer) == [OpenPeer(3, "sk9", 5454)]
    assert change.proposer.step(OutsiderNamed("sk9", 5454)) == []
    actions = greet(change.proposer, 3, safekeeper_id=9)
    assert of_kind(actions, Leave) == [Leave(3, 9, member(9).instance, present(change.proposer))]
    assert of_kind(change.proposer.step(Left(3)), ForgetPeer) == [ForgetPeer(3)]


def test_an_outsider_that_a_change_wants_does_not_get_the_order(change: Change) -> None:
    """`sk member remove 4` ends while another operator adds 4 again: D2 would not hold."""
    change.begin(1, 2, 3, 4)
    change.proposer.step(OutsiderNamed("sk4", 5454))
    change.answer(3)
    assert present(change.proposer).is_joint
    assert not of_kind(change.pass_time(RETRY_MS * 2, 0, 1, 2, 3), Leave)


def test_d1_one_that_has_promised_more_is_a_later_leaders_to_tell(change: Change) -> None:
    for number in (7, 8):
        change.proposer.peer_set.open(f"sk{number}", 5454)
    assert not of_kind(greet(change.proposer, 3, ballot(9), safekeeper_id=7), Leave)
    assert of_kind(greet(change.proposer, 4, safekeeper_id=8), Leave)


def test_one_that_is_outside_is_sent_nothing_more(change: Change) -> None:
    change.enter(1, 2, 4)
    change.inform(0, 1, 2, 3)
    assert change.proposer.peers[2].state is PeerState.OUTSIDE
    assert [peer for peer, _ in sent(change.write(100), Append)] == [0, 1, 3]
    assert answer(change.proposer, 2, change.position, generation=2) == []
    assert change.proposer.peers[2].flush_lsn == 0


def test_a4_the_positions_of_a_safekeeper_that_left_are_forgotten(change: Change) -> None:
    """Trace 11: under one leader 3 leaves, joins again at an earlier position, and counts again."""
    change.write(100)
    change.answer(0, 1, 2)
    change.enter(1, 2)
    change.inform(0, 1, 2)
    change.inform(0, 1)
    change.proposer.step(Left(2))
    assert state(change.proposer) is ChangeState.DONE
    assert change.proposer.peers[2].flush_lsn == 0
    actions = ask(change.proposer, 1, 2, 3)
    assert of_kind(actions, OpenPeer) == [OpenPeer(2, "sk3", 5454)]
    change.join(2)
    answer(change.proposer, 2, START_LSN)
    assert change.proposer.peers[2].flush_lsn == START_LSN


def test_an_address_that_an_incarnation_before_learnt_is_forgotten_too() -> None:
    """Unless it was given: a thread would try to connect to it forever."""
    learnt = (("gone", 5454), ("sk3", 5454))
    proposer = Proposer(replace(candidacy(2), learnt=learnt), PRIMARY)
    assert [place.address for place in proposer.peers] == [
        ("sk1", 5454), ("sk2", 5454), ("gone", 5454), ("sk3", 5454),
    ]  # fmt: skip
    for peer, number in ((0, 1), (1, 2), (3, 3)):
        greet(proposer, peer, safekeeper_id=number, membership=MEMBERS)
    for peer in (0, 1):
        vote(proposer, peer)
    log = WalLog()
    proposer.step(UpstreamStarted(log.lsn))
    change = Change.of(proposer, log)
    change.answer(0, 1)
    actions = change.pass_time(FORGET_MS + 1000, 0, 1)
    assert of_kind(actions, ForgetPeer) == [ForgetPeer(2)]


def test_an_unused_address_is_forgotten(change: Change) -> None:
    change.begin(1, 2, 3, 4)
    change.proposer.step(ChangeCancelled())
    change.lose(3)
    actions = change.pass_time(FORGET_MS - 1000, 0, 1, 2)
    assert not of_kind(actions, ForgetPeer)
    assert of_kind(change.pass_time(3000, 0, 1, 2), ForgetPeer) == [ForgetPeer(3)]


# ---- R1: truncate_lsn


def test_r1_it_waits_for_the_present_generation(change: Change) -> None:
    """Trace 14: 3 lags, the others continue without it, and no member has the new generation
    yet."""
    change.write(100)
    change.answer(0, 1)
    change.enter(1, 2)
    change.inform(0, 1)
    assert sets(change.proposer) == (3, (1, 2), ())
    change.tick()
    assert change.leader.truncate_lsn <= START_LSN
    change.inform(0, 1)
    change.tick()
    assert change.leader.truncate_lsn == change.position


def test_r1_both_sets_hold_it_back(change: Change) -> None:
    change.begin(1, 2, 4)
    change.answer(3)
    before_lsn = change.leader.truncate_lsn
    change.write(100)
    for peer in (0, 1, 2):
        answer(change.proposer, peer, change.position, generation=2)
    change.tick()
    assert change.leader.truncate_lsn <= max(before_lsn, START_LSN)


# ---- the steady path


def test_there_is_no_steady_path_while_the_members_change(change: Change) -> None:
    assert SteadyLeader.of(change.leader) is not None
    change.begin(1, 2, 4)
    assert SteadyLeader.of(change.leader) is None
    change.answer(3)
    assert SteadyLeader.of(change.leader) is None
    change.inform(0, 1, 2)
    assert SteadyLeader.of(change.leader) is None
    change.inform(0, 1, 3)
    change.proposer.step(Left(2))
    assert state(change.proposer) is ChangeState.DONE
    assert SteadyLeader.of(change.leader) is not None
