"""psycopg and its pool with a prepared transaction: why we use PREPARE as plain SQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest
from two_phase import LOCAL, commit_sql, limbo, prepare_sql

from quorum_wal.pg_fixtures.postgres import Postgres

psycopg_pool = pytest.importorskip("psycopg_pool")


@pytest.fixture
def pool(server: Postgres) -> Iterator[psycopg_pool.ConnectionPool]:
    """With one connection."""
    with psycopg_pool.ConnectionPool(server.dsn(), min_size=1, max_size=1, open=False) as pool:
        yield pool


class Interrupted(Exception):
    """An error between PREPARE and its end."""


def interrupt_after_tpc_prepare(pool: psycopg_pool.ConnectionPool) -> None:
    with pool.connection() as connection:
        connection.tpc_begin("g")
        connection.execute("INSERT INTO t VALUES (1)")
        connection.tpc_prepare()
        raise Interrupted


def interrupt_after_plain_prepare(pool: psycopg_pool.ConnectionPool) -> None:
    with pool.connection() as connection:
        connection.execute("INSERT INTO t VALUES (1)")
        connection.execute(prepare_sql("g"))
        raise Interrupted


def test_an_error_after_tpc_prepare_poisons_the_connection_for_the_next_user(
    server: Postgres, pool: psycopg_pool.ConnectionPool
) -> None:
    """The server's session is idle, so the pool takes the connection back. The next user's
    statements run, but the commit() is refused: the work is lost. Then the pool closes the
    connection. The log has only a warning that an earlier rollback() failed."""
    with pytest.raises(Interrupted):
        interrupt_after_tpc_prepare(pool)
    assert limbo(server) == {"g"}
    server.execute("CREATE TABLE next_user (a int)")
    with pytest.raises(psycopg.ProgrammingError, match="two-phase"):
        insert_in_pool(pool)
    assert server.execute("SELECT count(*) FROM next_user") == [(0,)]
    insert_in_pool(pool)
    assert server.execute("SELECT count(*) FROM next_user") == [(1,)]
    server.execute("DROP TABLE next_user")


def insert_in_pool(pool: psycopg_pool.ConnectionPool) -> None:
    with pool.connection() as connection:
        connection.execute("INSERT INTO next_user VALUES (1)")


def test_tpc_prepare_of_a_failed_transaction_raises_nothing(server: Postgres) -> None:
    """The error appears when it is to be committed, and looks as if another client had finished
    it."""
    with closing(server.connect(autocommit=False)) as connection:
        connection.tpc_begin("g")
        with pytest.raises(psycopg.errors.DivisionByZero):
            connection.execute("SELECT 1/0")
        connection.tpc_prepare()
        assert limbo(server) == set()
        with pytest.raises(psycopg.errors.UndefinedObject):
            connection.tpc_commit()


def test_plain_sql_and_tpc_commit_of_a_gid_leave_a_clean_connection(
    server: Postgres, pool: psycopg_pool.ConnectionPool
) -> None:
    """tpc_commit(gid) sends no BEGIN before it, unlike execute() of a connection that is not in
    autocommit mode."""
    for _ in range(2):
        with pool.connection() as connection:
            connection.execute("SET LOCAL synchronous_commit = local")
            connection.execute("INSERT INTO t VALUES (1)")
            assert connection.execute(prepare_sql("g")).statusmessage == "PREPARE TRANSACTION"
            connection.tpc_commit("g")
    with pytest.raises(psycopg.errors.ActiveSqlTransaction), pool.connection() as connection:
        connection.execute(commit_sql("nobody's"))
    assert limbo(server) == set()


def test_an_error_after_a_plain_prepare_leaves_a_clean_connection(
    server: Postgres, pool: psycopg_pool.ConnectionPool
) -> None:
    with pytest.raises(Interrupted):
        interrupt_after_plain_prepare(pool)
    assert limbo(server) == {"g"}
    with pool.connection() as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    server.execute(commit_sql("g"), options=LOCAL)
