"""The outcome of a qsync transaction on a real server, for each version and each client."""

from __future__ import annotations

import psycopg
import pytest
from accounts import TAKE, amounts, finish, prepared
from psycopg.pq import TransactionStatus
from scripted_coordinator import ScriptedCoordinator
from twins import Twin

from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.qsync import (
    Committed,
    Pending,
    RolledBack,
    TransactionPending,
    TransactionRefused,
    TransactionRolledBack,
)
from quorum_wal.walproposer.qsync.answers import Outcome
from quorum_wal.walproposer.qsync.question import Question
from quorum_wal.walproposer.qsync.verbs import Admit, WaitLsn

TIMEOUT = 20.0
pytestmark = pytest.mark.parametrize("limbo_server", [15, 16, 18], indirect=True)


def assert_clean(twin: Twin, server: Postgres) -> None:
    """The next user of a connection finds it in its initial state."""
    with twin.borrow() as connection:
        assert connection.info.transaction_status is TransactionStatus.IDLE
        assert not connection.closed
    assert twin.query("SHOW synchronous_commit") == [("on",)]
    with twin.transaction() as tx:
        tx.execute("SELECT 1")
    assert prepared(server) == []


@pytest.mark.parametrize("confirm", ["durable", "visible"])
def test_it_commits_when_the_quorum_has_it(
    twin: Twin, server: Postgres, coordinator: ScriptedCoordinator, confirm: str
) -> None:
    with twin.transaction(confirm=confirm) as block:
        block.execute(TAKE, (30, "alice"))
    assert amounts(server)["alice"] == 70
    assert isinstance(block.tx.result, Committed)
    assert 0 < block.tx.result.lsn <= int(server.flush_lsn())
    assert coordinator.verbs == ["ADMIT", *["WAIT_LSN"] * (2 if confirm == "durable" else 1)]
    assert coordinator.connections == 1
    assert_clean(twin, server)


def test_the_wait_names_what_was_prepared(
    twin: Twin, server: Postgres, coordinator: ScriptedCoordinator
) -> None:
    ((xid, lsn),) = twin.query("SELECT txid_snapshot_xmax(txid_current_snapshot()), '0/0'::pg_lsn")
    before = server.flush_lsn()
    seen: list[list[str]] = []
    coordinator.script = lambda _: seen.append(prepared(server)) or False
    with twin.transaction(confirm="visible", timeout=3) as block:
        block.execute(TAKE, (30, "alice"))
    gid = block.tx.gid
    assert gid is not None
    assert (gid.tli, gid.xid) == (1, xid)
    assert int(before) <= gid.begin_lsn <= int(server.flush_lsn())
    verb = coordinator.asked[-1].verb
    assert isinstance(verb, WaitLsn)
    assert verb.gid == gid
    assert verb.lsn > gid.begin_lsn
    assert 2000 < verb.timeout_ms <= 3000
    assert seen == [[], [str(gid)]]  # at ADMIT, at WAIT_LSN
    assert lsn


def test_without_a_quorum_it_is_pending_and_unseen(
    twin: Twin, server: Postgres, coordinator: ScriptedCoordinator
) -> None:
    coordinator.advance(0)
    with pytest.raises(TransactionPending) as raised, twin.transaction(timeout=0.3) as block:
        block.execute(TAKE, (30, "alice"))
    assert amounts(server)["alice"] == 100
    pending = raised.value.outcome
    assert prepared(server) == [str(pending.gid)]
    assert block.tx.outcome == pending == Pending(pending.gid, pending.lsn)
    assert twin.call("outcome", pending) == pending
    finish(server, str(pending.gid))
    coordinator.outcome = Outcome.COMMITTED
    assert isinstance(twin.call("outcome", raised.value), Committed)
    assert amounts(server)["alice"] == 70
    coordinator.advance()
    assert_clean(twin, server)


def test_the_janitor_learns_that_the_client_has_disconnected(
    twin: Twin, coordinator: ScriptedCoordinator
) -> None:
    """The connection that named the gid ends."""
    coordinator.advance(0)
    with pytest.raises(TransactionPending), twin.transaction(timeout=0.2) as block:
        block.execute(TAKE, (30, "alice"))
    speaker = coordinator.asked[-1].waiter
    wait_until(lambda: speaker in coordinator.left, TIMEOUT, "the port to see it leave")


