"""Behaviour of Postgres and psycopg with two-phase transactions that a program would not expect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from accounts import OWNER, TAKE, amounts, prepared
from psycopg.pq import TransactionStatus
from scripted_coordinator import ScriptedCoordinator
from twins import Twin

from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.qsync import (
    Committed,
    Qsync,
    RolledBack,
    TransactionPending,
    TransactionRolledBack,
    UsageError,
)

IDLE = TransactionStatus.IDLE
NOBODY = "nobody"  # a name that no standby has, so that a commit waits


# ---- PREPARE that rolls back


def test_a_failed_transaction_is_not_prepared(twin: Twin, server: Postgres) -> None:
    """Postgres turns the PREPARE into a ROLLBACK, without an error."""
    failed = pytest.raises(TransactionRolledBack, match="in the block failed")
    with failed as raised, twin.transaction() as block:
        block.execute(TAKE, (30, "alice"))
        with pytest.raises(psycopg.errors.DivisionByZero):
            block.execute("SELECT 1 / 0")
    assert "connection.transaction()" in raised.value.hint
    assert prepared(server) == []
    assert amounts(server)["alice"] == 100


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("NOTIFY news", "NOTIFY"),
        ("CREATE TEMPORARY TABLE t (a int)", "temporary objects"),
        ("SELECT pg_export_snapshot()", "exported snapshots"),
        ("DECLARE c CURSOR WITH HOLD FOR SELECT 1", "WITH HOLD"),
    ],
)
def test_the_error_names_what_postgres_cannot_prepare(
    twin: Twin, server: Postgres, statement: str, reason: str
) -> None:
    refused = pytest.raises(TransactionRolledBack, match=reason)
    with refused as raised, twin.transaction() as block:
        block.execute(TAKE, (30, "alice"))
        block.execute(statement)
    assert raised.value.sqlstate == "0A000"
    assert "plain transaction" in raised.value.hint
    assert amounts(server)["alice"] == 100
    assert twin.query("SELECT 1") == [(1,)]


def test_a_deferred_constraint_fails_at_prepare(twin: Twin, server: Postgres) -> None:
    server.execute("CREATE TABLE late (a int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    with pytest.raises(TransactionRolledBack) as raised, twin.transaction() as block:
        block.execute("INSERT INTO late VALUES (1), (1)")
    server.execute("DROP TABLE late")
    assert raised.value.sqlstate == "23505"
    assert isinstance(raised.value.__cause__, psycopg.errors.UniqueViolation)


def test_a_serialization_failure_can_be_told_from_others(twin: Twin, server: Postgres) -> None:
    """Both read both accounts and write one. The second one to end fails, at its PREPARE."""
    read = "SELECT sum(amount) FROM account"
    with (
        server.connect() as other,
        pytest.raises(TransactionRolledBack) as raised,
        twin.transaction() as block,
    ):
        block.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
        block.execute(read)
        other.execute("BEGIN ISOLATION LEVEL SERIALIZABLE")
        other.execute(read)
        other.execute(TAKE, (1, "bob"))
        block.execute(TAKE, (1, "alice"))
        other.execute("COMMIT")
    assert raised.value.sqlstate == "40001"
    assert amounts(server) == {"alice": 100, "bob": 99}


def test_a_full_limbo_names_the_setting(twin: Twin, server: Postgres) -> None:
    with server.connect() as connection:
        ((places,),) = connection.execute("SHOW max_prepared_transactions").fetchall()
        for number in range(int(places)):
            connection.execute("BEGIN")
            connection.execute("SELECT pg_current_xact_id()")
            connection.execute(f"PREPARE TRANSACTION 'foreign-{number}'".encode())
    with pytest.raises(TransactionRolledBack) as raised, twin.transaction() as block:
        block.execute(TAKE, (30, "alice"))
    assert raised.value.sqlstate == "53200"
    assert "max_prepared_transactions" in raised.value.hint


# ---- waits for standbys, and the rights to finish


@pytest.mark.parametrize("own", ["on", "remote_apply", "off"])
def test_no_statement_waits_for_a_standby(twin: Twin, server: Postgres, own: str) -> None:
    """While PREPARE waits for a standby its gid is busy, and COMMIT PREPARED would wait as well.
    The setting of the session remains."""
    server.configure(synchronous_standby_names=NOBODY)
    with twin.borrow() as connection:
        for _ in range(2):
            with twin.transaction(connection) as block:
                block.execute(f"SET synchronous_commit = {own}")
                block.execute("SET LOCAL synchronous_commit = remote_write")
                block.execute(TAKE, (30, "alice"))
            assert isinstance(block.tx.result, Committed)
        with twin.transaction(connection) as block:
            assert block.execute("SHOW synchronous_commit") == [(own,)]
    assert amounts(server)["alice"] == 40


def test_rolling_back_waits_for_no_standby(
    twin: Twin, server: Postgres, coordinator: ScriptedCoordinator
) -> None:
    server.configure(synchronous_standby_names=NOBODY)
    coordinator.advance(0)
    with (
        pytest.raises(TransactionPending),
        twin.transaction(timeout=0.2, on_timeout="rollback") as block,
    ):
        block.execute(TAKE, (30, "alice"))
    assert prepared(server) == []
    assert twin.query("SHOW synchronous_commit") == [("on",)]


def test_a_role_of_the_transaction_alone_can_finish_it(
    make_twin: Callable[..., Twin], server: Postgres
) -> None:
    """The role of SET LOCAL ROLE owns the PREPARE, but has ended when COMMIT PREPARED runs."""
    twin = make_twin(user="login", dbname="postgres")
    for _ in range(2):
        with twin.transaction() as block:
            block.execute(f"SET LOCAL ROLE {OWNER}")
            block.execute(TAKE, (30, "alice"))
        assert isinstance(block.tx.result, Committed)
        assert twin.query("SELECT current_user") == [("login",)]
    assert amounts(server)["alice"] == 40


# ---- psycopg's connections


def test_the_pools_connection_has_no_memory(
    make_twin: Callable[..., Twin], server: Postgres, coordinator: ScriptedCoordinator
) -> None:
    """After tpc_prepare() an error returns a connection that is not usable. Here one connection
    survives all outcomes."""
    twin = make_twin({"max_size": 1})  # a larger pool may open another one
    pid = "SELECT pg_backend_pid()"
    before = twin.query(pid)
    coordinator.advance(0)
    with pytest.raises(TransactionPending), twin.transaction(timeout=0.1) as block:
        block.execute(TAKE, (1, "alice"))
    assert twin.query(pid) == before
    coordinator.advance()
    with pytest.raises(ZeroDivisionError), twin.transaction() as block:
        block.execute(TAKE, (1, "bob"))
        raise ZeroDivisionError
    with pytest.raises(TransactionRolledBack), twin.transaction() as block:
        block.execute("NOTIFY news")
        block.execute(TAKE, (1, "bob"))
    with twin.transaction() as block:
        block.execute(TAKE, (1, "bob"))
    assert twin.query(pid) == before


def test_statements_that_psycopg_has_prepared_still_work(twin: Twin) -> None:
    for _ in range(8):  # psycopg prepares a statement that was run five times
        with twin.transaction() as block:
            block.execute(TAKE, (1, "alice"))
        with pytest.raises(ZeroDivisionError), twin.transaction() as block:
            block.execute(TAKE, (1, "alice"))
            raise ZeroDivisionError


@pytest.mark.parametrize("autocommit", [True, False])
def test_a_connection_keeps_its_own_settings(server: Postgres, autocommit: bool) -> None:
    with (
        ScriptedCoordinator() as coordinator,
        Qsync(coordinator.address) as q,
        server.connect(autocommit=autocommit) as connection,
    ):
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.read_only = False
        with q.transaction(connection) as tx:
            level = tx.execute("SHOW transaction_isolation").fetchone()
            with pytest.raises(psycopg.Error), connection.transaction():  # a savepoint
                tx.execute("SELECT 1 / 0")
            with connection.transaction():
                tx.execute(TAKE, (1, "alice"))
        assert level == ("repeatable read",)
        assert isinstance(tx.result, Committed)
        assert connection.autocommit is autocommit
        assert connection.info.transaction_status is IDLE
        connection.read_only = True
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction), q.transaction(connection) as tx:
            tx.execute(TAKE, (1, "alice"))
    assert amounts(server)["alice"] == 99


def test_a_commit_in_the_block_is_detected(twin: Twin, server: Postgres) -> None:
    """The commit did not wait for a quorum, so the transaction must not report Committed."""
    with (
        pytest.raises(UsageError, match="ended the transaction") as raised,
        twin.transaction() as block,
    ):
        block.execute(TAKE, (30, "alice"))
        block.execute("COMMIT")
    assert "did not wait" in raised.value.hint
    with pytest.raises(UsageError, match="ended the transaction"), twin.transaction() as block:
        block.execute("COMMIT")
        block.execute("BEGIN")
        block.execute(TAKE, (30, "bob"))
    assert amounts(server) == {"alice": 70, "bob": 100}
    assert twin.query("SELECT 1") == [(1,)]


@pytest.mark.parametrize("reason", [ZeroDivisionError(), psycopg.Rollback()], ids=repr)
def test_an_exception_after_a_commit_in_the_block(
    twin: Twin, server: Postgres, reason: Exception
) -> None:
    """RolledBack would be wrong, and the outcome is unknown. Nothing is rolled back."""
    raised = pytest.raises(type(reason))
    with raised as committed, twin.transaction() as block:
        block.execute(TAKE, (30, "alice"))
        block.execute("COMMIT")
        raise reason
    assert block.tx.outcome is None
    assert "did not wait for a quorum" in committed.value.__notes__[-1]
    with raised as begun, twin.transaction() as block:
        block.execute(TAKE, (30, "alice"))
        block.execute("COMMIT; BEGIN")
        block.execute(TAKE, (30, "bob"))
        raise reason
    assert block.tx.outcome is None
    assert "did not wait for a quorum" in begun.value.__notes__[-1]
    assert amounts(server) == {"alice": 40, "bob": 100}
    assert twin.query("SELECT 1") == [(1,)]


def test_a_rollback_of_an_outer_transaction_reaches_it(
    server: Postgres, coordinator: ScriptedCoordinator
) -> None:
    """As through psycopg's transaction()."""
    with Qsync(coordinator.address) as q, server.connect() as one, server.connect() as other:
        with other.transaction() as outer:
            other.execute(TAKE, (30, "bob"))
            with q.transaction(one) as tx:
                tx.execute(TAKE, (30, "alice"))
                raise psycopg.Rollback(outer)
            raise AssertionError("it was swallowed")
        assert isinstance(tx.outcome, RolledBack)
        with q.transaction(one) as tx, one.transaction() as savepoint:
            tx.execute(TAKE, (30, "alice"))
            raise psycopg.Rollback(savepoint)
        assert isinstance(tx.result, Committed)
    assert amounts(server) == {"alice": 100, "bob": 100}


