"""Concurrent use: many threads, forked processes, several coordinators, SQLAlchemy and Django."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import django
import psycopg
import pytest
import sqlalchemy
from accounts import TAKE, TIMEOUT, amounts, prepared
from django.conf import settings as django_settings
from psycopg.pq import TransactionStatus
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from scripted_coordinator import ScriptedCoordinator

from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.qsync import AsyncQsync, Committed, Qsync, TransactionPending, UsageError
from quorum_wal.walproposer.qsync.question import Question

Pool: TypeAlias = ConnectionPool[Any]
CLIENTS = 6
TURNS = 15


@pytest.fixture
def pool(server: Postgres) -> Iterator[Pool]:
    made: Pool = ConnectionPool(
        server.dsn(),
        min_size=1,
        max_size=CLIENTS,
        timeout=TIMEOUT,
        close_returns=True,  # for SQLAlchemy, which closes the connections that it took
        open=True,
    )
    with made:
        yield made


@pytest.fixture
def q(coordinator: ScriptedCoordinator) -> Iterator[Qsync]:
    with Qsync(coordinator.address, timeout=TIMEOUT) as made:
        yield made


def test_threads_share_one_client(
    server: Postgres, pool: Pool, q: Qsync, coordinator: ScriptedCoordinator
) -> None:
    """Each thread waits on its own connection; few of them ask for admission."""
    server.execute("INSERT INTO account SELECT i::text, 100 FROM generate_series(1, 6) i")

    def spend(client: int) -> None:
        for _ in range(TURNS):
            with q.transaction(pool) as tx:
                tx.execute(TAKE, (1, str(client)))
            assert isinstance(tx.result, Committed)

    with ThreadPoolExecutor(CLIENTS) as threads:
        list(threads.map(spend, range(1, CLIENTS + 1)))
    spent = {name: left for name, left in amounts(server).items() if name.isdecimal()}
    assert set(spent.values()) == {100 - TURNS}
    assert coordinator.connections <= CLIENTS
    assert coordinator.verbs.count("WAIT_LSN") == 2 * CLIENTS * TURNS
    assert coordinator.verbs.count("ADMIT") < CLIENTS * TURNS


def test_tasks_share_one_client(server: Postgres, coordinator: ScriptedCoordinator) -> None:
    """A second event loop then uses the client, on its own connections."""
    server.execute("INSERT INTO account SELECT i::text, 100 FROM generate_series(1, 6) i")
    q = AsyncQsync(coordinator.address, timeout=TIMEOUT)

    async def main() -> None:
        pool: AsyncConnectionPool[Any] = AsyncConnectionPool(
            server.dsn(), min_size=1, max_size=3, timeout=TIMEOUT, open=False
        )
        async with pool:

            async def spend(client: int) -> None:
                for _ in range(TURNS):
                    async with q.transaction(pool) as tx:
                        await tx.execute(TAKE, (1, str(client)))
                    assert isinstance(tx.result, Committed)

            await asyncio.gather(*map(spend, range(1, CLIENTS + 1)))

    for _ in range(2):
        asyncio.run(main())
    q.close()
    spent = {name: left for name, left in amounts(server).items() if name.isdecimal()}
    assert set(spent.values()) == {100 - 2 * TURNS}


def test_a_forked_process_uses_its_own_connections(
    server: Postgres, q: Qsync, coordinator: ScriptedCoordinator
) -> None:
    def spend(name: str) -> None:
        with server.connect() as connection, q.transaction(connection) as tx:
            tx.execute(TAKE, (1, name))
        assert isinstance(tx.result, Committed)

    spend("alice")
    (first,) = {question.waiter for question in coordinator.asked}
    child = os.fork()
    if child == 0:
        try:
            spend("bob")
            q.close()
            os._exit(0)
        except BaseException as error:
            sys.stderr.write(repr(error))
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert first not in coordinator.left  # the child has not ended our connections
    spend("alice")
    assert coordinator.asked[-1].waiter == first
    assert amounts(server) == {"alice": 98, "bob": 99}


def test_the_coordinator_that_leads_is_found(server: Postgres, pool: Pool) -> None:
    """Of three coordinators one is down, and one does not lead; then another one leads."""

    def refuse(question: Question) -> bool:
        question.refuse("57P03", "does not lead")
        return True

    with ScriptedCoordinator() as one, ScriptedCoordinator() as other:
        one.script = refuse
        hosts = f"127.0.0.1:1,{one.address},{other.address}"
        with Qsync(hosts, timeout=TIMEOUT) as q:
            for _ in range(2):
                with q.transaction(pool) as tx:
                    tx.execute(TAKE, (1, "alice"))
                assert isinstance(tx.result, Committed)
                one.script, other.script = other.script, one.script
        assert {"ADMIT", "WAIT_LSN"} <= set(one.verbs) & set(other.verbs)
    assert amounts(server)["alice"] == 98


def test_a_lock_of_the_limbo_delays_only_transactions_that_need_it(
    server: Postgres, pool: Pool, q: Qsync, coordinator: ScriptedCoordinator
) -> None:
    """Plain transactions on the same pool commit at once, without a quorum."""
    coordinator.advance(0)
    with pytest.raises(TransactionPending), q.transaction(pool, timeout=0.1) as tx:
        tx.execute(TAKE, (30, "alice"))
    with pool.connection() as connection:
        connection.execute(TAKE, (1, "bob"))
    with pool.connection() as connection:
        connection.execute("SET LOCAL lock_timeout = '50ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            connection.execute(TAKE, (1, "alice"))
        connection.rollback()
    assert amounts(server) == {"alice": 100, "bob": 99}


# ---- other libraries


def test_sqlalchemy_on_the_same_pool(
    server: Postgres, pool: Pool, q: Qsync, coordinator: ScriptedCoordinator
) -> None:
    engine = sqlalchemy.create_engine(
        "postgresql+psycopg://", creator=pool.getconn, poolclass=sqlalchemy.pool.NullPool
    )

    take = sqlalchemy.text("UPDATE account SET amount = amount - 1 WHERE name = :name")
    for _ in range(3):
        with engine.begin() as theirs:
            theirs.execute(take, {"name": "bob"})
            with q.transaction(pool) as tx:  # on another connection, at the same time
                tx.execute(TAKE, (1, "alice"))
            busy: Any = theirs.connection.driver_connection
            with pytest.raises(UsageError, match="in a transaction"), q.transaction(busy):
                raise AssertionError
        coordinator.advance(0)
        with pytest.raises(TransactionPending), q.transaction(pool, timeout=0.1) as tx:
            tx.execute("INSERT INTO account VALUES ('eve', 1)")
        with engine.begin() as theirs:
            theirs.execute(take, {"name": "bob"})
        server.execute(f"ROLLBACK PREPARED '{tx.gid}'")
        coordinator.advance()
    with engine.connect() as theirs:
        driver = theirs.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        with q.transaction(driver) as tx:
            tx.execute(TAKE, (1, "alice"))
        rows = theirs.execute(sqlalchemy.text("SELECT amount FROM account ORDER BY name"))
        assert rows.scalars().all() == [96, 94]
    engine.dispose()


@pytest.fixture
def django_database(server: Postgres) -> Iterator[Any]:
    """Django's default database, with its own psycopg pool."""
    if not django_settings.configured:
        django_settings.configure(DATABASES={}, USE_TZ=True)
        django.setup()
    from django.db import connections

    connections.databases["default"] = connections.configure_settings(
        {
            "default": {
                "ENGINE": "django.db.backends.postgresql",
                "HOST": "127.0.0.1",
                "PORT": server.port,
                "USER": "postgres",
                "NAME": "postgres",
                "OPTIONS": {"pool": {"min_size": 1, "max_size": 3, "timeout": TIMEOUT}},
            }
        }
    )["default"]
    connection = connections["default"]
    yield connection
    connection.close()
    connection.close_pool()
    del connections["default"]


