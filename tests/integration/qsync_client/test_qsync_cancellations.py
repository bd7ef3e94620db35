"""A task is cancelled at each moment: the one connection of its pool is idle again, and the task
can find out the outcome of the transaction."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

import pytest
import pytest_asyncio
from accounts import (
    SLOWLY,
    TAKE,
    TIMEOUT,
    amounts,
    finish,
    prepared,
    wait_until_slow,
)
from psycopg.pq import TransactionStatus
from psycopg_pool import AsyncConnectionPool
from scripted_coordinator import ScriptedCoordinator

from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.qsync import (
    AsyncQsync,
    AsyncTransaction,
    Committed,
    Pending,
    RolledBack,
    TransactionPending,
)
from quorum_wal.walproposer.qsync.answers import Outcome

Pool: TypeAlias = AsyncConnectionPool[Any]


@pytest_asyncio.fixture
async def pool(server: Postgres) -> AsyncIterator[Pool]:
    made: Pool = AsyncConnectionPool(
        server.dsn(), min_size=1, max_size=1, timeout=TIMEOUT, open=False
    )
    async with made:
        yield made


@pytest_asyncio.fixture
async def q(coordinator: ScriptedCoordinator) -> AsyncIterator[AsyncQsync]:
    async with AsyncQsync(coordinator.address) as made:
        yield made


async def assert_pool_is_clean(pool: Pool, q: AsyncQsync, coordinator: ScriptedCoordinator) -> None:
    async with pool.connection() as connection:
        assert connection.info.transaction_status is TransactionStatus.IDLE
    coordinator.advance()
    async with q.transaction(pool) as tx:
        await tx.execute(TAKE, (1, "bob"))
    assert isinstance(tx.result, Committed)


async def cancel_when(happens: Callable[[], object], work: Awaitable[None]) -> BaseException:
    """Cancel the task at that moment; returns its exception."""
    task = asyncio.ensure_future(work)
    await asyncio.to_thread(happens)
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as raised:
        await task
    return raised.value


async def run_out_when(happens: Callable[[], object], limit: asyncio.Timeout) -> None:
    """End the time of the block at that moment."""
    await asyncio.to_thread(happens)
    limit.reschedule(asyncio.get_running_loop().time())


def waiting(coordinator: ScriptedCoordinator) -> Callable[[], object]:
    return lambda: wait_until(
        lambda: "WAIT_LSN" in coordinator.verbs, TIMEOUT, "WAIT_LSN to be asked"
    )


async def test_in_the_block(
    server: Postgres, pool: Pool, q: AsyncQsync, coordinator: ScriptedCoordinator
) -> None:
    tx = q.transaction(pool)

    async def work() -> None:
        async with tx:
            await tx.execute(TAKE, (30, "alice"))
            await tx.execute("SELECT pg_sleep(60)")

    await cancel_when(lambda: wait_until_slow(server), work())
    assert isinstance(tx.outcome, RolledBack)
    await assert_pool_is_clean(pool, q, coordinator)
    assert amounts(server)["alice"] == 100


async def test_in_prepare(
    server: Postgres, pool: Pool, q: AsyncQsync, coordinator: ScriptedCoordinator
) -> None:
    tx = q.transaction(pool, timeout=60)

    async def work() -> None:
        async with tx:
            await tx.execute(TAKE, (30, "alice"))
            await tx.execute(SLOWLY, (60,))

    cancellation = await cancel_when(lambda: wait_until_slow(server), work())
    assert "ask for its outcome" in cancellation.__notes__[0]
    assert prepared(server) == []
    coordinator.outcome = Outcome.ROLLED_BACK
    assert isinstance(tx.outcome, Pending)
    assert isinstance(await q.outcome(tx.outcome), RolledBack)
    await assert_pool_is_clean(pool, q, coordinator)


async def test_while_it_waits(
    server: Postgres, pool: Pool, q: AsyncQsync, coordinator: ScriptedCoordinator
) -> None:
    coordinator.advance(0)
    tx = q.transaction(pool, timeout=60)

    async def work() -> None:
        async with tx:
            await tx.execute(TAKE, (30, "alice"))

    await cancel_when(waiting(coordinator), work())
    assert prepared(server) == [str(tx.gid)]
    speaker = coordinator.asked[-1].waiter
    left = lambda: speaker in coordinator.left  # noqa: E731
    await asyncio.to_thread(wait_until, left, TIMEOUT, "the port to see it leave")
    await assert_pool_is_clean(pool, q, coordinator)
    finish(server, str(tx.gid))
    assert amounts(server)["alice"] == 70


async def test_by_a_timeout_of_the_programs_own(
    server: Postgres, pool: Pool, q: AsyncQsync, coordinator: ScriptedCoordinator
) -> None:
    coordinator.advance(0)
    tx = q.transaction(pool, timeout=60)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(None) as limit, asyncio.TaskGroup() as tasks, tx:
            tasks.create_task(run_out_when(waiting(coordinator), limit))
            await tx.execute(TAKE, (30, "alice"))
    assert prepared(server) == [str(tx.gid)]
    await assert_pool_is_clean(pool, q, coordinator)


async def test_a_generator_that_is_closed(
    server: Postgres, pool: Pool, q: AsyncQsync, coordinator: ScriptedCoordinator
) -> None:
    async def take() -> AsyncGenerator[None]:
        async with q.transaction(pool) as tx:
            await tx.execute(TAKE, (30, "alice"))
            yield

    generator = take()
    await anext(generator)
    await generator.aclose()
    await assert_pool_is_clean(pool, q, coordinator)
    assert amounts(server)["alice"] == 100


async def test_at_every_turn_of_the_loop(
    server: Postgres, pool: Pool, q: AsyncQsync, coordinator: ScriptedCoordinator
) -> None:
    """Cancelled after 0, 1, 2, ... turns: the visible state matches the reported outcome, or the
    outcome is reported as unknown."""
    known = 0  # reported as final
    unsure: list[str] = []
    for turns in range(60):
        tx = q.transaction(pool)

        async def work(tx: AsyncTransaction = tx) -> None:
            async with tx:
                await tx.execute(TAKE, (1, "alice"))

        task = asyncio.ensure_future(work())
        for _ in range(turns):
            await asyncio.sleep(0.0005)
        task.cancel()
        (error,) = await asyncio.gather(task, return_exceptions=True)
        assert error is None or isinstance(error, asyncio.CancelledError | TransactionPending)
        known += isinstance(tx.outcome, Committed)
        unsure += [str(tx.gid)] if isinstance(tx.outcome, Pending) else []
        left_behind = prepared(server)
        assert set(left_behind) <= {str(tx.gid)}
        for gid in left_behind:
            finish(server, gid, "ROLLBACK")  # to release the lock of the row
            unsure.remove(gid)
    taken = 100 - amounts(server)["alice"]
    assert known <= taken <= known + len(unsure)
    await assert_pool_is_clean(pool, q, coordinator)
