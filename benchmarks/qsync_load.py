"""`python -m benchmarks.qsync_load`: clients for the benchmark `qsync`, each one in a thread.

It connects, prints "ready", waits for a line, runs transactions for the given seconds, and prints
its measurements as JSON. The transaction is pgbench's without the small tables: an UPDATE, a SELECT
and an INSERT. They differ in their end:

    commit        COMMIT
    durable       qsync, until a quorum has COMMIT PREPARED
    visible       qsync, until it is visible
    two_phase     PREPARE and COMMIT PREPARED, without a coordinator
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import psycopg

from quorum_wal.qsync import Qsync
from quorum_wal.qsync.blocking_driver import run
from quorum_wal.qsync.coordinator_client import CoordinatorClient, Verdict
from quorum_wal.qsync.gid import Gid
from quorum_wal.qsync.statements import first_error
from quorum_wal.qsync.steps import Ask, Steps

TIMEOUT_SECONDS = 30.0
ROWS_A_SCALE = 100_000
UPDATE = "UPDATE pgbench_accounts SET abalance = abalance + %s WHERE aid = %s"
SELECT = "SELECT abalance FROM pgbench_accounts WHERE aid = %s"
INSERT = (
    "INSERT INTO pgbench_history (tid, bid, aid, delta, mtime)"
    " VALUES (1, 1, %s, %s, CURRENT_TIMESTAMP)"
)


@dataclass(slots=True)
class LoadResult:
    """Times in microseconds, one for each transaction: the whole transaction, its end, and the wait
    for a quorum to have PREPARE. `cpu_seconds`: of this process while it ran."""

    total_us: list[int] = field(default_factory=list)
    end_us: list[int] = field(default_factory=list)
    wait_us: list[int] = field(default_factory=list)
    cpu_seconds: float = 0.0


class Client(threading.Thread):
    """A session that runs transactions until `deadline`."""

    def __init__(self, mode: str, dsn: str, q: Qsync | None, scale: int, seed: int) -> None:
        super().__init__()
        self.result = LoadResult()
        self.deadline = 0.0
        self._seed = seed
        self._chance = random.Random(seed)
        self._aid_max = scale * ROWS_A_SCALE
        self._connection = psycopg.connect(dsn)
        self._q = q
        self._confirm: Any = mode
        self._transaction: Callable[[], float] = (
            self._by_qsync if q is not None else getattr(self, f"_by_{mode}")
        )

    def run(self) -> None:
        while (begun := time.perf_counter()) < self.deadline:
            work_done = self._transaction()
            ended = time.perf_counter()
            self.result.total_us.append(round((ended - begun) * 1e6))
            self.result.end_us.append(round((ended - work_done) * 1e6))

    def _work(self, execute: Callable[..., Any]) -> float:
        aid, delta = self._chance.randint(1, self._aid_max), self._chance.randint(-5000, 5000)
        execute(UPDATE, (delta, aid), prepare=True)
        execute(SELECT, (aid,), prepare=True).fetchone()
        execute(INSERT, (aid, delta), prepare=True)
        return time.perf_counter()

    def _by_commit(self) -> float:
        work_done = self._work(self._connection.execute)
        self._connection.commit()
        return work_done

    def _by_qsync(self) -> float:
        assert self._q is not None
        with self._q.transaction(self._connection, confirm=self._confirm) as tx:
            work_done = self._work(tx.execute)
        return work_done

    def _by_two_phase(self) -> float:
        work_done = self._work(self._connection.execute)
        gid = f"bench-{self._seed}"
        for statement in (f"PREPARE TRANSACTION '{gid}'", f"COMMIT PREPARED '{gid}'"):
            run(self._ask(statement.encode()))
        return work_done

    def _ask(self, statement: bytes) -> Steps[None]:
        """Executes it as qsync does."""
        results = yield Ask(self._connection, (statement,), time.monotonic() + TIMEOUT_SECONDS)
        assert first_error(results) is None, results


def note_waits(found: list[int]) -> None:
    """Appends the duration of the first WAIT_LSN of each transaction to `found`."""
    wait = CoordinatorClient.wait
    seen: set[int] = set()  # gids of transactions that have waited

    def timed(self: CoordinatorClient, lsn: int, gid: Gid, deadline: float) -> Steps[Verdict]:
        begun = time.perf_counter()
        verdict = yield from wait(self, lsn, gid, deadline)
        if hash(gid) not in seen:
            seen.add(hash(gid))
            found.append(round((time.perf_counter() - begun) * 1e6))
        return verdict

    CoordinatorClient.wait = timed  # type: ignore[method-assign]


def main(
    mode: str, dsn: str, coordinator: str, threads: int, seconds: float, scale: int, number: int
) -> None:
    """`number` is that of this process, for the seeds."""
    waits: list[int] = []
    q = Qsync(coordinator, timeout=TIMEOUT_SECONDS) if mode in ("durable", "visible") else None
    if q is not None:
        note_waits(waits)
    seeds = range(number * 1000, number * 1000 + threads)
    clients = [Client(mode, dsn, q, scale, seed) for seed in seeds]
    print("ready", flush=True)
    sys.stdin.readline()
    cpu_before = time.process_time()
    for client in clients:
        client.deadline = time.perf_counter() + seconds
        client.start()
    result = LoadResult(wait_us=waits)
    for client in clients:
        client.join()
        result.total_us += client.result.total_us
        result.end_us += client.result.end_us
    result.cpu_seconds = time.process_time() - cpu_before
    print(msgspec.json.encode(result).decode(), flush=True)


if __name__ == "__main__":
    _, mode, dsn, coordinator, *numbers = sys.argv
    threads, seconds, scale, number = numbers
    main(mode, dsn, coordinator, int(threads), float(seconds), int(scale), int(number))
