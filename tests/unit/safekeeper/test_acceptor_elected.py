"""Elected: the safekeeper's rule 3. Promise, truncate, adopt, in this order; or a refusal."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from acceptor_steps import (
    B1,
    B2,
    MEMBERS,
    A,
    C,
    append,
    batch,
    elected,
    history,
    kinds,
    new_acceptor,
    stamped,
    streaming_acceptor,
    vote_request,
)
from new_timeline import INSTANCE, new_control_state
from wal_log import START_LSN, WalLog

from quorum_wal.consensus.ids import NodeId
from quorum_wal.consensus.messages import AppendResponse
from quorum_wal.consensus.term_history import TermHistory, TermStart
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.safekeeper.acceptor import Acceptor
from quorum_wal.safekeeper.events import (
    Action,
    BatchEnded,
    CloseConnection,
    FlushWal,
    PersistControl,
    Refuse,
    Reply,
    TruncateWal,
    WriteWal,
)
from tests.simulation.disk import Disk


def position(offset: int) -> int:
    return START_LSN + offset


#: A log of 500 bytes: 200 of A, 300 of B1.
TERMS = history((A, position(0)), (B1, position(200)))


def diverged_acceptor(**control: Any) -> Acceptor:
    return new_acceptor(position(500), **({"term_history": TERMS, "promised": B1} | control))


def persisted(actions: list[Action]) -> list[tuple[NodeId, TermHistory]]:
    return [
        (action.state.promised, action.state.term_history)
        for action in actions
        if isinstance(action, PersistControl)
    ]


def the_refusal(actions: list[Action]) -> str:
    (refusal,) = actions
    assert isinstance(refusal, Refuse)
    return refusal.message


# ---- the order


def test_rule_3_promise_then_truncate_then_adopt() -> None:
    """A history is read clipped to the log, so the log must be cut before the history is new."""
    acceptor = diverged_acceptor()
    terms = history((A, position(0)), (C, position(200)))
    actions = acceptor.step(elected(C, position(200), terms))
    assert kinds(actions) == ["PersistControl", "TruncateWal", "PersistControl"]
    assert persisted(actions) == [(C, TERMS), (C, terms)]
    assert actions[1] == TruncateWal(position(200))
    assert acceptor.written_lsn == acceptor.durable_lsn == acceptor.flush_lsn == position(200)


def test_rule_3_the_whole_history_is_adopted_though_the_log_is_behind() -> None:
    acceptor = diverged_acceptor()
    terms = history((A, position(0)), (B1, position(200)), (B2, position(900)), (C, position(950)))
    actions = acceptor.step(elected(C, position(500), terms))
    assert kinds(actions) == ["PersistControl", "PersistControl"], "nothing to truncate"
    assert acceptor.control.term_history == terms


def test_rule_3_an_idle_election_is_adopted_without_a_record() -> None:
    """Otherwise an idle cluster could never finish one: the term start makes it the last ballot."""
    acceptor = new_acceptor()
    acceptor.step(vote_request(A))
    terms = history((A, START_LSN))
    actions = batch(acceptor, elected(A, START_LSN, terms))
    assert kinds(actions) == ["PersistControl", "Reply"]
    reply = actions[-1]
    assert isinstance(reply, Reply)
    assert isinstance(reply.message, AppendResponse)
    assert reply.message.flush_lsn == START_LSN
    assert acceptor.control.term_history.last_log_node_id(START_LSN) == A


def test_rule_3_a_greater_node_id_raises_the_promise_without_a_vote() -> None:
    acceptor = new_acceptor(promised=A)
    acceptor.step(elected(C, START_LSN, history((C, START_LSN))))
    assert acceptor.control.promised == C


@pytest.mark.parametrize("node_id", [A, B1])
def test_rule_3_a_lesser_node_id_is_ignored(node_id: NodeId) -> None:
    """The answer to its first Append will carry the promise. Equal terms are not equal ids."""
    acceptor = new_acceptor(promised=B2)
    before = acceptor.control
    assert acceptor.step(elected(node_id, START_LSN, history((node_id, START_LSN)))) == []
    assert acceptor.control is before
    assert acceptor.streaming is None


def test_elected_again_on_a_new_connection_persists_nothing() -> None:
    acceptor = streaming_acceptor(A, connection=1)
    batch(acceptor, append(A, START_LSN, 100))
    terms = history((A, START_LSN))
    actions = acceptor.step(elected(A, position(100), terms, connection=2))
    assert kinds(actions) == ["CloseConnection"]
    assert isinstance(actions[0], CloseConnection)
    assert actions[0].connection == 1
    assert acceptor.streaming == 2


def test_unflushed_wal_is_cut_with_the_tail() -> None:
    """Without a vote in between there may be some; the point is at most the flushed position."""
    acceptor = streaming_acceptor(A)
    batch(acceptor, append(A, position(0), 100))
    acceptor.step(append(A, position(100), 100))
    terms = history((A, START_LSN), (C, position(100)))
    actions = acceptor.step(elected(C, position(100), terms, connection=2))
    assert TruncateWal(position(100)) in actions
    assert acceptor.written_lsn == position(100)


def test_a_half_record_is_cut_though_the_logs_agree() -> None:
    """The new leader streams from a record boundary, so the file must end on one."""
    acceptor = streaming_acceptor(A)
    batch(acceptor, append(A, position(0), 100, record_end_lsn=position(64)))
    terms = history((A, START_LSN))
    assert TruncateWal(position(64)) in acceptor.step(elected(A, position(64), terms))


@pytest.mark.parametrize("done", [0, 1, 2, 3])
def test_a_crash_between_the_steps_is_safe_and_the_steps_can_be_repeated(done: int) -> None:
    """`done` actions reached the disk; then the power failed."""
    log = WalLog()
    for number in range(5):
        log.append(f"R{number}")
    ends = log.ends
    terms = history((A, START_LSN), (B1, ends[1]))
    control = replace(new_control_state(MEMBERS), term_history=terms, promised=B1)
    disk = Disk(control, Random(done))
    disk.execute(WriteWal(START_LSN, bytes(log.wal)))
    disk.execute(FlushWal())
    acceptor = restarted(disk)
    newer = history((A, START_LSN), (C, ends[1]))
    actions = acceptor.step(elected(C, ends[1], newer))
    assert len(actions) == 3
    for action in actions[:done]:
        disk.execute(action)
    disk.lose_power()
    again = restarted(disk)
    # The state is true of the log at every moment ...
    last = again.control.term_history.last_log_node_id(again.flush_lsn)
    assert (again.flush_lsn, last) == [
        (ends[4], B1),
        (ends[4], B1),
        (ends[1], B1),
        (ends[1], C),
    ][done]
    # ... and the same Elected, computed from it, leads to the same end state.
    for event in (vote_request(C), elected(C, ends[1], newer)):
        for action in again.step(event):
            disk.execute(action)
    assert disk.written_lsn == ends[1]
    assert disk.control.term_history == newer


def restarted(disk: Disk) -> Acceptor:
    flush_lsn = disk.recover()
    return Acceptor(1, INSTANCE, disk.control, flush_lsn)


# ---- refusals: nothing is changed


@pytest.mark.parametrize("start", [0, 199, 201, 500])
def test_rule_3_another_common_point_is_refused(start: int) -> None:
    acceptor = diverged_acceptor()
    terms = history((A, position(0)), (C, position(200)))
    problem = the_refusal(acceptor.step(elected(C, position(start), terms)))
    assert problem == (
        f"proposer {C} wants to stream from 0/{position(start):X}, "
        f"but the logs diverge at 0/{position(200):X}"
    )
    assert acceptor.control.promised == B1
    assert acceptor.written_lsn == position(500)
    assert acceptor.streaming is None


def test_rule_3_committed_wal_is_never_truncated() -> None:
    acceptor = diverged_acceptor(commit_lsn=position(201))
    terms = history((A, position(0)), (C, position(200)))
    problem = the_refusal(acceptor.step(elected(C, position(200), terms)))
    assert problem == (
        f"proposer {C} would truncate to 0/{position(200):X}, "
        f"below the committed 0/{position(201):X}"
    )
    assert acceptor.written_lsn == position(500)


def test_rule_3_the_commit_in_memory_counts_not_the_hint_on_disk() -> None:
    acceptor = streaming_acceptor(A)
    batch(acceptor, append(A, START_LSN, 100, commit_lsn=position(100)))
    assert acceptor.control.commit_lsn == START_LSN
    terms = history((C, START_LSN))
    assert "below the committed" in the_refusal(acceptor.step(elected(C, START_LSN, terms)))


STRANGER = TermHistory((TermStart(A, START_LSN), TermStart(C, position(500))))


@pytest.mark.parametrize(
    ("terms", "fields", "problem"),
    [
        (history((A, position(100)), (C, position(500))), {}, "one ballot has two starts"),
        (STRANGER, {}, "nothing in common"),
        (history((A, position(0)), (B2, position(200))), {}, "does not end with it"),
        (
            history((A, position(0)), (B1, position(200)), (C, position(500))),
            {"timeline_start_lsn": position(8)},
            "timeline starts at",
        ),
        (
            history((A, position(0)), (B1, position(200)), (C, position(500))),
            {"membership": stamped(B2)},
            f"sends a membership that {B2} wrote",
        ),
    ],
    ids=[
        "two starts",
        "nothing in common",
        "not its own history",
        "timeline start",
        "another author",
    ],
)
def test_a_broken_elected_is_refused(
    terms: TermHistory, fields: dict[str, Any], problem: str
) -> None:
    acceptor = diverged_acceptor()
    before = acceptor.control
    refusal = the_refusal(acceptor.step(elected(C, position(500), terms, **fields)))
    assert problem in refusal
    assert acceptor.control is before


# ---- Postgres timelines


def tli_history(tli: int, *switches: tuple[int, int]) -> TimelineHistory:
    lines = [f"{old}\t0/{lsn:X}\treason\n" for old, lsn in switches]
    return TimelineHistory.parse(tli, "\n".join(lines))


def test_a_promoted_primary_is_followed_from_its_switch_on() -> None:
    acceptor = diverged_acceptor()
    promoted = tli_history(2, (1, position(500)))
    terms = TERMS.extended(C, position(500))
    acceptor.step(elected(C, position(500), terms, tli_history=promoted))
    assert acceptor.control.tli_history == promoted


@pytest.mark.parametrize(
    ("ours", "theirs", "at", "tlis"),
    [
        (tli_history(1), tli_history(2, (1, position(499))), 499, (1, 2)),
        (tli_history(2, (1, position(100))), tli_history(1), 100, (2, 1)),
        (tli_history(3, (1, position(100))), tli_history(2, (1, position(100))), 100, (3, 2)),
    ],
)
def test_a_fork_below_the_common_point_is_refused(
    ours: TimelineHistory, theirs: TimelineHistory, at: int, tlis: tuple[int, int]
) -> None:
    acceptor = diverged_acceptor(tli_history=ours)
    terms = TERMS.extended(C, position(500))
    problem = the_refusal(acceptor.step(elected(C, position(500), terms, tli_history=theirs)))
    assert problem == (
        f"Postgres timelines differ at 0/{position(at):X}: "
        f"{tlis[0]} here, {tlis[1]} at the proposer"
    )


def test_a_fork_above_the_common_point_goes_with_the_truncated_tail() -> None:
    acceptor = diverged_acceptor(tli_history=tli_history(2, (1, position(300))))
    terms = history((A, position(0)), (C, position(200)))
    other = tli_history(3, (1, position(250)))
    acceptor.step(elected(C, position(200), terms, tli_history=other))
    assert acceptor.control.tli_history == other


@pytest.mark.parametrize(
    ("terms", "timelines"),
    [
        (history((A, position(0)), (C, position(500))), tli_history(2, (1, position(600)))),
        (history((A, position(0)), (C, position(500))), tli_history(1)),
        (history((A, position(0)), (B2, position(500)), (C, position(500))), None),
        (history((A, position(0)), (C, position(600))), None),
    ],
    ids=["another switch above the end", "no switch", "another ballot", "another start"],
)
def test_a_ballot_has_one_history(terms: TermHistory, timelines: TimelineHistory | None) -> None:
    """A second Elected of a ballot may come on a new connection. It must have the same histories,
    also above the log's end."""
    first = tli_history(2, (1, position(700)))
    acceptor = diverged_acceptor(term_history=history((A, position(0))))
    once = history((A, position(0)), (C, position(500)))
    acceptor.step(elected(C, position(500), once, tli_history=first))
    before = acceptor.control
    again = elected(C, position(500), terms, connection=2, tli_history=timelines or first)
    problem = the_refusal(acceptor.step(again))
    assert problem.startswith(f"proposer {C} was elected with term history {once} and Postgres")
    assert acceptor.control == before
    assert acceptor.streaming == 1
    assert acceptor.step(elected(C, position(500), once, connection=2, tli_history=first)) == [
        CloseConnection(1, "replaced by a newer connection")
    ]


def test_streaming_goes_on_from_the_point() -> None:
    acceptor = diverged_acceptor()
    terms = history((A, position(0)), (C, position(200)))
    acceptor.step(elected(C, position(200), terms))
    assert kinds(acceptor.step(append(C, position(200), 8))) == ["WriteWal"]
    assert kinds(acceptor.step(BatchEnded(1))) == ["FlushWal", "Reply"]
