"""The example of the docs runs unchanged."""

from __future__ import annotations

import runpy
import subprocess
import sys
import uuid
from pathlib import Path

from accounts import TIMEOUT, meanwhile
from psycopg_pool import ConnectionPool
from scripted_coordinator import ScriptedCoordinator

from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.qsync import Qsync

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "docs/examples/money_transfer.py"


def test_the_example_moves_money(server: Postgres, coordinator: ScriptedCoordinator) -> None:
    server.execute("CREATE DATABASE bank")
    dsn = server.dsn(dbname="bank")
    arguments = [sys.executable, str(EXAMPLE), coordinator.address, dsn, "30"]
    ended = subprocess.run(arguments, capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert ended.returncode == 0, ended.stderr
    assert "money: 10000 of 10000" in ended.stdout
    ((done,),) = server.execute("SELECT count(*) FROM transfer", dbname="bank")
    assert f"transfers done: {done}, refused: {30 - done}" in ended.stdout
    assert done > 0


def test_a_transfer_waits_until_a_new_primary_is_open(
    server: Postgres, coordinator: ScriptedCoordinator
) -> None:
    """After a failover the primary refuses writes (25006) until the prepared transactions are
    committed."""
    example = runpy.run_path(str(EXAMPLE))
    server.execute("CREATE DATABASE closed")
    server.execute(example["SCHEMA"], dbname="closed")
    server.execute("INSERT INTO account VALUES ('a', 10), ('b', 10)", dbname="closed")
    with (
        ConnectionPool(server.dsn(dbname="closed"), open=True) as pool,
        Qsync(coordinator.address) as q,
    ):

        def open_after_two_tries() -> None:
            wait_until(lambda: pool.get_stats().get("requests_num", 0) > 2, TIMEOUT, "a second try")
            server.configure(default_transaction_read_only=None)

        server.configure(default_transaction_read_only=True)
        with meanwhile(open_after_two_tries):
            example["transfer"](q, pool, uuid.uuid4(), "a", "b", 4)
    rows = server.execute("SELECT name, amount FROM account ORDER BY name", dbname="closed")
    assert rows == [("a", 6), ("b", 14)]
