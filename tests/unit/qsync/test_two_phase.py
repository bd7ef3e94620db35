"""The protocol of a transaction from BEGIN to its outcome, with and without faults at each step."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus
from two_phase_world import NEVER, Fault, Truth, TwoPhaseWorld

from quorum_wal.qsync.errors import (
    TransactionPending,
    TransactionRefused,
    TransactionRolledBack,
    UsageError,
)
from quorum_wal.qsync.options import Options
from quorum_wal.qsync.outcome import Committed, Refused, RolledBack
from quorum_wal.qsync.statements import parse_lsn
from quorum_wal.qsync.two_phase import note_interruption

ROLLBACK = Options(on_timeout="rollback")
SUBMIT = Options(wait="submit")
ROLLBACK_LATER = Options(on_timeout="rollback", wait="submit")


def committed(world: TwoPhaseWorld) -> Committed:
    world.begin()
    world.end()
    return world.two_phase.result


# ---- round trips


def test_it_takes_five_round_trips_to_be_durable() -> None:
    world = TwoPhaseWorld()
    assert committed(world) == Committed(parse_lsn("0/3000"))
    prepare = ["SET", "PREPARE", "FLUSH"]
    assert world.asked == [
        *("BEGIN", "SET"),
        "FACTS",
        *("connect", "ADMIT"),
        *prepare,
        "WAIT_LSN",
        *("COMMIT PREPARED", "FLUSH"),
        "WAIT_LSN",
    ]
    assert world.requests == 8  # two of them, connect and ADMIT, are not made each time


def test_it_takes_one_less_to_be_visible() -> None:
    world = TwoPhaseWorld(Options(confirm="visible"))
    assert committed(world) == Committed(world.lsn_of_prepare)
    assert world.asked[-2:] == ["WAIT_LSN", "COMMIT PREPARED"]


def test_one_that_has_written_nothing_just_commits() -> None:
    world = TwoPhaseWorld(writes=False)
    assert committed(world) == Committed(0)
    assert world.asked == ["BEGIN", "SET", "FACTS", "COMMIT"]
    assert world.two_phase.gid is None


def test_the_gid_has_what_a_successor_must_know() -> None:
    world = TwoPhaseWorld(Options(timeout=2.5, on_timeout="rollback"))
    committed(world)
    assert str(world.two_phase.gid).startswith("skq1.r.dac.1-1000-2d5-1.")  # 1000 + 2500 ms


# ---- other outcomes


def test_what_is_not_admitted_is_rolled_back_before_prepare() -> None:
    world = TwoPhaseWorld()
    world.is_admitting = False
    with pytest.raises(TransactionRefused, match="refused"):
        committed(world)
    assert isinstance(world.two_phase.outcome, Refused)
    assert world.two_phase.outcome.sqlstate == "53400"
    assert world.truth is Truth.ROLLED_BACK
    assert "PREPARE" not in world.asked


def test_the_deadline_detaches() -> None:
    world = TwoPhaseWorld(confirms_at=NEVER)
    with pytest.raises(TransactionPending) as raised:
        committed(world)
    assert raised.value.outcome == world.two_phase.outcome
    assert raised.value.outcome.lsn == world.lsn_of_prepare
    assert world.now == pytest.approx(5.0, abs=0.1)
    assert world.truth is Truth.PREPARED
    assert not any(speaker.is_open for speaker in world.speakers)


def test_the_deadline_rolls_back_but_is_pending_without_a_quorum() -> None:
    world = TwoPhaseWorld(ROLLBACK, confirms_at=NEVER)
    with pytest.raises(TransactionPending, match="and it was rolled back"):
        committed(world)
    assert world.truth is Truth.ROLLED_BACK  # here; a successor may have its PREPARE


def test_rolled_back_is_reported_when_the_quorum_has_it() -> None:
    world = TwoPhaseWorld(ROLLBACK, confirms_at=5.5)
    with pytest.raises(TransactionRolledBack):
        committed(world)
    assert world.now >= 5.5


def test_a_late_rollback_finds_it_committed() -> None:
    world = TwoPhaseWorld(ROLLBACK, confirms_at=5.01)
    world.commits_late = True
    assert committed(world) == Committed(parse_lsn("0/3000"))


def test_a_failed_transaction_is_not_prepared() -> None:
    """Postgres answers PREPARE with the tag ROLLBACK, and no error."""
    world = TwoPhaseWorld()
    world.prepare_tag = "ROLLBACK"
    with pytest.raises(TransactionRolledBack, match="in the block failed") as raised:
        committed(world)
    assert "connection.transaction()" in raised.value.hint


def test_a_transaction_in_error_is_not_even_asked() -> None:
    world = TwoPhaseWorld()
    world.begin()
    world.primary.info.transaction_status = TransactionStatus.INERROR
    with pytest.raises(TransactionRolledBack, match="in the block failed"):
        world.end()
    assert world.asked[2:] == ["ROLLBACK"]


@pytest.mark.parametrize(
    ("status", "reason"),
    [(TransactionStatus.UNKNOWN, "lost"), (TransactionStatus.ACTIVE, "still running")],
)
def test_a_connection_that_can_not_prepare(status: TransactionStatus, reason: str) -> None:
    world = TwoPhaseWorld()
    world.begin()
    world.primary.info.transaction_status = status
    with pytest.raises(TransactionRolledBack, match=reason):
        world.end()


@pytest.mark.parametrize(
    ("sqlstate", "hint"),
    [
        ("0A000", "plain transaction"),
        ("53200", "max_prepared_transactions"),
        ("55000", "sk qsync check"),
        ("40001", ""),
    ],
)
def test_prepare_that_fails_rolls_back_with_the_reason(sqlstate: str, hint: str) -> None:
    world = TwoPhaseWorld()
    world.sqlstates["PREPARE"] = [sqlstate]
    world.begin()
    world.primary.info.transaction_status = TransactionStatus.INTRANS
    with pytest.raises(TransactionRolledBack, match="refused by the test") as raised:
        world.end()
    assert raised.value.sqlstate == sqlstate
    assert hint in raised.value.hint
    assert isinstance(raised.value.__cause__, psycopg.Error)


def test_prepare_that_fails_after_its_end_is_prepared() -> None:
    """The row in pg_prepared_xacts counts, not the error."""
    world = TwoPhaseWorld()
    world.sqlstates["FLUSH"] = ["57014"]  # of the flush position, in the same query
    assert committed(world) == Committed(parse_lsn("0/3000"))
    assert "FIND" in world.asked


def test_prepare_that_fails_after_its_end_may_be_finished_already() -> None:
    world = TwoPhaseWorld()
    world.sqlstates["FLUSH"] = ["57014"]
    world.ends_at_once = True
    assert committed(world) == Committed(parse_lsn("0/3000"))
    assert "FIND" in world.asked


def test_prepare_that_fails_after_the_deadline_may_have_been_finished() -> None:
    """After the deadline the janitor finishes a gid that no connection holds."""
    world = TwoPhaseWorld(ROLLBACK)
    world.begin()
    world.sqlstates["PREPARE"] = ["57014"]
    world.primary.info.transaction_status = TransactionStatus.INTRANS
    world.seconds_of["PREPARE"] = 5.0
    with pytest.raises(TransactionRolledBack):
        world.end()
    assert "OUTCOME" in world.asked


def test_a_busy_gid_is_tried_again() -> None:
    world = TwoPhaseWorld()
    world.sqlstates["COMMIT PREPARED"] = ["55000", "55000"]
    assert committed(world) == Committed(parse_lsn("0/3000"))


def test_a_set_local_role_is_taken_on_to_finish() -> None:
    world = TwoPhaseWorld()
    world.sqlstates["COMMIT PREPARED"] = ["42501"]
    assert committed(world) == Committed(parse_lsn("0/3000"))
    assert world.asked.count("COMMIT PREPARED") == 2
    assert "OWNER" in world.asked


def test_a_role_that_can_not_be_asked_for_leaves_it_to_the_janitor() -> None:
    world = TwoPhaseWorld(faults={8: Fault.BREAKS_BEFORE})
    world.sqlstates["COMMIT PREPARED"] = ["42501"]
    assert isinstance(committed(world), Committed)
    assert world.asked.count("COMMIT PREPARED") == 1
    assert "OUTCOME" in world.asked


def test_what_could_not_be_committed_is_left_to_the_janitor_before_its_outcome_is_asked() -> None:
    """The janitor leaves a gid alone while a connection holds it."""
    world = TwoPhaseWorld(faults={6: Fault.BREAKS_BEFORE})
    assert isinstance(committed(world), Committed)
    assert world.asked[-1] == "OUTCOME"
    assert world.now < 1.0


def test_standbys_are_not_waited_for() -> None:
    world = TwoPhaseWorld()
    world.has_standby_names = True
    assert committed(world) == Committed(parse_lsn("0/3000"))
    at = world.asked.index("COMMIT PREPARED")
    kept_and_changed, put_back = ["SELECT", "SELECT"], ["SELECT"]
    assert world.asked[at - 2 : at] == kept_and_changed
    assert world.asked[at + 1 : at + 3] == [*put_back, "FLUSH"]


def test_through_a_pooler_no_setting_of_a_session_is_changed() -> None:
    """The next statement may run in another session, which another client uses afterwards."""
    world = TwoPhaseWorld()
    world.has_standby_names = world.has_pooler = True
    assert isinstance(committed(world), Committed)
    assert "SELECT" not in world.asked
    other = TwoPhaseWorld()
    other.has_pooler = True
    other.sqlstates["COMMIT PREPARED"] = ["42501"]
    assert isinstance(committed(other), Committed)  # by the janitor
    assert "OUTCOME" in other.asked
    assert "SELECT" not in other.asked


def test_a_transaction_that_was_ended_inside_is_the_callers_mistake() -> None:
    world = TwoPhaseWorld()
    world.begin()
    world.primary.info.transaction_status = TransactionStatus.IDLE
    with pytest.raises(UsageError, match="ended the transaction"):
        world.end()
    other = TwoPhaseWorld()
    other.is_marked = False  # ended, and another one begun
    with pytest.raises(UsageError, match="ended the transaction"):
        committed(other)
    assert other.truth is Truth.ROLLED_BACK


def abandoned(world: TwoPhaseWorld, reason: BaseException) -> None:
    connection: Any = world.primary
    world.run(world.two_phase.abandon(connection, reason))


def test_an_exception_in_the_block_rolls_back() -> None:
    world = TwoPhaseWorld()
    world.begin()
    abandoned(world, ZeroDivisionError("reason"))
    assert world.two_phase.outcome == RolledBack("reason")
    assert world.truth is Truth.ROLLED_BACK


@pytest.mark.parametrize(
    "status", [TransactionStatus.INERROR, TransactionStatus.ACTIVE, TransactionStatus.UNKNOWN]
)
def test_an_exception_on_a_connection_that_answers_nothing(status: TransactionStatus) -> None:
    world = TwoPhaseWorld()
    world.begin()
    world.primary.info.transaction_status = status
    abandoned(world, ZeroDivisionError("reason"))
    assert world.two_phase.outcome == RolledBack("reason")


@pytest.mark.parametrize("has_begun_another", [False, True])
def test_an_exception_after_a_commit_in_the_block_has_no_outcome(has_begun_another: bool) -> None:
    world = TwoPhaseWorld()
    world.begin()
    if has_begun_another:
        world.is_marked = False
    else:
        world.primary.info.transaction_status = TransactionStatus.IDLE
    for reason in (ZeroDivisionError(), psycopg.Rollback()):
        abandoned(world, reason)
        assert world.two_phase.outcome is None
        assert "did not wait for a quorum" in reason.__notes__[0]
        assert not world.two_phase.suppresses(reason)


def test_a_rollback_of_another_transaction_goes_on() -> None:
    world = TwoPhaseWorld()
    world.begin()
    outer: Any = object()
    abandoned(world, psycopg.Rollback(outer))
    assert not world.two_phase.suppresses(psycopg.Rollback(outer))
    assert world.two_phase.suppresses(psycopg.Rollback())


def test_an_interruption_adds_a_note_with_the_gid() -> None:
    world = TwoPhaseWorld(Options(wait="submit"))
    world.begin()
    world.end()
    interruption, error = KeyboardInterrupt(), ValueError()
    note_interruption(world.two_phase, interruption)
    note_interruption(world.two_phase, error)
    assert [str(world.two_phase.gid) in note for note in interruption.__notes__] == [True]
    assert not hasattr(error, "__notes__")
