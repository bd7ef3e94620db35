"""Servers that disappear, hang or end: the client reports the true outcome, and continues."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Timer

import psycopg
import pytest
from accounts import (
    SLOWLY,
    TAKE,
    TIMEOUT,
    amounts,
    finish,
    meanwhile,
    prepared,
    wait_until_slow,
)
from scripted_coordinator import Script, ScriptedCoordinator
from twins import Twin

from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.proxy import Direction, TcpProxy
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.qsync import (
    BarrierFailed,
    Committed,
    CoordinatorError,
    OutcomeUnknown,
    Pending,
    RolledBack,
    TransactionPending,
    TransactionRefused,
    TransactionRolledBack,
    UsageError,
)
from quorum_wal.walproposer.qsync.answers import Outcome
from quorum_wal.walproposer.qsync.question import Question
from quorum_wal.walproposer.qsync.verbs import AskOutcome, Barrier, Verb, WaitLsn


def first(verb: type[Verb], action: Callable[[Question], object]) -> Script:
    """Run that at the first such question. The question is answered as usual unless it returns
    True."""
    done: list[Question] = []

    def script(question: Question) -> bool:
        if not isinstance(question.verb, verb) or done:
            return False
        done.append(question)
        return action(question) is True

    return script


def refusal(sqlstate: str) -> Callable[[Question], bool]:
    def refuse(question: Question) -> bool:
        question.refuse(sqlstate, f"refused with {sqlstate}")
        return True

    return refuse


def assert_works(twin: Twin, server: Postgres) -> None:
    before = amounts(server)["bob"]
    with twin.transaction() as block:
        block.execute(TAKE, (1, "bob"))
    assert isinstance(block.tx.result, Committed)
    assert amounts(server)["bob"] == before - 1


# ---- the primary


def test_a_primary_lost_before_prepare_means_rolled_back(
    twin: Twin, server: Postgres, wire: TcpProxy, coordinator: ScriptedCoordinator
) -> None:
    with pytest.raises(TransactionRolledBack), twin.transaction() as block:
        block.execute(TAKE, (30, "alice"))
        wire.cut()
    assert coordinator.asked == []
    wire.restore()
    assert_works(twin, server)


def test_a_primary_lost_in_the_block_is_an_error_of_psycopg(
    twin: Twin, server: Postgres, wire: TcpProxy
) -> None:
    with pytest.raises(psycopg.OperationalError), twin.transaction() as block:
        block.execute(TAKE, (30, "alice"))
        wire.cut()
        block.execute(TAKE, (30, "bob"))
    assert isinstance(block.tx.outcome, RolledBack)
    wire.restore()
    assert_works(twin, server)


@pytest.mark.parametrize("outcome", [Outcome.PENDING, Outcome.COMMITTED, Outcome.ROLLED_BACK])
def test_a_primary_lost_in_prepare_is_asked_about_at_the_coordinator(
    twin: Twin,
    server: Postgres,
    wire: TcpProxy,
    coordinator: ScriptedCoordinator,
    outcome: Outcome,
) -> None:
    """PREPARE succeeds, but its answer is lost."""
    coordinator.outcome = outcome

    def lose_the_answer() -> None:
        wait_until_slow(server)
        wire.drop(Direction.TO_CLIENT)
        wait_until(lambda: prepared(server), TIMEOUT, "PREPARE to end")
        wire.cut()

    told: object = None
    try:
        with meanwhile(lose_the_answer), twin.transaction(timeout=2) as block:
            block.execute(TAKE, (30, "alice"))
            block.execute(SLOWLY, (0.5,))
        told = type(block.tx.result)
    except (TransactionPending, TransactionRolledBack) as error:
        told = type(error)
    assert (
        told
        is {
            Outcome.PENDING: TransactionPending,
            Outcome.COMMITTED: Committed,
            Outcome.ROLLED_BACK: TransactionRolledBack,
        }[outcome]
    )
    assert prepared(server) == [str(block.tx.gid)]
    assert WaitLsn not in [type(question.verb) for question in coordinator.asked]
    finish(server, str(block.tx.gid), "ROLLBACK")
    wire.restore()
    assert_works(twin, server)


def test_a_silent_primary_does_not_block_the_caller(
    twin: Twin, server: Postgres, wire: TcpProxy
) -> None:
    begun = time.monotonic()
    with pytest.raises(TransactionPending), twin.transaction(timeout=0.5) as block:
        block.execute(TAKE, (30, "alice"))
        block.execute(SLOWLY, (60,))
    assert time.monotonic() - begun < 10
    assert prepared(server) == []
    assert_works(twin, server)
    server.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event='PgSleep'"
    )


def lose_primary(wire: TcpProxy) -> Script:
    return first(WaitLsn, lambda _: wire.cut())


def test_a_primary_lost_before_commit_prepared_leaves_it_to_the_janitor(
    twin: Twin, server: Postgres, wire: TcpProxy, coordinator: ScriptedCoordinator
) -> None:
    coordinator.script = lose_primary(wire)
    with pytest.raises(TransactionPending) as raised, twin.transaction(timeout=1) as block:
        block.execute(TAKE, (30, "alice"))
    assert raised.value.outcome.lsn > raised.value.outcome.gid.begin_lsn
    assert prepared(server) == [str(block.tx.gid)]
    speaker = next(q.waiter for q in coordinator.asked if isinstance(q.verb, WaitLsn))
    wait_until(lambda: speaker in coordinator.left, TIMEOUT, "the port to see it leave")
    finish(server, str(block.tx.gid))
    wire.restore()
    assert_works(twin, server)


def test_a_primary_lost_before_commit_prepared_and_wait_for_the_outcome(
    twin: Twin, server: Postgres, wire: TcpProxy, coordinator: ScriptedCoordinator
) -> None:
    coordinator.script = lose_primary(wire)
    with meanwhile(lambda: commit_when_asked(server, coordinator)), twin.transaction() as block:
        block.execute(TAKE, (30, "alice"))
    assert isinstance(block.tx.result, Committed)
    wire.restore()
    assert_works(twin, server)


def commit_when_asked(server: Postgres, coordinator: ScriptedCoordinator) -> None:
    """As the janitor, which waits until no connection names the gid."""
    wait_until(lambda: "OUTCOME" in coordinator.verbs, TIMEOUT, "OUTCOME to be asked")
    (gid,) = prepared(server)
    coordinator.wait_orphaned(gid)
    finish(server, gid)
    coordinator.outcome = Outcome.COMMITTED


def test_the_outcome_is_requested_if_an_administrator_has_finished_it(
    twin: Twin, server: Postgres, coordinator: ScriptedCoordinator
) -> None:
    """COMMIT PREPARED fails because the gid does not exist."""

    def resolve(question: Question) -> None:
        assert isinstance(question.verb, WaitLsn)
        finish(server, str(question.verb.gid))
        coordinator.outcome = Outcome.COMMITTED

    coordinator.script = first(WaitLsn, resolve)
    with twin.transaction() as block:
        block.execute(TAKE, (30, "alice"))
    assert isinstance(block.tx.result, Committed)
    assert amounts(server)["alice"] == 70


# ---- the coordinator


def test_a_coordinator_lost_while_it_waits_is_asked_again(
    twin: Twin, server: Postgres, coordinator: ScriptedCoordinator, coordinator_wire: TcpProxy
) -> None:
    timer = Timer(0.3, coordinator_wire.restore)

    def vanish(question: Question) -> bool:
        coordinator_wire.cut()
        timer.start()
        return True

    coordinator.script = first(WaitLsn, vanish)
    with twin.transaction() as block:
        block.execute(TAKE, (30, "alice"))
    timer.join()
    assert isinstance(block.tx.result, Committed)
    assert coordinator.verbs.count("WAIT_LSN") == 3


@pytest.mark.parametrize("sqlstate", ["57P01", "57P03", "57014", "55000"])
def test_a_fenced_coordinator_is_asked_again(
    twin: Twin, coordinator: ScriptedCoordinator, sqlstate: str
) -> None:
    coordinator.script = first(WaitLsn, refusal(sqlstate))
    with twin.transaction() as block:
        block.execute(TAKE, (30, "alice"))
    assert isinstance(block.tx.result, Committed)


def test_a_coordinator_that_does_not_return_leaves_it_pending(
    twin: Twin, server: Postgres, coordinator: ScriptedCoordinator, coordinator_wire: TcpProxy
) -> None:
    coordinator.script = first(WaitLsn, lambda _: coordinator_wire.cut())
    with pytest.raises(TransactionPending), twin.transaction(timeout=1) as block:
        block.execute(TAKE, (30, "alice"))
    assert prepared(server) == [str(block.tx.gid)]
    with pytest.raises(CoordinatorError):
        twin.call("outcome", str(block.tx.gid), timeout=0.2)
    with pytest.raises(TransactionRefused), twin.transaction() as block:
        block.execute(TAKE, (30, "bob"))
    coordinator_wire.restore()
    assert_works(twin, server)


def test_a_silent_coordinator_is_not_waited_for(
    twin: Twin, server: Postgres, coordinator: ScriptedCoordinator
) -> None:
    coordinator.script = lambda question: isinstance(question.verb, WaitLsn)
    begun = time.monotonic()
    with pytest.raises(TransactionPending), twin.transaction(timeout=0.5) as block:
        block.execute(TAKE, (30, "alice"))
    assert time.monotonic() - begun < 10
    coordinator.script = lambda _: False
    assert_works(twin, server)


def test_idle_connections_to_the_coordinator_may_end(
    twin: Twin, server: Postgres, coordinator_wire: TcpProxy
) -> None:
    assert_works(twin, server)
    coordinator_wire.cut()
    coordinator_wire.restore()
    time.sleep(0.15)  # an admission is valid for 0.1 s
    assert_works(twin, server)


def test_a_command_that_is_not_allowed_fails_at_once(
    twin: Twin, coordinator: ScriptedCoordinator
) -> None:
    coordinator.script = lambda question: refusal("42501")(question)
    with pytest.raises(TransactionRefused) as raised, twin.transaction() as block:
        block.execute(TAKE, (30, "alice"))
    assert raised.value.outcome.sqlstate == "42501"


# ---- barriers and outcomes


def test_a_barrier_is_after_earlier_writes(
    twin: Twin, server: Postgres, coordinator: ScriptedCoordinator
) -> None:
    twin.query("UPDATE account SET amount = 1 WHERE name = 'bob'")
    with twin.borrow() as connection:
        assert twin.call("barrier", connection) <= int(server.flush_lsn())
    verb = coordinator.asked[-1].verb
    assert isinstance(verb, Barrier)
    ((start,),) = server.execute("SELECT extract(epoch FROM pg_postmaster_start_time())")
    assert verb.server == (1, int(start * 1_000_000))
    in_use = pytest.raises(UsageError, match="in a transaction")
    with twin.borrow() as connection, twin.transaction(connection), in_use:
        twin.call("barrier", connection)


def test_a_barrier_fails_without_proof_of_the_term(
    twin: Twin, server: Postgres, coordinator: ScriptedCoordinator
) -> None:
    coordinator.advance(0)
    with twin.borrow() as connection, pytest.raises(BarrierFailed):
        twin.call("barrier", connection, timeout=0.2)


def test_outcomes_are_values(twin: Twin, coordinator: ScriptedCoordinator) -> None:
    gid = f"skq1.d.1.1-1-1-1.{'0' * 32}"
    outcome = twin.call("outcome", gid)
    assert outcome == Pending(outcome.gid, 0)
    coordinator.outcome = Outcome.UNKNOWN
    with pytest.raises(OutcomeUnknown):
        twin.call("outcome", gid)
    verb = coordinator.asked[-1].verb
    assert isinstance(verb, AskOutcome)
    assert str(verb.gid) == gid
    with pytest.raises(ValueError, match="invalid gid"):
        twin.call("outcome", "somebody's")
