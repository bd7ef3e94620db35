"""`failover`: the time without commits when the primary is lost and `sk promote` is run.

It is measured from the start of the command to the return of the first commit on the new primary.
Postgres and its proposer are killed under load; the standby follows the safekeepers. The time to
notice the loss is not included.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psycopg

from benchmarks.rounds import Spread, Verdict, interleaved, samples_of
from benchmarks.setups import OURS, checkout_env
from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.ledger import Ledger
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.proposer import ProposerProcess
from quorum_wal.pg_fixtures.standby import make_standby
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_server.binaries import PostgresBinaries

SECONDS_MAX = 3.0
CLIENTS = 8
ROWS = 2000
SCALE = 10
TIMEOUT = 60.0  # seconds
PROBE_INTERVAL_SECONDS = 0.005


@dataclass(frozen=True, slots=True)
class FailoverSample:
    """`promoted_seconds`: until the new primary accepts writes; `seconds`: until one commits."""

    setup: str
    round: int
    promoted_seconds: float
    seconds: float


def measure(
    binaries: PostgresBinaries, directory: Path, checkouts: Mapping[str, Path | None], rounds: int
) -> Iterator[FailoverSample]:
    """Yields each sample when it is taken; checkouts take turns."""
    for number, setup in interleaved(list(checkouts), rounds):
        env = checkout_env(checkouts[setup])
        with ExitStack() as stack:
            root = directory / f"round-{number}-{setup}"
            cluster = stack.enter_context(QuorumCluster(root, binaries=binaries, env=env))
            cluster.postgres.pgbench("-i", "-s", str(SCALE), "-q")
            standby = make_standby(cluster.postgres, root / "standby", cluster.replica_conninfo())
            stack.enter_context(standby)
            with Ledger(cluster.postgres.dsn(), clients=CLIENTS, pause_seconds=0) as ledger:
                ledger.wait_for_progress(ROWS, TIMEOUT)
                cluster.proposer.kill()
                cluster.postgres.crash()
            promoted_seconds, seconds = _fail_over(cluster, standby, env)
            yield FailoverSample(setup, number, promoted_seconds, seconds)


def _fail_over(
    cluster: QuorumCluster, standby: Postgres, env: Mapping[str, str]
) -> tuple[float, float]:
    """Seconds from the start of `sk promote` until the server accepts writes, and has committed."""
    promotion = ProposerProcess(
        standby.dsn(),
        [safekeeper.address for safekeeper in cluster.safekeepers],
        log_path=cluster.root / "promote.log",
        env=env,
        promotes=True,
    )

    def writable() -> psycopg.Connection | None:
        try:
            return standby.connect(target_session_attrs="read-write")
        except psycopg.OperationalError:
            return None

    begun = time.perf_counter()
    with promotion:
        connection = wait_until(
            writable, TIMEOUT, "the new primary", interval=PROBE_INTERVAL_SECONDS
        )
        promoted_seconds = time.perf_counter() - begun
        with connection:
            connection.execute("INSERT INTO pgbench_history (tid) VALUES (1)")
        return promoted_seconds, time.perf_counter() - begun


def table(samples: Sequence[FailoverSample]) -> list[list[str]]:
    rows = [["setup", "sk promote to a server that accepts writes, s", "to its first commit, s"]]
    for setup in dict.fromkeys(s.setup for s in samples):
        own = samples_of(samples, setup)
        promoted = Spread.of([s.promoted_seconds for s in own]).format(2)
        rows.append([setup, promoted, Spread.of([s.seconds for s in own]).format(2)])
    return rows


def verdicts(samples: Sequence[FailoverSample]) -> list[Verdict]:
    spread = Spread.of([sample.seconds for sample in samples_of(samples, OURS)])
    claim = f"sk promote to the first commit < {SECONDS_MAX:g} s"
    return [Verdict(claim, spread, SECONDS_MAX, False, unit=" s")]
