"""Records far larger than the proposer's memory for WAL, with faults in the middle of them."""

from __future__ import annotations

from peak_rss import RSS_BYTES_MAX, peak_rss_bytes
from pending_commit import PendingCommit
from reckoning import TIMEOUT, assert_nothing_lost

from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.ledger import Ledger
from quorum_wal.pgwal.lsn import Lsn

MEGABYTE = 1 << 20
LARGE = f"SELECT pg_logical_emit_message(true, 'large', repeat('l', {100 * MEGABYTE}))"


def commit_large(cluster: QuorumCluster) -> PendingCommit:
    """Returns in the middle of the record: the proposer has received much, and no part can be
    committed."""
    commit = PendingCommit(cluster.postgres, LARGE)
    cluster.proposer.wait_until(
        lambda: cluster.proposer.status()["unconfirmed_bytes"] > 30 * MEGABYTE,
        TIMEOUT,
        "the middle of a large record",
    )
    assert not commit.has_returned
    return commit


def assert_memory_bounded(cluster: QuorumCluster) -> None:
    for process in (cluster.proposer, *cluster.safekeepers):
        assert peak_rss_bytes(process) < RSS_BYTES_MAX, process.name


def test_a_safekeeper_restarts_inside_a_large_record(
    cluster: QuorumCluster, ledger: Ledger
) -> None:
    commit = commit_large(cluster)
    cluster.safekeepers[0].restart()
    commit.wait_returned(TIMEOUT)
    assert_memory_bounded(cluster)
    assert_nothing_lost(cluster, ledger)


def test_two_safekeepers_restart_inside_a_large_record(
    cluster: QuorumCluster, ledger: Ledger
) -> None:
    """Then only the primary has the WAL below the window: it is asked again."""
    commit = commit_large(cluster)
    for safekeeper in cluster.safekeepers[:2]:
        safekeeper.restart()
    commit.wait_returned(TIMEOUT)
    assert_memory_bounded(cluster)
    assert_nothing_lost(cluster, ledger)


def test_the_stream_ends_inside_each_of_many_large_records(
    cluster: QuorumCluster, ledger: Ledger
) -> None:
    """The proposer connects again, and does not keep the WAL of all earlier connections."""
    for _ in range(6):
        commit = commit_large(cluster)
        cluster.postgres.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_replication")
        commit.wait_returned(TIMEOUT)
    assert_memory_bounded(cluster)
    assert_nothing_lost(cluster, ledger)


def test_the_proposer_restarts_inside_a_large_record(
    cluster: QuorumCluster, ledger: Ledger
) -> None:
    begin_lsn = Lsn.parse(cluster.proposer.status()["term_start_lsn"])
    commit = commit_large(cluster)
    cluster.proposer.kill()
    cluster.proposer.start()
    cluster.proposer.wait_streaming(TIMEOUT)
    commit.wait_returned(TIMEOUT)
    assert Lsn.parse(cluster.proposer.status()["term_start_lsn"]) > begin_lsn
    assert_memory_bounded(cluster)
    assert_nothing_lost(cluster, ledger)