def test_the_policy_rolls_back(
    twin: Twin, server: Postgres, coordinator: ScriptedCoordinator
) -> None:
    coordinator.advance(0)
    coordinator.outcome = Outcome.ROLLED_BACK
    options = {"timeout": 0.2, "on_timeout": "rollback"}
    with pytest.raises(TransactionRolledBack), twin.transaction(**options) as block:
        block.execute(TAKE, (30, "alice"))
    assert isinstance(block.tx.outcome, RolledBack)
    assert prepared(server) == []
    coordinator.outcome = Outcome.PENDING  # the ROLLBACK is not on a quorum
    with pytest.raises(TransactionPending), twin.transaction(**options) as block:
        block.execute(TAKE, (30, "alice"))
    assert prepared(server) == []
    coordinator.advance()
    assert_clean(twin, server)
    assert amounts(server)["alice"] == 100


def test_a_transaction_that_is_not_admitted_has_no_effect(
    twin: Twin, server: Postgres, coordinator: ScriptedCoordinator
) -> None:
    def refuse(question: Question) -> bool:
        if isinstance(question.verb, Admit):
            question.refuse("53400", "the limbo is full", "Wait.")
        return isinstance(question.verb, Admit)

    coordinator.script = refuse
    refused = pytest.raises(TransactionRefused, match="limbo is full")
    with refused as raised, twin.transaction() as block:
        block.execute(TAKE, (30, "alice"))
    assert raised.value.hint == "Wait."
    assert raised.value.outcome.sqlstate == "53400"
    assert coordinator.verbs == ["ADMIT"]
    assert amounts(server)["alice"] == 100
    assert_clean(twin, server)


def test_an_exception_in_the_block_rolls_back(twin: Twin, server: Postgres) -> None:
    with pytest.raises(ZeroDivisionError), twin.transaction() as block:
        block.execute(TAKE, (30, "alice"))
        raise ZeroDivisionError
    assert isinstance(block.tx.outcome, RolledBack)
    with pytest.raises(psycopg.errors.UniqueViolation), twin.transaction() as block:
        block.execute("INSERT INTO account VALUES ('bob', 1)")
    with twin.transaction() as block:
        block.execute(TAKE, (30, "alice"))
        raise psycopg.Rollback
    assert isinstance(block.tx.outcome, RolledBack)
    assert amounts(server) == {"alice": 100, "bob": 100}
    assert_clean(twin, server)


def test_a_read_only_transaction_commits(twin: Twin, coordinator: ScriptedCoordinator) -> None:
    with twin.transaction() as block:
        assert block.execute("SELECT sum(amount) FROM account") == [(200,)]
    assert block.tx.result == Committed(0)
    assert block.tx.gid is None
    with twin.transaction() as block:
        pass
    assert coordinator.asked == []


def test_a_session_setting_outlives_the_transaction_and_a_local_one_does_not(twin: Twin) -> None:
    with twin.borrow() as connection:
        with twin.transaction(connection) as block:
            block.execute("SET LOCAL work_mem = '5MB'; SET application_name = 'mine'")
            block.execute(TAKE, (1, "alice"))
        with twin.transaction(connection) as block:
            assert block.execute("SHOW application_name") == [("mine",)]
            assert block.execute("SHOW work_mem") != [("5MB",)]


def test_submit_and_wait(twin: Twin, server: Postgres, coordinator: ScriptedCoordinator) -> None:
    with twin.transaction(wait="submit") as block:
        block.execute(TAKE, (30, "alice"))
    assert amounts(server)["alice"] == 100
    assert coordinator.verbs == ["ADMIT"]
    assert prepared(server) == [str(block.tx.handle.gid)]
    assert_others_may_use(twin)
    committed = block.wait()
    assert block.wait() == committed == block.tx.result
    assert amounts(server)["alice"] == 70
    assert_clean(twin, server)


def assert_others_may_use(twin: Twin) -> None:
    with twin.transaction() as block:
        block.execute(TAKE, (1, "bob"))
    assert isinstance(block.tx.result, Committed)


def test_a_handle_that_was_pending_waits_again(
    twin: Twin, server: Postgres, coordinator: ScriptedCoordinator
) -> None:
    coordinator.advance(0)
    with twin.transaction(wait="submit") as block:
        block.execute(TAKE, (30, "alice"))
    with pytest.raises(TransactionPending):
        block.wait(0.1)
    coordinator.advance()
    assert isinstance(block.wait(), Committed)
    assert amounts(server)["alice"] == 70


def test_a_handle_finds_what_the_janitor_has_finished(
    twin: Twin, server: Postgres, coordinator: ScriptedCoordinator
) -> None:
    with twin.transaction(wait="submit") as block:
        block.execute(TAKE, (30, "alice"))
    finish(server, str(block.tx.gid))
    coordinator.outcome = Outcome.COMMITTED
    assert isinstance(block.wait(), Committed)
