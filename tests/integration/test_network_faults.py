"""Networks that cut, stall, delay and drop, between the proposer and its peers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pending_commit import PendingCommit
from reckoning import TIMEOUT, assert_nothing_lost

from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.ledger import Ledger
from quorum_wal.pg_fixtures.proposer import ProposerProcess
from quorum_wal.pg_fixtures.proxy import Direction, TcpProxy
from quorum_wal.pg_fixtures.waiting import wait_until

DELAY_SECONDS = 0.05


@pytest.fixture(scope="module")
def cluster_options() -> dict[str, Any]:
    return {"proxied": True}


def connected(cluster: QuorumCluster) -> int:
    return int(cluster.proposer.status()["quorum"]["connected"])


def test_one_safekeeper_cut_off_delays_no_commit(cluster: QuorumCluster, ledger: Ledger) -> None:
    cluster.proxies[0].cut()
    ledger.wait_for_progress(50, TIMEOUT)
    wait_until(lambda: connected(cluster) == 2, TIMEOUT, "the cut to be noticed")
    cluster.proxies[0].restore()
    assert_nothing_lost(cluster, ledger)


@pytest.mark.parametrize("direction", Direction, ids=lambda d: d.name.lower())
def test_one_safekeeper_whose_messages_are_lost_delays_no_commit(
    cluster: QuorumCluster, ledger: Ledger, direction: Direction
) -> None:
    """The connection looks open, but only one side is heard."""
    proxy = cluster.proxies[1]
    dropped = proxy.traffic.bytes_dropped[direction]
    proxy.drop(direction)
    ledger.wait_for_progress(50, TIMEOUT)
    assert proxy.traffic.bytes_dropped[direction] > dropped
    proxy.restore()
    assert_nothing_lost(cluster, ledger)


def test_two_stalled_safekeepers_hold_commits_until_one_resumes(
    cluster: QuorumCluster, ledger: Ledger
) -> None:
    cluster.proxies[0].stall()
    cluster.proxies[2].stall()
    commit = PendingCommit(cluster.postgres)
    commit.wait_blocked(TIMEOUT)
    assert commit.is_blocked
    cluster.proxies[0].restore()
    commit.wait_returned(TIMEOUT)
    ledger.wait_for_progress(50, TIMEOUT)
    cluster.proxies[2].restore()
    assert_nothing_lost(cluster, ledger)


def test_a_distant_safekeeper_does_not_slow_commits(
    cluster: QuorumCluster, ledger: Ledger, ledger_of: Callable[..., Ledger]
) -> None:
    """The latency is that of the quorum: of the two near ones, or of a near and a distant one."""
    ledger.pause()
    ledger.wait_idle(TIMEOUT)
    cluster.proxies[0].delay(DELAY_SECONDS)
    one_distant = ledger_of(cluster, clients=1)
    one_distant.wait_for_progress(50, TIMEOUT)
    one_distant.stop()
    assert one_distant.latency_percentile(50) < DELAY_SECONDS

    cluster.proxies[1].delay(DELAY_SECONDS)
    two_distant = ledger_of(cluster, clients=1)
    two_distant.stop()
    assert two_distant.latency_percentile(50) >= 2 * DELAY_SECONDS
    for proxy in cluster.proxies:
        proxy.restore()
    ledger.resume()
    assert_nothing_lost(cluster, ledger)


@pytest.fixture
def far_proposer(
    cluster: QuorumCluster, tcp_proxy: Callable[[str, int], TcpProxy]
) -> tuple[ProposerProcess, TcpProxy]:
    """Replaces the proposer of the cluster; it reaches the primary through a proxy."""
    proxy = tcp_proxy("127.0.0.1", cluster.postgres.port)
    proposer = ProposerProcess(
        cluster.postgres.dsn(port=proxy.port),
        [safekeeper.address for safekeeper in cluster.safekeepers],
        log_path=cluster.root / f"proposer-{proxy.port}.log",
    )
    return proposer, proxy


@pytest.mark.parametrize("fault", ["cut", "stall"])
def test_a_proposer_that_lost_its_primary_attaches_again(
    cluster: QuorumCluster,
    ledger: Ledger,
    far_proposer: tuple[ProposerProcess, TcpProxy],
    fault: str,
) -> None:
    near, (far, proxy) = cluster.proposer, far_proposer
    near.kill()
    cluster.postgres.configure(wal_sender_timeout="2s")  # so that the stall is noticed soon
    try:
        with far:
            cluster.proposer = far
            far.wait_streaming(TIMEOUT)
            ledger.wait_for_progress(20, TIMEOUT)
            term = far.status()["node_id"]["term"]
            getattr(proxy, fault)()
            commit = PendingCommit(cluster.postgres)
            commit.wait_blocked(TIMEOUT)
            wait_until(
                lambda: not cluster.postgres.execute("SELECT pid FROM pg_stat_replication"),
                TIMEOUT,
                "the primary to notice",
            )
            proxy.restore()
            commit.wait_returned(TIMEOUT)
            assert far.status()["node_id"]["term"] > term
            assert_nothing_lost(cluster, ledger)
    finally:
        cluster.proposer = near
        cluster.postgres.configure(wal_sender_timeout=None)
