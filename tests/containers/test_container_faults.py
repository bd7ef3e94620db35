"""Containers that are paused, killed and cut off, one after the other and two at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
from container_cluster import WAL_PORT, ContainerCluster
from container_service import ServiceContainer
from pending_commit import PendingCommit
from reckoning import TIMEOUT, assert_nothing_lost

from quorum_wal.pg_fixtures.ledger import Ledger
from quorum_wal.pg_fixtures.waiting import wait_until

TCP_ESTABLISHED = "01"  # include/net/tcp_states.h

FAULTS = {
    "paused": (ServiceContainer.pause, ServiceContainer.resume),
    "killed": (ServiceContainer.kill, ServiceContainer.start),
    "cut-off": (ServiceContainer.disconnect, ServiceContainer.connect),
}


@pytest.mark.parametrize(("index", "fault"), list(enumerate(FAULTS)))
def test_one_safekeeper_delays_no_commit_and_catches_up(
    cluster: ContainerCluster, ledger: Ledger, fault: str, index: int
) -> None:
    strike, undo = FAULTS[fault]
    safekeeper = cluster.safekeepers[index]
    term = cluster.proposer.status()["node_id"]["term"]
    strike(safekeeper)
    ledger.wait_for_progress(50, TIMEOUT)
    undo(safekeeper)
    assert_nothing_lost(cluster, ledger)
    assert ledger.errors == 0
    assert cluster.proposer.status()["node_id"]["term"] == term


@pytest.mark.parametrize("fault", FAULTS)
def test_two_safekeepers_hold_commits_until_one_returns(
    cluster: ContainerCluster, ledger: Ledger, fault: str
) -> None:
    strike, undo = FAULTS[fault]
    first, second, _ = cluster.safekeepers
    strike(first)
    strike(second)
    commit = PendingCommit(cluster.postgres)
    commit.wait_blocked(TIMEOUT)
    assert commit.is_blocked
    undo(second)
    commit.wait_returned(TIMEOUT)
    ledger.wait_for_progress(50, TIMEOUT)
    undo(first)
    assert_nothing_lost(cluster, ledger)


def test_a_short_cut_breaks_no_connection(cluster: ContainerCluster, ledger: Ledger) -> None:
    """Its packets are lost and sent again; neither side was notified."""
    cluster.wait_connected(len(cluster.safekeepers))
    before = wal_connections(cluster)
    for safekeeper in cluster.safekeepers:
        safekeeper.disconnect()
        ledger.wait_for_progress(10, TIMEOUT)
        safekeeper.connect()
        cluster.wait_flushed(cluster.postgres.flush_lsn(), TIMEOUT, [safekeeper])
    assert_nothing_lost(cluster, ledger)
    assert len(before) == len(cluster.safekeepers)
    assert wal_connections(cluster) == before


def wal_connections(cluster: ContainerCluster) -> set[tuple[str, str]]:
    """The ends of each established connection of the proposer to a safekeeper, see proc(5)."""
    _, *lines = Path(f"/proc/{cluster.proposer.pid}/net/tcp").read_text().splitlines()
    found = [line.split()[1:4] for line in lines]
    return {
        (local, remote)
        for local, remote, state in found
        if state == TCP_ESTABLISHED and int(remote.rpartition(":")[2], 16) == WAL_PORT
    }


def test_a_killed_proposer_is_started_again(cluster: ContainerCluster, ledger: Ledger) -> None:
    term = cluster.proposer.status()["node_id"]["term"]
    cluster.proposer.kill()
    commit = PendingCommit(cluster.postgres)
    commit.wait_blocked(TIMEOUT)
    cluster.proposer.start()
    commit.wait_returned(TIMEOUT)
    assert cluster.proposer.status()["node_id"]["term"] > term
    assert_nothing_lost(cluster, ledger)


def test_everything_killed_at_once_is_started_again(
    cluster: ContainerCluster, ledger: Ledger
) -> None:
    cluster.kill_all()
    cluster.start()
    assert_nothing_lost(cluster, ledger)


def test_the_health_check_follows_the_quorum(cluster: ContainerCluster) -> None:
    first, second, third = cluster.safekeepers
    assert cluster.proposer.check_health() == (0, "ok")
    assert third.check_health() == (0, "ok")
    first.kill()
    second.kill()
    wait_until(
        lambda: cluster.proposer.check_health() == (1, "the quorum is lost, commits wait"),
        TIMEOUT,
        "the health check to fail",
    )
    assert third.check_health() == (0, "ok")
