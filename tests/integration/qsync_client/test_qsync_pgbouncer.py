"""A client behind a real PgBouncer in transaction mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from accounts import TAKE, amounts, prepared
from pgbouncer import PgBouncer
from scripted_coordinator import ScriptedCoordinator
from twins import Twin

from quorum_wal.pg_fixtures.plugin import skip_if_unavailable
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.qsync import Committed, Qsync, RolledBack, TransactionPending, TransactionRolledBack
from quorum_wal.walproposer.qsync.answers import Outcome

#: PgBouncer knows a prepared statement of psycopg in one session only.
UNPREPARED = {"prepare_threshold": None}


@pytest.fixture
def bouncer(server: Postgres, tmp_path: Path) -> Iterator[PgBouncer]:
    with skip_if_unavailable():
        bouncer = PgBouncer(server, tmp_path / "bouncer")
    with bouncer:
        yield bouncer


@pytest.fixture
def pooled(make_twin: Callable[..., Twin], bouncer: PgBouncer) -> Twin:
    return make_twin(UNPREPARED, port=str(bouncer.port))


@pytest.mark.parametrize("wait", ["complete", "submit"])
def test_it_commits_on_any_session(
    pooled: Twin, server: Postgres, coordinator: ScriptedCoordinator, wait: str
) -> None:
    for _ in range(3):
        with pooled.transaction(wait=wait) as block:
            block.execute(TAKE, (10, "alice"))
        if wait == "submit":
            block.wait()
        assert isinstance(block.tx.result, Committed)
    assert amounts(server)["alice"] == 70
    assert prepared(server) == []
    assert coordinator.verbs.count("WAIT_LSN") == 6


def test_its_policy_rolls_back(
    pooled: Twin, server: Postgres, coordinator: ScriptedCoordinator
) -> None:
    coordinator.advance(0)
    coordinator.outcome = Outcome.ROLLED_BACK
    options = {"timeout": 0.2, "on_timeout": "rollback"}
    with pytest.raises(TransactionRolledBack), pooled.transaction(**options) as block:
        block.execute(TAKE, (30, "alice"))
    assert isinstance(block.tx.outcome, RolledBack)
    assert prepared(server) == []
    assert amounts(server)["alice"] == 100


def test_a_standby_behind_it_that_was_promoted_is_a_primary(
    server: Postgres,
    tmp_path: Path,
    coordinator: ScriptedCoordinator,
    standby_factory: Callable[..., Postgres],
) -> None:
    """PgBouncer reports in_hot_standby = on to its clients, as its first server did, and never
    changes it. Writes wait for the quorum nevertheless."""
    standby = standby_factory(server, "standby", server.dsn())
    with skip_if_unavailable():
        bouncer = PgBouncer(standby, tmp_path / "bouncer")
    with bouncer, Qsync(coordinator.address) as q, bouncer.connect() as connection:
        connection.prepare_threshold = None
        with q.transaction(connection) as tx:
            tx.execute("SELECT 1")
        assert tx.result == Committed(0)
        assert standby.execute("SELECT pg_promote(true, 60)") == [(True,)]
        standby.restart()  # its sessions end; clients get no new value
        with q.transaction(connection) as tx:
            tx.execute(TAKE, (30, "alice"))
            assert connection.pgconn.parameter_status(b"in_hot_standby") == b"on"
        assert tx.gid is not None
        assert isinstance(tx.result, Committed)
        assert "WAIT_LSN" in coordinator.verbs
        coordinator.advance(0)
        with pytest.raises(TransactionPending), q.transaction(connection, timeout=0.2) as tx:
            tx.execute(TAKE, (30, "alice"))
        assert amounts(standby)["alice"] == 70
