"""The core of the limbo: its verdicts and their times."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import pytest
from limbo_steps import (
    BEGIN_MS,
    NODE,
    OLDER,
    SETTINGS,
    START_US,
    Coordinator,
    answers,
    finishes,
    gid_of,
    led,
    row,
)

from quorum_wal.qsync.gid import Policy
from quorum_wal.walproposer.qsync.clients import REMEMBER_MS
from quorum_wal.walproposer.qsync.limbo import EntryState
from quorum_wal.walproposer.qsync.limbo_events import (
    NEVER_LSN,
    Alarm,
    Answer,
    BarrierAsked,
    CommitAdvanced,
    Fenced,
    LimboRead,
    Order,
    QuorumChanged,
    Read,
    RefuseWait,
    RoundAnswered,
    Verdict,
    WaitCancelled,
    WaiterGone,
)

CONFIRMED, PENDING = Verdict.CONFIRMED, Verdict.PENDING
FIFO = replace(SETTINGS, order=Order.FIFO)


# ---- verdicts


def test_confirmed_when_the_quorum_has_the_position() -> None:
    coordinator = Coordinator.deciding()
    assert coordinator.wait(1200) == []
    assert coordinator.commit(1199) == []
    assert coordinator.commit(1200) == [Answer(1, CONFIRMED, 1200, NODE.term)]
    assert coordinator.commit(1300) == []


def test_confirmed_at_once_what_the_quorum_has() -> None:
    assert answers(Coordinator.deciding().wait(1000)) == {1: CONFIRMED}


def test_the_lowest_position_is_answered_first() -> None:
    coordinator = Coordinator.deciding()
    for lsn in (1300, 1100, 1200):
        coordinator.wait(lsn)
    assert coordinator.limbo.wake_lsn == 1100
    assert list(answers(coordinator.commit(1200))) == [2, 3]
    assert coordinator.limbo.wake_lsn == 1300


def test_nothing_waits_for_a_commit_lsn() -> None:
    coordinator = Coordinator.deciding()
    assert coordinator.limbo.wake_lsn == NEVER_LSN
    coordinator.wait(1100)
    coordinator.step(WaiterGone(1))
    assert coordinator.limbo.wake_lsn == NEVER_LSN


def test_pending_at_the_deadline() -> None:
    coordinator = Coordinator.deciding()
    coordinator.wait(1200, until_ms=50)
    assert answers(coordinator.at(49)) == {}
    assert coordinator.at(50) == [Answer(1, PENDING, 1000, NODE.term)]
    assert answers(coordinator.commit(1200)) == {}


def test_a_timeout_of_zero_asks_once() -> None:
    coordinator = Coordinator.deciding()
    assert answers(coordinator.wait(1200, until_ms=0)) == {1: PENDING}
    assert answers(coordinator.wait(900, until_ms=0)) == {2: CONFIRMED}


def test_a_deadline_that_comes_with_the_quorum_is_confirmed() -> None:
    coordinator = Coordinator.deciding()
    coordinator.wait(1200, until_ms=50)
    coordinator.commit(1200)
    assert answers(coordinator.at(50)) == {}


def test_a_cancelled_wait_is_not_answered_and_its_client_stays() -> None:
    coordinator = Coordinator.deciding()
    gid = gid_of(deadline_ms=0)
    coordinator.prepared(gid, 1200)
    coordinator.wait(1200, gid=gid)
    coordinator.step(WaitCancelled(1))
    assert coordinator.commit(1200) == []
    assert coordinator.limbo.rows()[0].state is EntryState.CLIENT


def test_a_second_question_of_a_connection_replaces_the_first() -> None:
    coordinator = Coordinator.deciding()
    coordinator.wait(1200, waiter=9)
    coordinator.wait(1300, waiter=9)
    assert answers(coordinator.commit(1250)) == {}
    assert answers(coordinator.commit(1300)) == {9: CONFIRMED}


def test_a_position_below_the_begin_of_its_prepare_is_an_error() -> None:
    (refusal,) = Coordinator.deciding().wait(1100, gid=gid_of(begin_lsn=1100))
    assert isinstance(refusal, RefuseWait)
    assert refusal.sqlstate == "22023"
    assert refusal.text == "0/44C is not the end of a PREPARE that begins at 0/44C or above"


def test_the_end_from_the_stream_takes_precedence_over_the_clients() -> None:
    coordinator = Coordinator.deciding()
    gid = gid_of(begin_lsn=1100)
    coordinator.prepared(gid, 1300)
    coordinator.wait(1150, gid=gid)
    assert answers(coordinator.commit(1299)) == {}
    assert answers(coordinator.commit(1300)) == {1: CONFIRMED}


def test_of_a_transaction_that_was_rolled_back_nothing_is_confirmed() -> None:
    coordinator = Coordinator.deciding()
    gid = gid_of()
    coordinator.rolled_back(gid, 1200, 1300)
    coordinator.commit(1300)
    assert answers(coordinator.wait(1200, gid=gid)) == {1: PENDING}


# ---- law 7


def test_nothing_before_the_term_start() -> None:
    coordinator = Coordinator(first=led(term_start_lsn=2000))
    coordinator.wait(1500)
    assert coordinator.limbo.wake_lsn == 1500
    assert coordinator.commit(1999) == []
    assert not coordinator.limbo.is_deciding
    assert answers(coordinator.commit(2000)) == {1: CONFIRMED}


def test_nothing_before_the_quorum_has_a_byte_of_the_timeline() -> None:
    """Its first byte is at 1000, like the start of the term. Before that the primary that was on
    timeline 1 may return, and continue there."""
    coordinator = Coordinator(first=led(NODE, 1000, (1, 1000)))
    coordinator.wait(900)
    assert coordinator.commit(1000) == []
    assert answers(coordinator.commit(1001)) == {1: CONFIRMED}


# ---- who leads


def test_without_a_leader_every_question_is_refused() -> None:
    coordinator = Coordinator()
    for actions in (
        coordinator.wait(1),
        coordinator.step(BarrierAsked(2, 1, BEGIN_MS, 0)),
    ):
        (refusal,) = actions
        assert isinstance(refusal, RefuseWait)
        assert refusal.sqlstate == "57P03"


def test_a_fenced_coordinator_answers_only_that() -> None:
    coordinator = Coordinator.deciding()
    coordinator.prepared(gid_of(deadline_ms=0), 1100)
    coordinator.wait(1200)
    coordinator.wait(1300)
    refusals = coordinator.step(Fenced("a greater term"))
    assert [(r.waiter, r.sqlstate) for r in refusals if isinstance(r, RefuseWait)] == [
        (1, "57P01"),
        (2, "57P01"),
    ]
    assert coordinator.commit(9999) == []
    assert coordinator.at(100_000) == []
    assert coordinator.step(Fenced("again")) == []


def test_another_leader_without_a_word_of_the_end_of_the_first() -> None:
    coordinator = Coordinator.deciding()
    coordinator.wait(1200)
    refusal, read = coordinator.step(led(replace_term(9), 1500))
    assert isinstance(refusal, RefuseWait)
    assert read == Read()
    assert not coordinator.limbo.is_deciding


def replace_term(term: int) -> type(NODE):  # type: ignore[valid-type]
    return type(NODE)(term, NODE.proposer_uuid)


def test_words_of_an_older_incarnation_come_too_late() -> None:
    coordinator = Coordinator.deciding()
    coordinator.wait(1200)
    assert coordinator.step(CommitAdvanced(OLDER, 1200)) == []
    coordinator.node_id = OLDER
    coordinator.prepared(gid_of(), 1200)
    coordinator.step(LimboRead(OLDER, (row(gid_of(2)),), 1300, 1300, BEGIN_MS))
    assert coordinator.limbo.table.entries == {}


def test_a_server_that_shares_the_timelines_number_has_another_log() -> None:
    """Both were promoted from one log. What this one has of it was read here."""
    coordinator = Coordinator(first=led())
    known, unknown = gid_of(1, start_us=START_US + 1), gid_of(2, start_us=START_US + 1)
    coordinator.commit(1300)
    assert answers(coordinator.wait(1200, gid=known)) == {}
    assert answers(coordinator.wait(1200, gid=unknown)) == {}
    assert answers(coordinator.read(1300, row(known))) == {1: CONFIRMED, 2: PENDING}
    assert answers(coordinator.wait(1200, gid=gid_of(3))) == {3: CONFIRMED}
    assert answers(coordinator.wait(9999, gid=unknown)) == {4: PENDING}


def test_an_unreachable_primary_stops_admission_with_an_alarm() -> None:
    coordinator = Coordinator.deciding()
    coordinator.at(SETTINGS.unread_max_ms)
    assert coordinator.limbo.admission() is None
    coordinator.at(SETTINGS.unread_max_ms + 1000)
    refusal = coordinator.limbo.admission()
    assert refusal is not None
    assert refusal.text == "the primary could not be asked for its prepared transactions for 11 s"
    coordinator.read(1000)
    assert coordinator.limbo.admission() is None


def test_ages_and_deadlines_are_by_the_primarys_clock() -> None:
    coordinator = Coordinator.deciding()
    coordinator.ahead_ms = -60_000
    gid = gid_of(deadline_ms=-59_000)
    coordinator.read(1200, row(gid, at_us=-60_000_000))
    assert coordinator.limbo.age_ms == 0
    coordinator.commit(1200)
    assert finishes(coordinator.at(1000 + SETTINGS.orphan_grace_ms - 1)) == []
    assert finishes(coordinator.at(1000 + SETTINGS.orphan_grace_ms)) == [(str(gid), True)]


def test_questions_that_have_ended_leave_nothing() -> None:
    coordinator = Coordinator.deciding()
    tracemalloc.start()
    try:
        for _ in range(10_000):
            coordinator.wait(NEVER_LSN - 1, until_ms=0)
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept_bytes < 1 << 20, kept_bytes


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_clients_of_what_was_never_seen_are_forgotten(is_forgotten: bool) -> None:
    """Without a client, a transaction that shows up later has until its deadline."""
    coordinator = Coordinator.deciding()
    gids = [gid_of(number, deadline_ms=10 * REMEMBER_MS) for number in range(100)]
    for gid in gids:
        coordinator.wait(1000, gid=gid, waiter=1)
    coordinator.step(WaiterGone(1))
    gone_ms = REMEMBER_MS if is_forgotten else REMEMBER_MS - 1
    coordinator.at(gone_ms)
    coordinator.read(1200, *map(row, gids))
    coordinator.commit(1200)
    expected = [] if is_forgotten else [(str(gid), True) for gid in gids]
    assert finishes(coordinator.at(gone_ms)) == expected


def test_positions_of_a_log_that_was_cut_are_never_confirmed() -> None:
    """Timeline 1 ended at 1500: a PREPARE of a client there that ends above is not in this log."""
    coordinator = Coordinator(first=led(NODE, 1500, (1, 1500)))
    coordinator.commit(5000)
    gid = gid_of(begin_lsn=1400)
    coordinator.read(1500, row(gid))
    assert answers(coordinator.wait(1600, gid=gid_of(2, begin_lsn=1550))) == {1: PENDING}
    assert answers(coordinator.wait(1500, gid=gid)) == {2: CONFIRMED}
    assert answers(coordinator.wait(1500, gid=gid_of(begin_lsn=1400, tli=7))) == {3: PENDING}


# ---- barriers


def barrier(lsn: int, *, after_round: int, server: tuple[int, int] | None = None) -> BarrierAsked:
    return BarrierAsked(1, lsn, BEGIN_MS + 500, after_round, server)


def test_a_barrier_needs_the_position_and_a_round_that_began_later() -> None:
    coordinator = Coordinator.deciding()
    coordinator.step(RoundAnswered(NODE, 7))
    assert coordinator.step(barrier(1000, after_round=7)) == []
    assert coordinator.step(RoundAnswered(NODE, 7)) == []
    assert answers(coordinator.step(RoundAnswered(NODE, 8))) == {1: CONFIRMED}
    coordinator.step(barrier(1200, after_round=7))
    assert answers(coordinator.commit(1200)) == {1: CONFIRMED}


def test_a_barrier_without_a_round_is_pending_at_its_deadline() -> None:
    coordinator = Coordinator.deciding()
    coordinator.step(barrier(1000, after_round=7))
    assert answers(coordinator.at(500)) == {1: PENDING}


@pytest.mark.parametrize("server", [(1, START_US), (2, START_US + 1)])
def test_a_barrier_of_another_server_is_refused(server: tuple[int, int]) -> None:
    coordinator = Coordinator(first=led(NODE, 1000, (1, 900)))
    (refusal,) = coordinator.step(barrier(800, after_round=0, server=server))
    assert isinstance(refusal, RefuseWait)
    assert refusal.sqlstate == "55000"
    assert "not of the primary" in refusal.text
    assert "expected timeline 2, started at 1970-01-01 00:00:00.000077 UTC" in refusal.text


def test_a_barrier_waits_for_what_is_older_than_the_failover() -> None:
    """It was committed, and seen, on the previous primary: here it is not visible yet."""
    coordinator = Coordinator(first=led(NODE, 1000, (1, 900)))
    old = gid_of(begin_lsn=700, tli=1)
    coordinator.commit(1100)
    coordinator.step(RoundAnswered(NODE, 1))
    assert coordinator.step(barrier(1100, after_round=0, server=(2, START_US))) == []
    assert answers(coordinator.read(1100, row(old))) == {}
    assert answers(coordinator.committed(old, 1200)) == {1: CONFIRMED}


# ---- order=fifo


def test_fifo_confirms_in_the_order_of_the_log() -> None:
    coordinator = Coordinator.deciding(FIFO)
    first, second = gid_of(1), gid_of(2)
    coordinator.prepared(first, 1200)
    coordinator.prepared(second, 1300)
    coordinator.read(1300, row(first), row(second))
    coordinator.wait(1300, gid=second)
    coordinator.wait(1200, gid=first)
    assert answers(coordinator.commit(1300)) == {2: CONFIRMED}
    assert answers(coordinator.committed(first, 1400)) == {1: CONFIRMED}


def test_fifo_reads_the_limbo_for_one_that_it_does_not_know() -> None:
    coordinator = Coordinator.deciding(FIFO)
    first, second = gid_of(1), gid_of(2)
    assert coordinator.wait(1300, gid=second) == [Read()]
    assert coordinator.commit(1300) == []
    coordinator.prepared(second, 1300)
    assert coordinator.commit(1301) == []  # who was before may be unknown
    rows = (row(first, at_us=1), row(second, at_us=2))
    assert answers(coordinator.read(1400, *rows)) == {}
    assert answers(coordinator.read(1400, rows[1])) == {1: CONFIRMED}


def test_fifo_confirms_what_has_left_already() -> None:
    coordinator = Coordinator.deciding(FIFO)
    gid = gid_of()
    coordinator.prepared(gid, 1200)
    coordinator.committed(gid, 1300)
    coordinator.commit(1300)
    assert answers(coordinator.wait(1250, gid=gid)) == {1: CONFIRMED}


# ---- admission and alarms


def test_admitted_when_it_decides_has_read_and_has_room() -> None:
    coordinator = Coordinator(first=led())
    for step, text in (
        (lambda: coordinator.at(0), "the coordinator has just begun to lead"),
        (lambda: coordinator.commit(1000), "the coordinator has just begun to lead"),
    ):
        step()
        refusal = coordinator.limbo.admission()
        assert refusal is not None
        assert refusal.sqlstate == "57P03"
        assert refusal.text.startswith(text)
    coordinator.read(1000)
    assert coordinator.limbo.admission() is None


def test_no_quorum_no_admission_and_waits_go_on() -> None:
    coordinator = Coordinator.deciding()
    coordinator.wait(1200)
    assert coordinator.step(QuorumChanged(False)) == []
    refusal = coordinator.limbo.admission()
    assert refusal is not None
    assert refusal.sqlstate == "57P03"
    coordinator.step(QuorumChanged(True))
    assert coordinator.limbo.admission() is None
    assert answers(coordinator.commit(1200)) == {1: CONFIRMED}


def test_a_full_limbo_stops_admission_and_alarms_once() -> None:
    coordinator = Coordinator.deciding(replace(SETTINGS, limbo_max=3))
    for number in (1, 2, 3):
        coordinator.prepared(gid_of(number), 1100 + number)
    assert [a.text for a in coordinator.at(1) if isinstance(a, Alarm)] == [
        "3 transactions are prepared and not finished: no more are admitted"
    ]
    assert not any(isinstance(a, Alarm) for a in coordinator.at(2))
    refusal = coordinator.limbo.admission()
    assert refusal is not None
    assert (refusal.sqlstate, refusal.text) == (
        "53400",
        "3 transactions are prepared and not finished: expected fewer than 3",
    )
    coordinator.committed(gid_of(1), 1300)
    assert coordinator.limbo.admission() is None


def test_an_old_transaction_stops_admission_and_alarms_once() -> None:
    coordinator = Coordinator.deciding()
    gid = gid_of(deadline_ms=10_000_000)
    coordinator.prepared(gid, 1200, at_us=1_000_000)
    assert not any(isinstance(a, Alarm) for a in coordinator.at(31_000))
    assert [a.text for a in coordinator.at(31_001) if isinstance(a, Alarm)] == [
        f"{gid} has been prepared for 30 s: it holds locks and WAL"
    ]
    assert not any(isinstance(a, Alarm) for a in coordinator.at(32_000))
    coordinator.read(1200, row(gid, at_us=1_000_000))
    refusal = coordinator.limbo.admission()
    assert refusal is not None
    assert refusal.text == "a transaction has been prepared for 31 s: expected at most 30 s"


def test_foreign_gids_are_only_counted() -> None:
    coordinator = Coordinator.deciding()
    theirs = replace(row(gid_of()), gid="pg_gid_16394_742")
    assert coordinator.read(1200, theirs) == []
    assert coordinator.limbo.table.foreign_count == 1
    assert coordinator.limbo.rows() == []


# ---- what is shown


def test_rows_are_in_the_order_of_the_log() -> None:
    coordinator = Coordinator.deciding()
    policy = Policy.ROLLBACK
    first, second = gid_of(1, policy=policy), gid_of(2)
    coordinator.prepared(second, 1300)
    coordinator.prepared(first, 1200)
    coordinator.wait(1300, gid=second)
    coordinator.commit(1200)
    rows = coordinator.limbo.rows()
    assert [str(shown.entry.gid) for shown in rows] == [str(first), str(second)]
    assert [shown.is_confirmed for shown in rows] == [True, False]
    assert [shown.state for shown in rows] == [EntryState.WAITING, EntryState.CLIENT]


def test_readings_are_asked_for_as_time_goes_by() -> None:
    coordinator = Coordinator.deciding()
    assert coordinator.at(999) == []
    assert coordinator.at(1000) == [Read()]
    assert coordinator.at(1001) == []
    assert coordinator.at(2000) == [Read()]


@pytest.mark.parametrize("count", [5000])
def test_many_waits_and_none_is_left_behind(count: int) -> None:
    coordinator = Coordinator.deciding()
    for number in range(count):
        coordinator.wait(2000 + number)
    assert len(answers(coordinator.commit(2000 + count // 2 - 1))) == count // 2
    assert len(answers(coordinator.at(1000))) == count - count // 2
    assert coordinator.limbo.wake_lsn == NEVER_LSN
