"""Runs pgbench, and reads the latencies of its transactions."""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from quorum_wal.pg_fixtures.postgres import Postgres

# The per-transaction log must not compete for the disk that is measured.
LOG_DIRECTORY = Path("/dev/shm")
THREADS = 2
RUN_MARGIN_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class PgbenchResult:
    transactions: int
    tps: float
    p50_ms: float
    p99_ms: float


def initialize(postgres: Postgres, scale: int) -> None:
    """Creates the tables. The server generates their rows, which is faster."""
    postgres.pgbench("--initialize", "--init-steps=dtGvp", f"--scale={scale}", "--quiet")


def run(postgres: Postgres, clients: int, seconds: int) -> PgbenchResult:
    """Runs the TPC-B-like script without the updates of the small, contended tables (-N). Each
    transaction is an UPDATE, a SELECT and an INSERT."""
    directory = LOG_DIRECTORY if LOG_DIRECTORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="pgbench-", dir=directory) as logs:
        output = postgres.pgbench(
            "--skip-some-updates",
            "--protocol=prepared",
            "--no-vacuum",
            f"--jobs={min(clients, THREADS)}",
            f"--client={clients}",
            f"--time={seconds}",
            "--log",
            f"--log-prefix={logs}/log",
            timeout=seconds + RUN_MARGIN_SECONDS,
        )
        latencies_us = sorted(_latencies_us(Path(logs)))
    count = len(latencies_us)
    return PgbenchResult(
        transactions=count,
        tps=_tps(output),
        p50_ms=latencies_us[count // 2] / 1000,
        p99_ms=latencies_us[count * 99 // 100] / 1000,
    )


def _latencies_us(directory: Path) -> list[int]:
    """The third column of each log: client, transaction, latency in us, ..."""
    return [
        int(line.split(maxsplit=3)[2])
        for path in directory.iterdir()
        for line in path.read_text().splitlines()
    ]


def _tps(output: str) -> float:
    found = re.search(r"^tps = ([0-9.]+)", output, re.MULTILINE)
    assert found is not None, output
    return float(found[1])