def test_django_on_the_same_pool(
    server: Postgres, django_database: Any, q: Qsync, coordinator: ScriptedCoordinator
) -> None:
    from django.db import transaction

    def take(name: str) -> None:
        with django_database.cursor() as cursor:
            cursor.execute(TAKE, [1, name])

    for _ in range(3):
        with transaction.atomic():
            take("bob")
            with q.transaction(django_database.pool) as tx:
                tx.execute(TAKE, (1, "alice"))
            assert isinstance(tx.result, Committed)
            refused = pytest.raises(UsageError, match="in a transaction")
            with refused, q.transaction(django_database.connection):
                raise AssertionError
            with pytest.raises(ZeroDivisionError), transaction.atomic():
                take("bob")
                raise ZeroDivisionError
        coordinator.advance(0)
        with (
            pytest.raises(TransactionPending),
            q.transaction(django_database.pool, timeout=0.1) as tx,
        ):
            tx.execute("INSERT INTO account VALUES ('eve', 1)")
        server.execute(f"ROLLBACK PREPARED '{tx.gid}'")
        coordinator.advance()
    assert amounts(server) == {"alice": 97, "bob": 97}
    # Its own connection, outside of atomic(), is in autocommit mode and remains so.
    with q.transaction(django_database.connection) as tx:
        tx.execute(TAKE, (1, "alice"))
    assert django_database.get_autocommit()
    assert django_database.connection.autocommit
    assert django_database.connection.info.transaction_status is TransactionStatus.IDLE
    take("bob")
    assert amounts(server) == {"alice": 96, "bob": 96}
    assert prepared(server) == []
