"""Two standbys of one quorum are promoted at once: `sk status` never reports both as the
primary."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from pending_commit import PendingCommit
from sk_command import sk

from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.proposer import ProposerProcess
from quorum_wal.pg_fixtures.standby import wait_replayed
from quorum_wal.pg_fixtures.waiting import wait_until

TIMEOUT = 120.0
SEG_SIZE = 1 << 20


def status_of(cluster: QuorumCluster, *servers: Postgres) -> tuple[int, str, list[dict[str, Any]]]:
    """The exit code, the verdict, and a view of each server."""
    members = ",".join(safekeeper.address for safekeeper in cluster.safekeepers)
    asked = [word for server in servers for word in ("--primary", server.dsn())]
    done = sk("status", "--safekeepers", members, *asked, "--json")
    assert "Traceback" not in done.stderr
    page = json.loads(done.stdout)
    (timeline,) = page["timelines"]
    return done.returncode, timeline["verdict"], page["primaries"]


def roles(views: list[dict[str, Any]]) -> list[str]:
    return [view["role"] for view in views]


def test_two_promotions_at_once_make_one_primary_at_most(
    quorum_cluster: Callable[..., QuorumCluster], standby_factory: Callable[..., Postgres]
) -> None:
    cluster = quorum_cluster(wal_seg_size=SEG_SIZE)
    old = cluster.postgres
    first, second = (
        standby_factory(old, name, cluster.replica_conninfo()) for name in ("first", "second")
    )
    end_lsn = old.flush_lsn()
    for standby in (first, second):
        wait_replayed(standby, end_lsn, TIMEOUT)
    cluster.proposer.kill()
    old.crash()
    for standby in (first, second):
        assert standby.execute("SELECT pg_promote(true, 60)") == [(True,)]

    code, verdict, views = status_of(cluster, first, second)
    assert roles(views) == ["one of several primaries"] * 2
    assert [view["tli"] for view in views] == [2, 2]
    for view in views:
        assert "run sk attach for one of them" in " ".join(view["remarks"])
    assert code == 3
    assert verdict.startswith("CONTESTED: 2 servers are primaries that could continue the log: ")
    for server in (first, second):
        assert f"port={server.port} " in verdict
    assert "; also, NO PROPOSER: " in verdict
    assert roles(status_of(cluster, second)[2]) == ["primary"]  # it knows nothing of the other

    log_path = cluster.root / "first-proposer.log"
    addresses = [safekeeper.address for safekeeper in cluster.safekeepers]
    with ProposerProcess(first.dsn(), addresses, log_path=log_path, configure=True) as proposer:
        seen: list[list[str]] = []

        def is_streamed() -> bool:
            seen.append(roles(status_of(cluster, first, second)[2]))
            return proposer.state == "streaming"

        proposer.wait_until(is_streamed, TIMEOUT, "the proposer to stream")
        assert ["primary", "primary"] not in seen
        first.execute("CREATE TABLE acknowledged (a int)")
        pending = PendingCommit(second, "CREATE TABLE never_acknowledged (a int)")
        pending.wait_blocked(TIMEOUT)
        # The third safekeeper may still be catching up.
        _, verdict, views = wait_until(
            lambda: (found := status_of(cluster, second, first))[0] == 0 and found,
            TIMEOUT,
            "the status to be OK",
        )
        assert roles(views) == ["not the log's primary", "primary"]
        assert "make it again from a base backup" in " ".join(views[0]["remarks"])
        assert not views[0]["returns_without_quorum"]
        assert views[0]["commit_waits"] == 1
        assert verdict.startswith("OK: ")
        assert pending.is_blocked
