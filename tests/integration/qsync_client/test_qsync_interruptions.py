"""Ctrl-C, and a generator that is closed: no connection is left inside a transaction, and the
caller can find out the outcome."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

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
from psycopg.pq import TransactionStatus
from psycopg_pool import ConnectionPool
from scripted_coordinator import ScriptedCoordinator

from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.qsync import Committed, Pending, Qsync, RolledBack
from quorum_wal.walproposer.qsync.answers import Outcome

Pool = ConnectionPool[psycopg.Connection[tuple[object, ...]]]


@pytest.fixture(autouse=True)
def default_sigint() -> Iterator[None]:
    """A process that a shell has started in the background ignores SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def pool(server: Postgres) -> Iterator[Pool]:
    with ConnectionPool(server.dsn(), min_size=1, max_size=1, timeout=TIMEOUT, open=True) as made:
        yield made


@pytest.fixture
def q(coordinator: ScriptedCoordinator) -> Iterator[Qsync]:
    with Qsync(coordinator.address) as made:
        yield made


def assert_pool_is_clean(pool: Pool, q: Qsync, coordinator: ScriptedCoordinator) -> None:
    """The one connection of the pool is idle again, and the next transaction on it commits."""
    with pool.connection() as connection:
        assert connection.info.transaction_status is TransactionStatus.IDLE
    coordinator.advance()
    with q.transaction(pool) as tx:
        tx.execute(TAKE, (1, "bob"))
    assert isinstance(tx.result, Committed)


def press_ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def wait_for_wait(coordinator: ScriptedCoordinator) -> None:
    wait_until(lambda: "WAIT_LSN" in coordinator.verbs, TIMEOUT, "WAIT_LSN to be asked")


# ---- Ctrl-C


def test_ctrl_c_in_the_block(
    server: Postgres, pool: Pool, q: Qsync, coordinator: ScriptedCoordinator
) -> None:
    def interrupt() -> None:
        wait_until_slow(server)
        press_ctrl_c()

    with pytest.raises(KeyboardInterrupt), meanwhile(interrupt), q.transaction(pool) as tx:
        tx.execute(TAKE, (30, "alice"))
        tx.execute("SELECT pg_sleep(60)")
    assert isinstance(tx.outcome, RolledBack)
    assert amounts(server)["alice"] == 100
    assert_pool_is_clean(pool, q, coordinator)


def test_ctrl_c_in_prepare(
    server: Postgres, pool: Pool, q: Qsync, coordinator: ScriptedCoordinator
) -> None:
    def interrupt() -> None:
        wait_until_slow(server)
        press_ctrl_c()

    interrupted = pytest.raises(KeyboardInterrupt)
    with interrupted as raised, meanwhile(interrupt), q.transaction(pool, timeout=60) as tx:
        tx.execute(TAKE, (30, "alice"))
        tx.execute(SLOWLY, (60,))
    assert "ask for its outcome" in raised.value.__notes__[0]
    assert isinstance(tx.outcome, Pending)
    assert prepared(server) == []  # psycopg has cancelled it
    coordinator.outcome = Outcome.ROLLED_BACK
    assert isinstance(q.outcome(tx.outcome), RolledBack)
    assert_pool_is_clean(pool, q, coordinator)


def test_ctrl_c_while_it_waits(
    server: Postgres, pool: Pool, q: Qsync, coordinator: ScriptedCoordinator
) -> None:
    coordinator.advance(0)

    def interrupt() -> None:
        wait_for_wait(coordinator)
        press_ctrl_c()

    interrupted = pytest.raises(KeyboardInterrupt)
    with interrupted as raised, meanwhile(interrupt), q.transaction(pool, timeout=60) as tx:
        tx.execute(TAKE, (30, "alice"))
    assert str(tx.gid) in raised.value.__notes__[0]
    assert prepared(server) == [str(tx.gid)]
    assert isinstance(tx.outcome, Pending)
    speaker = coordinator.asked[-1].waiter
    wait_until(lambda: speaker in coordinator.left, TIMEOUT, "the port to see it leave")
    assert q.outcome(tx.outcome) == tx.outcome
    assert_pool_is_clean(pool, q, coordinator)
    finish(server, str(tx.gid))
    assert amounts(server)["alice"] == 70


def test_ctrl_c_while_a_handle_waits(
    server: Postgres, pool: Pool, q: Qsync, coordinator: ScriptedCoordinator
) -> None:
    coordinator.advance(0)
    with q.transaction(pool, wait="submit") as tx:
        tx.execute(TAKE, (30, "alice"))

    def interrupt() -> None:
        wait_for_wait(coordinator)
        press_ctrl_c()

    with pytest.raises(KeyboardInterrupt), meanwhile(interrupt):
        tx.handle.wait(60)
    assert_pool_is_clean(pool, q, coordinator)
    assert isinstance(tx.handle.wait(), Committed)
    assert amounts(server)["alice"] == 70


def test_a_generator_that_is_closed(
    server: Postgres, pool: Pool, q: Qsync, coordinator: ScriptedCoordinator
) -> None:
    def take() -> Iterator[None]:
        with q.transaction(pool) as tx:
            tx.execute(TAKE, (30, "alice"))
            yield

    generator = take()
    next(generator)
    del generator
    assert amounts(server)["alice"] == 100
    assert_pool_is_clean(pool, q, coordinator)
