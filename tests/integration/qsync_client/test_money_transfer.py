"""The example of the docs runs as it stands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from scripted_coordinator import ScriptedCoordinator

from pg_fixtures.postgres import Postgres

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