def test_a_connection_in_use_is_refused_and_left_alone(server: Postgres) -> None:
    with Qsync("127.0.0.1:1") as q, server.connect(autocommit=False) as connection:
        connection.execute(TAKE, (30, "alice"))
        with pytest.raises(UsageError, match="in a transaction already"), q.transaction(connection):
            raise AssertionError
        assert connection.info.transaction_status is TransactionStatus.INTRANS
        connection.commit()
        with (
            connection.pipeline(),
            pytest.raises(UsageError, match="pipeline"),
            q.transaction(connection),
        ):
            raise AssertionError
        wrong: list[Any] = [psycopg.AsyncConnection(connection.pgconn), "dsn", None]
        for other in wrong:
            with pytest.raises(UsageError, match="expected a psycopg"), q.transaction(other):
                raise AssertionError
        never: Any = "never"
        with pytest.raises(UsageError, match="invalid wait"), q.transaction(connection, wait=never):
            raise AssertionError
    assert amounts(server)["alice"] == 70


def test_a_transaction_is_used_once_and_in_its_block(twin: Twin) -> None:
    with twin.transaction() as block:
        with pytest.raises(UsageError, match="no outcome"):
            _ = block.tx.result
        with pytest.raises(UsageError, match="handle"):
            _ = block.tx.handle
    with pytest.raises(UsageError, match="not open"):
        block.execute("SELECT 1")


def test_a_copy_that_was_left_open_is_rolled_back(server: Postgres) -> None:
    with (
        ScriptedCoordinator() as coordinator,
        Qsync(coordinator.address) as q,
        server.connect() as connection,
    ):
        running = pytest.raises(TransactionRolledBack, match="still running")
        with running, q.transaction(connection) as tx:
            connection.pgconn.send_query(b"COPY account FROM STDIN")
        assert connection.closed
        assert tx.outcome is not None


def test_a_standby_is_read_like_a_primary(
    server: Postgres, standby_factory: Callable[..., Postgres]
) -> None:
    """A standby writes no WAL, so there is nothing to ask for, and its transactions have written
    nothing."""
    standby = standby_factory(server, "standby", server.dsn())
    with (
        Qsync("127.0.0.1:1") as q,
        standby.connect() as connection,
        q.transaction(connection) as tx,
    ):
        assert tx.execute("SELECT pg_is_in_recovery()").fetchone() == (True,)
    assert tx.result == Committed(0)
