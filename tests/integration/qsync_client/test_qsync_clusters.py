"""The client on a real cluster: a quorum of safekeepers, and the coordinator in their proposer."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from accounts import TIMEOUT
from psycopg_pool import ConnectionPool
from qsync_world import QsyncWorld, qsync_arguments

from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.ports import free_port
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.qsync import (
    BarrierFailed,
    Committed,
    Pending,
    Qsync,
    RolledBack,
    TransactionPending,
    TransactionRefused,
)

SEGMENT_BYTES = 1 << 20
ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "docs/examples/money_transfer.py"
TRANSFERS = 60


@pytest.fixture(params=["replica", "logical"])
def world(
    request: pytest.FixtureRequest, quorum_cluster: Callable[..., QuorumCluster]
) -> QsyncWorld:
    """Ordinary commits do not wait for the quorum."""
    port = free_port()
    cluster = quorum_cluster(
        wal_seg_size=SEGMENT_BYTES,
        settings={"max_prepared_transactions": 20, "wal_level": request.param},
        proposer_arguments=qsync_arguments(port),
    )
    cluster.postgres.configure(synchronous_standby_names="")
    cluster.postgres.execute("CREATE TABLE accounts (name text PRIMARY KEY, amount int)")
    made = QsyncWorld(cluster, port)
    made.wait_deciding()
    return made


@pytest.fixture
def pool(world: QsyncWorld) -> Iterator[ConnectionPool[Any]]:
    made: ConnectionPool[Any] = ConnectionPool(
        world.postgres.dsn(),
        min_size=1,
        max_size=4,
        check=ConnectionPool.check_connection,
        timeout=TIMEOUT,
        open=True,
    )
    with made:
        yield made


@pytest.fixture
def q(world: QsyncWorld) -> Iterator[Qsync]:
    with Qsync(f"127.0.0.1:{world.port}", timeout=TIMEOUT) as made:
        yield made


def test_a_quorum_comes_and_goes(world: QsyncWorld, pool: ConnectionPool[Any], q: Qsync) -> None:
    for confirm in ("durable", "visible"):
        with q.transaction(pool, confirm=confirm) as tx:
            tx.execute("INSERT INTO accounts VALUES (%s, 1)", (confirm,))
        assert isinstance(tx.result, Committed)
        assert tx.gid is not None
        assert isinstance(decided(q, Pending(tx.gid, tx.result.lsn)), Committed)
    with pool.connection() as connection:
        assert q.barrier(connection) > 0

    world.lose_quorum()
    with pytest.raises(TransactionPending) as late, q.transaction(pool, timeout=0.5) as tx:
        tx.execute("INSERT INTO accounts VALUES ('late', 1)")
    options: dict[str, Any] = {"timeout": 0.5, "on_timeout": "rollback"}
    with pytest.raises(TransactionPending) as undone, q.transaction(pool, **options) as tx:
        tx.execute("INSERT INTO accounts VALUES ('undone', 1)")
    assert isinstance(q.outcome(late.value), Pending)
    with pool.connection() as connection, pytest.raises(BarrierFailed):
        q.barrier(connection, timeout=0.5)
    wait_until(lambda: is_refused(q, pool), TIMEOUT, "the coordinator to refuse")
    assert world.count() == 2

    world.find_quorum()
    assert isinstance(decided(q, late.value), Committed)  # by the janitor
    assert isinstance(decided(q, undone.value), RolledBack)
    # Transactions of is_refused() may fill the limbo. None is admitted until the janitor has ended
    # them.
    wait_until(lambda: not world.limbo(), TIMEOUT, "the janitor to finish those of is_refused()")
    wait_until(lambda: not is_refused(q, pool), TIMEOUT, "the coordinator to admit")
    with q.transaction(pool) as tx:
        tx.execute("INSERT INTO accounts VALUES ('undone', 2)")
    assert world.count() == 4


def decided(q: Qsync, pending: Pending | TransactionPending) -> Committed | RolledBack:
    """The first final outcome. It may be pending while a quorum lacks the newest WAL."""

    def outcome() -> Committed | RolledBack | None:
        found = q.outcome(pending)
        return None if isinstance(found, Pending) else found

    return wait_until(outcome, TIMEOUT, "an outcome")


def is_refused(q: Qsync, pool: ConnectionPool[Any]) -> bool:
    try:
        with q.transaction(pool, timeout=0.2) as tx:
            tx.execute("SELECT pg_current_xact_id()")
    except TransactionRefused:
        return True
    except TransactionPending:
        return False
    return False


def test_money_survives_everything(world: QsyncWorld) -> None:
    """The example of the docs, while its servers are killed one after the other."""
    postgres, proposer = world.postgres, world.cluster.proposer
    arguments = [sys.executable, str(EXAMPLE), f"127.0.0.1:{world.port}", postgres.dsn()]
    example = subprocess.Popen(
        [*arguments, str(TRANSFERS)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )

    def transfers() -> int:
        ((count,),) = postgres.execute("SELECT count(*) FROM transfer")
        return int(count)

    def wait_for_more() -> None:
        before = transfers()
        wait_until(
            lambda: transfers() > before or example.poll() is not None, TIMEOUT, "more transfers"
        )

    with example:
        wait_until(
            lambda: postgres.execute("SELECT to_regclass('transfer')") != [(None,)],
            TIMEOUT,
            "the example to begin",
        )
        for _ in range(2):
            wait_for_more()
            proposer.kill()
            proposer.start()
            wait_for_more()
            postgres.crash()
            postgres.start()
            wait_for_more()
            world.lose_quorum()
            world.find_quorum()
        output, _ = example.communicate(timeout=10 * TIMEOUT)
    assert example.returncode == 0
    assert "money: 10000 of 10000" in output
    ((count, sent),) = postgres.execute("SELECT count(*), count(DISTINCT id) FROM transfer")
    assert count == sent
    assert f"transfers done: {count}, refused: {TRANSFERS - count};" in output
