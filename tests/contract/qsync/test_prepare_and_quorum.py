"""PREPARE TRANSACTION, COMMIT PREPARED and ROLLBACK PREPARED while commits wait for an absent
standby."""

from __future__ import annotations

import pytest
from two_phase import (
    BUSY,
    LOCAL,
    Waiting,
    commit_sql,
    limbo,
    make_commits_wait,
    prepare,
    prepare_sql,
    rollback_sql,
    sqlstate_of,
)

from quorum_wal.pg_fixtures.postgres import Postgres

STATEMENT_TIMEOUT_SECONDS = 0.2
TIMED_OUT = "57014"


@pytest.fixture
def no_quorum(server: Postgres) -> Postgres:
    make_commits_wait(server)
    return server


def prepared_waiting(server: Postgres, gid: str, *before: str) -> Waiting:
    """It is prepared, and waits for the standby."""
    waiting = Waiting(server, prepare_sql(gid), *before, "BEGIN", "INSERT INTO t VALUES (1)")
    waiting.wait_for("SyncRep")
    return waiting


def test_a_prepare_that_waits_is_listed_and_busy_until_it_is_cancelled(no_quorum: Postgres) -> None:
    """It is in the view while it waits, and can be neither committed nor rolled back. A cancelled
    wait is reported as success: the tag is that of a prepared transaction, with a warning."""
    waiting = prepared_waiting(no_quorum, "g")
    assert limbo(no_quorum) == {"g"}
    for statement in (commit_sql("g"), rollback_sql("g")):
        assert sqlstate_of(lambda s=statement: no_quorum.execute(s, options=LOCAL)) == BUSY
    waiting.cancel()
    waiting.wait_ended()
    assert (waiting.error, waiting.tag) == (None, "PREPARE TRANSACTION")
    assert len(waiting.warnings) == 1
    assert limbo(no_quorum) == {"g"}
    no_quorum.execute(rollback_sql("g"), options=LOCAL)
    assert limbo(no_quorum) == set()


def test_a_session_of_local_commits_prepares_and_finishes_at_once(no_quorum: Postgres) -> None:
    """SET LOCAL is enough for PREPARE, which runs inside the transaction."""
    with no_quorum.connect() as connection:
        for gid in ("a", "b"):
            connection.execute("BEGIN")
            connection.execute("SET LOCAL synchronous_commit = local")
            connection.execute("INSERT INTO t VALUES (1)")
            connection.execute(prepare_sql(gid))
    no_quorum.execute(commit_sql("a"), options=LOCAL)
    no_quorum.execute(rollback_sql("b"), options=LOCAL)
    assert limbo(no_quorum) == set()


@pytest.mark.parametrize("finish_sql", [commit_sql, rollback_sql])
def test_both_ends_wait_too(no_quorum: Postgres, finish_sql: object) -> None:
    """The gid leaves the view only when the wait has ended; until then it is busy."""
    assert callable(finish_sql)
    prepare(no_quorum, "g")
    waiting = Waiting(no_quorum, finish_sql("g"))
    waiting.wait_for("SyncRep")
    assert limbo(no_quorum) == {"g"}
    assert sqlstate_of(lambda: no_quorum.execute(finish_sql("g"), options=LOCAL)) == BUSY
    waiting.cancel()
    waiting.wait_ended()
    assert waiting.error is None
    assert limbo(no_quorum) == set()


def test_statement_timeout_does_not_end_the_wait_of_prepare(no_quorum: Postgres) -> None:
    waiting = prepared_waiting(
        no_quorum, "g", f"SET statement_timeout = '{STATEMENT_TIMEOUT_SECONDS}s'"
    )
    waiting.wait_lasting(5 * STATEMENT_TIMEOUT_SECONDS)
    assert waiting.wait_event == "SyncRep"
    waiting.cancel()
    waiting.wait_ended()
    assert waiting.tag == "PREPARE TRANSACTION"


@pytest.mark.parametrize("finish_sql", [commit_sql, rollback_sql])
def test_statement_timeout_ends_the_wait_of_both_ends(
    no_quorum: Postgres, finish_sql: object
) -> None:
    assert callable(finish_sql)
    prepare(no_quorum, "g")
    waiting = Waiting(
        no_quorum, finish_sql("g"), f"SET statement_timeout = '{STATEMENT_TIMEOUT_SECONDS}s'"
    )
    waiting.wait_ended()
    assert limbo(no_quorum) == set()
    assert (waiting.sqlstate, len(waiting.warnings)) == (None, 1)


def test_a_failed_transaction_prepares_nothing_and_says_so_in_the_tag_alone(
    server: Postgres,
) -> None:
    with server.connect() as connection:
        connection.execute("BEGIN")
        assert sqlstate_of(lambda: connection.execute("SELECT 1/0")) == "22012"
        assert connection.execute(prepare_sql("g")).statusmessage == "ROLLBACK"
        assert connection.execute(prepare_sql("g")).statusmessage == "ROLLBACK"  # outside a block
    assert limbo(server) == set()


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("NOTIFY n", "cannot PREPARE a transaction that has executed LISTEN, UNLISTEN, or NOTIFY"),
        (
            "CREATE TEMPORARY TABLE temporary (a int)",
            "cannot PREPARE a transaction that has operated on temporary objects",
        ),
    ],
)
def test_the_error_names_what_postgres_refuses(
    server: Postgres, statement: str, reason: str
) -> None:
    with server.connect() as connection:
        connection.execute("BEGIN")
        connection.execute(statement)
        with pytest.raises(Exception, match=reason) as refused:
            connection.execute(prepare_sql("g"))
    assert getattr(refused.value, "sqlstate", None) == "0A000"
    assert limbo(server) == set()
