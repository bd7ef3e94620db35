"""wait="submit": the outcome of a handle if the primary or the pool changed before wait()."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import Thread
from typing import Any

import psycopg
import pytest
from accounts import (
    OWNER,
    SLOWLY,
    TAKE,
    TIMEOUT,
    amounts,
    finish,
    meanwhile,
    prepared,
    wait_until_slow,
)
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout
from scripted_coordinator import ScriptedCoordinator
from twins import POOL_SIZE, Twin

from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.proxy import Direction, TcpProxy
from quorum_wal.pg_fixtures.standby import wait_replayed
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.qsync import (
    AsyncQsync,
    Committed,
    Pending,
    Qsync,
    RolledBack,
    TransactionPending,
    TransactionRolledBack,
    UsageError,
)
from quorum_wal.walproposer.qsync.answers import Outcome

NOBODY = "nobody"  # a name that no standby has
LATER = {"wait": "submit", "on_timeout": "rollback"}


# ---- a primary that was replaced


@contextmanager
def replaced(server: Postgres, standby: Postgres) -> Iterator[None]:
    """The primary is lost, and the standby is promoted but refuses client writes."""
    server.stop("immediate")
    try:
        assert standby.execute("SELECT pg_promote(true, 60)") == [(True,)]
        standby.configure(default_transaction_read_only=True)
        yield
    finally:
        server.start()


@pytest.mark.parametrize("is_seen", [True, False])
def test_a_new_primary_rolls_back_nothing_for_a_handle(
    make_twin: Callable[..., Twin],
    server: Postgres,
    coordinator: ScriptedCoordinator,
    standby_factory: Callable[..., Postgres],
    is_seen: bool,
) -> None:
    """The transaction was committed and visible before the failover, and the new primary has only
    its PREPARE, which will be committed. A client cannot distinguish this from a transaction that
    was never committed."""
    with TcpProxy("127.0.0.1", server.port) as replication:
        standby = standby_factory(server, "standby", server.dsn(port=replication.port))
        hosts = {"host": "127.0.0.1,127.0.0.1", "port": f"{server.port},{standby.port}"}
        twin = make_twin(**hosts)
        with twin.transaction(**LATER) as block:
            block.execute(TAKE, (30, "alice"))
        wait_replayed(standby, server.flush_lsn(), TIMEOUT)
        replication.cut()
        if is_seen:
            finish(server, str(block.tx.gid))
            assert amounts(server)["alice"] == 70
        coordinator.advance(0)
        with replaced(server, standby):
            with pytest.raises(TransactionPending, match="has been replaced"):
                block.wait(0.2)
            assert prepared(standby) == [str(block.tx.gid)]
            coordinator.advance()  # it is on a quorum, so committing it there is right
            assert isinstance(block.wait(), Committed)
            assert amounts(standby)["alice"] == 70


def test_a_handle_rolls_back_where_it_was_prepared(
    twin: Twin, server: Postgres, coordinator: ScriptedCoordinator
) -> None:
    coordinator.advance(0)
    coordinator.outcome = Outcome.ROLLED_BACK
    with twin.transaction(**LATER) as block:
        block.execute(TAKE, (30, "alice"))
    with pytest.raises(TransactionRolledBack):
        block.wait(0.2)
    assert isinstance(block.tx.outcome, RolledBack)
    assert prepared(server) == []


# ---- connections


def test_a_handle_on_another_connection_of_the_pool(
    make_twin: Callable[..., Twin], server: Postgres
) -> None:
    """A different connection is not taken for that of a pooler: the role is set, and no standby is
    waited for."""
    server.configure(synchronous_standby_names=NOBODY)
    twin = make_twin(user="login", dbname="postgres")
    for _ in range(2):
        with twin.transaction(wait="submit") as block:
            block.execute(f"SET LOCAL ROLE {OWNER}")
            block.execute(TAKE, (30, "alice"))
            ((pid,),) = block.execute("SELECT pg_backend_pid()")
        with ExitStack() as taken:
            while taken.enter_context(twin.borrow()).info.backend_pid != pid:
                pass
            assert isinstance(block.wait(), Committed)
    assert amounts(server)["alice"] == 40
    assert twin.query("SHOW synchronous_commit") == [("on",)]


def test_a_pool_without_a_free_connection_leaves_it_pending(twin: Twin, server: Postgres) -> None:
    """PoolTimeout would mean that nothing has happened."""
    with twin.transaction(wait="submit") as block:
        block.execute(TAKE, (30, "alice"))
    pool: Any = twin.pool  # type: ignore[attr-defined]
    pool.timeout = 0.1
    with ExitStack() as taken:
        for _ in range(POOL_SIZE):
            taken.enter_context(twin.borrow())
        with pytest.raises(TransactionPending, match="no connection") as raised:
            block.wait()
    assert isinstance(raised.value.__cause__, PoolTimeout)
    assert isinstance(block.tx.outcome, Pending)
    assert prepared(server) == [str(block.tx.gid)]
    assert isinstance(block.wait(), Committed)
    assert amounts(server)["alice"] == 70


def test_a_pool_that_was_closed_leaves_it_pending(
    server: Postgres, coordinator: ScriptedCoordinator
) -> None:
    pool: ConnectionPool[Any] = ConnectionPool(server.dsn(), min_size=1, open=True)
    with Qsync(coordinator.address) as q:
        with pool, q.transaction(pool, wait="submit") as tx:
            tx.execute(TAKE, (30, "alice"))
        with pytest.raises(TransactionPending) as raised:
            tx.handle.wait()
    assert isinstance(raised.value.__cause__, PoolClosed)
    assert prepared(server) == [str(tx.gid)]


def test_without_a_quorum_a_handle_takes_no_connection(
    twin: Twin, coordinator: ScriptedCoordinator
) -> None:
    coordinator.advance(0)
    with twin.transaction(wait="submit") as block:
        block.execute(TAKE, (30, "alice"))
    with ExitStack() as taken:
        for _ in range(POOL_SIZE):
            taken.enter_context(twin.borrow())
        with pytest.raises(TransactionPending, match="did not confirm it in time"):
            block.wait(0.1)


# ---- the answer of PREPARE was lost


def test_a_handle_without_the_position_of_prepare_asks_for_its_outcome(
    twin: Twin, server: Postgres, wire: TcpProxy, coordinator: ScriptedCoordinator
) -> None:
    def lose_the_answer() -> None:
        wait_until_slow(server)
        wire.drop(Direction.TO_CLIENT)
        wait_until(lambda: prepared(server), TIMEOUT, "PREPARE to end")
        wire.cut()

    with (
        pytest.raises(TransactionPending) as raised,
        meanwhile(lose_the_answer),
        twin.transaction(wait="submit", timeout=2) as block,
    ):
        block.execute(TAKE, (30, "alice"))
        block.execute(SLOWLY, (0.5,))
    assert raised.value.outcome.lsn == 0
    wire.restore()
    with pytest.raises(TransactionPending, match="answer of PREPARE was lost"):
        block.wait(0.1)
    finish(server, str(block.tx.gid))
    coordinator.outcome = Outcome.COMMITTED
    assert isinstance(block.wait(), Committed)
    assert "WAIT_LSN" not in coordinator.verbs


# ---- two that wait


def test_two_threads_do_not_wait_for_one_handle(
    server: Postgres, coordinator: ScriptedCoordinator
) -> None:
    coordinator.advance(0)
    with Qsync(coordinator.address) as q, server.connect() as connection:
        with q.transaction(connection, wait="submit") as tx:
            tx.execute(TAKE, (30, "alice"))
        first = Thread(target=lambda: tx.handle.wait(TIMEOUT))
        first.start()
        wait_until(lambda: "WAIT_LSN" in coordinator.verbs, TIMEOUT, "WAIT_LSN to be asked")
        with pytest.raises(UsageError, match="another thread or task"):
            tx.handle.wait()
        coordinator.advance()
        first.join()
        assert isinstance(tx.handle.wait(), Committed)
    assert coordinator.verbs.count("WAIT_LSN") == 2
    assert amounts(server)["alice"] == 70


async def test_two_tasks_do_not_wait_for_one_handle(
    server: Postgres, coordinator: ScriptedCoordinator
) -> None:
    connection = await psycopg.AsyncConnection.connect(server.dsn(), autocommit=True)
    async with connection, AsyncQsync(coordinator.address) as q:
        async with q.transaction(connection, wait="submit") as tx:
            await tx.execute(TAKE, (30, "alice"))
        waits = [tx.handle.wait(), tx.handle.wait()]
        one, other = await asyncio.gather(*waits, return_exceptions=True)
    assert isinstance(one, Committed)
    assert isinstance(other, UsageError)
