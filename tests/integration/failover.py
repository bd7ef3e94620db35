"""A failover by hand: the primary stops, and a standby that follows the safekeepers takes over."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.processes import run_sk
from quorum_wal.pg_fixtures.proposer import ProposerProcess
from quorum_wal.pg_fixtures.safekeeper import SafekeeperProcess
from quorum_wal.pg_fixtures.standby import wait_replayed
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pgwal.lsn import Lsn

TIMEOUT = 120.0


def timeline_of(safekeeper: SafekeeperProcess) -> dict[str, Any]:
    timeline = safekeeper.timeline()
    assert timeline is not None
    return timeline


@contextmanager
def failed_over(cluster: QuorumCluster, standby: Postgres) -> Iterator[ProposerProcess]:
    """The primary is stopped, and the standby is the primary."""
    keepers = cluster.safekeepers
    cluster.postgres.stop()
    cluster.proposer.terminate()
    wait_until(lambda: elect_until_known(keepers), TIMEOUT, "all to know the end of the log")
    wait_replayed(standby, Lsn.parse(timeline_of(keepers[0])["commit_lsn"]), TIMEOUT)
    assert standby.execute("SELECT pg_promote(true, 60)") == [(True,)]
    with ProposerProcess(
        standby.dsn(),
        [k.address for k in keepers],
        log_path=cluster.root / "new-proposer.log",
        configure=True,
    ) as proposer:
        proposer.wait_streaming()
        yield proposer


def elect_until_known(keepers: list[SafekeeperProcess]) -> bool:
    """Run elections until a quorum knows that the tail of the log is committed."""
    addresses = ",".join(k.address for k in keepers)
    done = run_sk("elect", "--safekeepers", addresses, timeout=TIMEOUT)
    assert done.returncode == 0, done.stderr
    statuses = [timeline_of(keeper) for keeper in keepers]
    return len({s[name] for s in statuses for name in ("commit_lsn", "flush_lsn")}) == 1
