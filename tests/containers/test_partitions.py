"""Lost packets: in one direction, between pairs, and with a proposer on either side."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from container_cluster import ContainerCluster
from container_service import ServiceContainer
from pending_commit import PendingCommit
from reckoning import TIMEOUT, assert_nothing_lost

from quorum_wal.cli.output import ExitCode
from quorum_wal.pg_fixtures.ledger import Ledger
from quorum_wal.pg_fixtures.plugin import skip_if_unavailable
from quorum_wal.pg_fixtures.safekeeper import SafekeeperProcess
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pgwal.lsn import Lsn


@pytest.fixture
def cluster(cluster: ContainerCluster) -> Iterator[ContainerCluster]:
    """The primary soon detects a silent standby; skipped where packets cannot be dropped."""
    with skip_if_unavailable():
        cluster.firewall.drop(cluster.network.address(254), cluster.network.address(253))
        cluster.firewall.heal()
    cluster.postgres.configure(wal_sender_timeout="2s")
    yield cluster
    cluster.firewall.heal()
    cluster.postgres.configure(wal_sender_timeout=None)


@pytest.mark.parametrize(("index", "way"), [(0, "to"), (1, "from"), (2, "both")])
def test_one_safekeeper_whose_packets_are_lost_delays_no_commit(
    cluster: ContainerCluster, ledger: Ledger, way: str, index: int
) -> None:
    safekeeper, proposer = cluster.safekeepers[index], cluster.proposer
    if way in ("to", "both"):
        cluster.firewall.drop(proposer.ip, safekeeper.ip)
    if way in ("from", "both"):
        cluster.firewall.drop(safekeeper.ip, proposer.ip)
    ledger.wait_for_progress(50, TIMEOUT)
    wait_until(lambda: any(cluster.firewall.dropped_packets), TIMEOUT, "packets to be lost")
    if way != "from":  # then it may lag by at most a window that is never acknowledged
        wait_until(lambda: is_behind(safekeeper, cluster), TIMEOUT, "the others to be ahead")
    cluster.firewall.heal()
    assert_nothing_lost(cluster, ledger)
    assert ledger.errors == 0


def is_behind(safekeeper: SafekeeperProcess, cluster: ContainerCluster) -> bool:
    """By its own report; the proposer's page is as old as its last tick."""
    timeline = safekeeper.timeline()
    assert timeline is not None
    return Lsn.parse(timeline["commit_lsn"]) < cluster.commit_lsn()


def test_with_one_reachable_commits_wait_for_another(
    cluster: ContainerCluster, ledger: Ledger
) -> None:
    lost = [safekeeper.ip for safekeeper in cluster.safekeepers[:2]]
    cluster.firewall.partition([cluster.proposer.ip], lost)
    commit = PendingCommit(cluster.postgres)
    commit.wait_blocked(TIMEOUT)
    assert commit.is_blocked
    cluster.firewall.heal()
    commit.wait_returned(TIMEOUT)
    assert_nothing_lost(cluster, ledger)


def test_a_silent_safekeeper_is_disconnected_and_connected_again(
    cluster: ContainerCluster, ledger: Ledger
) -> None:
    cluster.firewall.drop(cluster.safekeepers[1].ip, cluster.proposer.ip)
    cluster.wait_connected(2)
    cluster.firewall.heal()
    cluster.wait_connected(3)
    assert_nothing_lost(cluster, ledger)
    assert ledger.errors == 0


def test_a_proposer_cut_from_the_primary_attaches_again(
    cluster: ContainerCluster, ledger: Ledger
) -> None:
    term = cluster.proposer.status()["node_id"]["term"]
    cluster.firewall.partition([cluster.proposer.ip], [cluster.postgres.ip])
    commit = PendingCommit(cluster.postgres)
    commit.wait_blocked(TIMEOUT)
    wait_until(
        lambda: not cluster.postgres.execute("SELECT pid FROM pg_stat_replication"),
        TIMEOUT,
        "the primary to notice",
    )
    assert commit.is_blocked
    cluster.firewall.heal()
    commit.wait_returned(TIMEOUT)
    assert cluster.proposer.status()["node_id"]["term"] > term
    assert_nothing_lost(cluster, ledger)


def test_of_two_proposers_the_one_on_the_majoritys_side_wins(
    cluster: ContainerCluster, ledger: Ledger
) -> None:
    """The old one and one safekeeper are on one side; the primary, two safekeepers and a new
    proposer on the other."""
    first, second = cluster.proposer, cluster.new_proposer()
    left, *right = cluster.safekeepers
    cluster.firewall.partition(
        [first.ip, left.ip], [second.ip, cluster.postgres.ip, *(s.ip for s in right)]
    )
    second.start()
    try:
        second.wait_streaming(TIMEOUT)
        ledger.wait_for_progress(50, TIMEOUT)
        assert first.alive
        assert promised_term(left) < promised_term(right[0]) == promised_term(right[1])
        cluster.firewall.heal()
        assert first.wait(TIMEOUT) == ExitCode.FENCED
        cluster.proposer = second
        assert_nothing_lost(cluster, ledger)
        assert ledger.errors == 0
    finally:
        cluster.proposer = first
        second.kill()


def test_a_primary_on_the_minoritys_side_acknowledges_nothing(
    cluster: ContainerCluster, ledger: Ledger
) -> None:
    """An election of two safekeepers on the other side deposes its proposer without its help."""
    left, *right = cluster.safekeepers
    elector = ServiceContainer(
        cluster.client,
        cluster.network,
        200,
        cluster.sk_image,
        ["elect", "--safekeepers", ",".join(s.address for s in cluster.safekeepers)],
        name="elector",
    )
    old_side = [cluster.proposer.ip, cluster.postgres.ip, left.ip]
    cluster.firewall.partition(old_side, [elector.ip, *(s.ip for s in right)])
    commit = PendingCommit(cluster.postgres)
    commit.wait_blocked(TIMEOUT)
    try:
        elector.start()
        assert elector.wait(TIMEOUT) == 0, elector.log_tail()
        end_lsn = Lsn.parse(elector.container.logs(stderr=False).decode().split()[-1])
    finally:
        elector.discard()
    assert end_lsn <= cluster.postgres.flush_lsn()
    assert cluster.proposer.alive
    assert commit.is_blocked
    acknowledged = ledger.acknowledged
    cluster.firewall.heal()
    assert cluster.proposer.wait(TIMEOUT) == ExitCode.FENCED
    assert commit.is_blocked
    assert ledger.acknowledged == acknowledged
    cluster.start()
    commit.wait_returned(TIMEOUT)
    assert_nothing_lost(cluster, ledger)


def promised_term(safekeeper: ServiceContainer) -> int:
    return int(safekeeper.timeline()["promised"]["term"])
