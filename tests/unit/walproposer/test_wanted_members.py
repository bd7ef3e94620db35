"""Requests for other members and other addresses, with a primary and without."""

from __future__ import annotations

import pytest
from change_steps import Change, ask, found, present, sets, state, view
from proposer_steps import (
    OURS,
    answer,
    campaigning,
    greet,
    member,
    members,
    of_kind,
    the_stop,
    vote,
)
from wal_log import START_LSN

from quorum_wal.consensus.membership import Member, Membership, Stamp
from quorum_wal.walproposer.stream.events import (
    ChangeState,
    OpenPeer,
    Outcome,
    Stop,
    WalReceived,
)

# ---- requests


def test_a_request_for_another_generation_is_refused(change: Change) -> None:
    ask(change.proposer, 1, 2, 4, generation=7)
    assert state(change.proposer) is ChangeState.REFUSED
    assert "generation 7" in view(change.proposer).error


def test_a_request_for_what_is_there_is_done_whatever_its_generation(change: Change) -> None:
    ask(change.proposer, 1, 2, 3, generation=7)
    assert state(change.proposer) is ChangeState.DONE
    assert sets(change.proposer) == (1, (1, 2, 3), ())


def test_one_request_at_a_time(change: Change) -> None:
    change.begin(1, 2, 4)
    assert ask(change.proposer, 1, 2, 5) == []
    assert view(change.proposer).wanted == (1, 2, 4)


def test_a_request_before_the_election_waits_for_it() -> None:
    proposer = campaigning()
    ask(proposer, 1, 2)
    assert (state(proposer), view(proposer).waits_for) == (ChangeState.JOINING, "the election")
    for peer in (0, 1):
        vote(proposer, peer)
    proposer.step(WalReceived(START_LSN, b""))
    for peer in (0, 1):
        answer(proposer, peer, START_LSN)
    assert sets(proposer) == (2, (1, 2, 3), (1, 2))


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        ((), "expected 1 to 9 members"),
        ((member(1), member(1)), "must be distinct"),
        ((member(1), Member(2, b"otherdsk", "sk2", 5454)), "another data directory"),
        ((member(1), Member(4, host="sk4", port=5454)), "must be known"),
        ((member(1), Member(4, b"instance")), "must be known"),
    ],
    ids=["none", "twice", "another disk", "no instance", "no address"],
)
def test_a_request_that_cannot_be_is_refused(
    change: Change, wanted: tuple[Member, ...], problem: str
) -> None:
    ask(change.proposer, *wanted)
    assert state(change.proposer) is ChangeState.REFUSED
    assert problem in view(change.proposer).error
    assert sets(change.proposer) == (1, (1, 2, 3), ())


def test_after_one_that_was_refused_another_may_come(change: Change) -> None:
    ask(change.proposer, 1, 2, 4, generation=7)
    change.enter(1, 2)
    assert sets(change.proposer) == (2, (1, 2, 3), (1, 2))


# ---- rule 10: addresses


def test_rule_10_equal_sets_with_other_addresses(change: Change) -> None:
    ask(change.proposer, 1, 2, member(3, "moved"))
    assert sets(change.proposer) == (2, (1, 2, 3), ())
    assert present(change.proposer).member(3) == member(3, "moved")
    assert state(change.proposer) is ChangeState.LEAVING
    change.inform(0, 1)
    assert state(change.proposer) is ChangeState.DONE


def test_rule_10_a_moved_member_is_connected_to_at_its_new_address(change: Change) -> None:
    change.write(100)
    change.answer(0, 1, 2)
    ask(change.proposer, 1, 2, member(3, "moved"))
    assert not of_kind(change.tick(), OpenPeer), "he still answers where he was"
    change.lose(2)
    assert of_kind(change.tick(), OpenPeer) == [OpenPeer(3, "moved", 5454)]
    greet(change.proposer, 3, OURS, safekeeper_id=3)
    assert change.proposer.peers[3].flush_lsn == change.position
    assert not change.proposer.peers[2].has_seat


def test_rule_10_the_first_leader_fills_in_what_is_not_known() -> None:
    nothing_known = Membership(Stamp.FIRST, (1, 2, 3))
    change = Change((0, 1), nothing_known)
    change.tick()
    assert present(change.proposer).roster == (), "3 has not answered"
    change.follow(2, START_LSN)
    change.answer(2)
    change.tick()
    assert present(change.proposer) == members((1, 2, 3), generation=2, author=OURS)
    change.tick()
    assert present(change.proposer).generation == 2, "once"


# ---- without a primary


def test_without_a_primary_a_change_is_driven_to_its_end() -> None:
    proposer = campaigning((0, 1), primary=None)
    ask(proposer, 1, 2, generation=1)
    for peer in (0, 1):
        vote(proposer, peer)
    for peer in (0, 1):
        answer(proposer, peer, START_LSN)
    assert sets(proposer) == (2, (1, 2, 3), (1, 2))
    for peer in (0, 1):
        assert not of_kind(answer(proposer, peer, START_LSN), Stop)
    assert sets(proposer) == (3, (1, 2), ())
    answer(proposer, 0, START_LSN)
    stop = the_stop(answer(proposer, 1, START_LSN))
    assert stop.outcome is Outcome.COMPLETED
    assert state(proposer) is ChangeState.DONE


def test_without_a_primary_a_joint_membership_is_left_first() -> None:
    change = found()
    for _ in range(3):
        change.tick(1000)
        for peer in (0, 1):
            answer(change.proposer, peer, change.position, commit_lsn=change.position)
        for peer in (3, 4):
            answer(change.proposer, peer, START_LSN, commit_lsn=START_LSN)
        if not present(change.proposer).is_joint:
            break
    assert change.proposer.change is not None
    assert sets(change.proposer)[0] == 5
