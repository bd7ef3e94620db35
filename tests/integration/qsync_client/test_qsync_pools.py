"""Pools and connections with settings of a program: the settings are kept, and the outcome is the
same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import psycopg
import pytest
from accounts import TAKE, amounts, prepared
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row
from scripted_coordinator import ScriptedCoordinator
from twins import Twin

from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.qsync import Committed, Qsync, TransactionPending
from quorum_wal.walproposer.qsync.answers import Outcome

POOLS: dict[str, dict[str, Any]] = {
    "it resets what comes back": {"resets": True},
    "none is kept": {"is_null": True},
    "rows are dicts": {"row_factory": dict_row},
    "all is prepared": {"prepare_threshold": 0},
    "nothing is prepared": {"prepare_threshold": None},
    "autocommit": {"autocommit": True, "resets": True},
}


@pytest.mark.parametrize("pool", POOLS.values(), ids=POOLS)
def test_each_outcome_with_a_pool(
    make_twin: Callable[..., Twin],
    server: Postgres,
    coordinator: ScriptedCoordinator,
    pool: Mapping[str, Any],
) -> None:
    twin = make_twin(pool)
    for _ in range(2):
        with twin.transaction() as block:
            block.execute(TAKE, (10, "alice"))
            assert len(block.execute("SELECT amount FROM account")) == 2
        assert isinstance(block.tx.result, Committed)
        with pytest.raises(ZeroDivisionError), twin.transaction() as block:
            block.execute(TAKE, (10, "alice"))
            raise ZeroDivisionError
        with pytest.raises(psycopg.errors.UniqueViolation), twin.transaction() as block:
            block.execute("INSERT INTO account VALUES ('bob', 1)")
        with twin.transaction(wait="submit") as block:
            block.execute(TAKE, (10, "alice"))
        assert isinstance(block.wait(), Committed)
    coordinator.advance(0)
    coordinator.outcome = Outcome.ROLLED_BACK
    with pytest.raises(TransactionPending), twin.transaction(timeout=0.1) as block:
        block.execute(TAKE, (10, "alice"))
    assert prepared(server) == [str(block.tx.gid)]
    assert amounts(server) == {"alice": 60, "bob": 100}
    with twin.borrow() as connection:
        assert connection.info.transaction_status is TransactionStatus.IDLE


@pytest.mark.parametrize("is_left_open", [False, True])
def test_a_named_cursor(
    server: Postgres, coordinator: ScriptedCoordinator, is_left_open: bool
) -> None:
    """The cursor lives in the transaction, and ends with it."""
    with Qsync(coordinator.address) as q, server.connect() as connection:
        with q.transaction(connection) as tx:
            cursor = tx.cursor("names", scrollable=True)
            cursor.execute("SELECT name FROM account ORDER BY name")
            assert cursor.fetchone() == ("alice",)
            tx.execute(TAKE, (10, "alice"))
            if not is_left_open:
                cursor.close()
        assert isinstance(tx.result, Committed)
        cursor.close()
        assert connection.info.transaction_status is TransactionStatus.IDLE
    assert amounts(server)["alice"] == 90


def test_a_pipeline_and_a_copy_in_the_block(
    server: Postgres, coordinator: ScriptedCoordinator
) -> None:
    with Qsync(coordinator.address) as q, server.connect() as connection:
        with q.transaction(connection) as tx:
            with connection.pipeline():
                for _ in range(3):
                    tx.execute(TAKE, (10, "alice"))
            with tx.cursor().copy("COPY account FROM STDIN") as copy:
                copy.write_row(("eve", 1))
        assert isinstance(tx.result, Committed)
    assert amounts(server) == {"alice": 70, "bob": 100, "eve": 1}
