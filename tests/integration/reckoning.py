"""The check at the end of a test of faults: no acknowledged row is lost, and all copies are equal.

The rows of the ledger are read on the primary. WAL is compared file by file: between the
safekeepers over the whole log, and with the primary as far as its pg_wal reaches back.
"""

from __future__ import annotations

from collections.abc import Sequence

from quorum_wal.pg_fixtures.cluster import PRIMARY, QuorumCluster
from quorum_wal.pg_fixtures.ledger import Ledger
from quorum_wal.pg_fixtures.safekeeper import SafekeeperProcess
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_fixtures.wal_comparison import WalComparison, compare_wal
from quorum_wal.pgwal.lsn import Lsn

TIMEOUT = 120.0  # seconds; on an idle machine each wait takes a fraction of one


def assert_nothing_lost(
    cluster: QuorumCluster, ledger: Ledger, safekeepers: Sequence[SafekeeperProcess] = ()
) -> None:
    """Check that commits proceed, that the ledger is complete, and that the logs of these
    safekeepers (all) are equal.

    Leaves the ledger paused.
    """
    assert_complete(ledger)
    assert_equal_logs(cluster, safekeepers)


def assert_complete(ledger: Ledger) -> None:
    """Commits proceed, and the primary has every row that was acknowledged. Pauses the ledger."""
    ledger.wait_for_progress(10, TIMEOUT)
    ledger.pause()
    ledger.wait_idle(TIMEOUT)
    report = ledger.verify()
    assert report.ok, report
    assert report.found == report.acknowledged >= 10


def assert_equal_logs(
    cluster: QuorumCluster, safekeepers: Sequence[SafekeeperProcess] = ()
) -> None:
    """Check that these safekeepers (all) have all the WAL of the idle primary, byte for byte."""
    safekeepers = safekeepers or cluster.safekeepers
    end_lsn = cluster.postgres.flush_lsn()
    cluster.wait_flushed(end_lsn, TIMEOUT, safekeepers)
    cluster.proposer.wait_until(
        lambda: cluster.commit_lsn() >= end_lsn, TIMEOUT, f"commit_lsn to reach {end_lsn}"
    )
    comparison = wait_until(
        lambda: compare(cluster, safekeepers, end_lsn), TIMEOUT, "the WAL to be read in peace"
    )
    for safekeeper in safekeepers:
        timeline = safekeeper.timeline()
        assert timeline is not None
        start_lsn = Lsn.parse(timeline["start_lsn"])
        begin_lsn, compared_lsn = comparison.range_of(safekeeper.name)
        if len(safekeepers) > 1:
            assert begin_lsn == start_lsn
        assert begin_lsn < compared_lsn == end_lsn


def compare(
    cluster: QuorumCluster, safekeepers: Sequence[SafekeeperProcess], end_lsn: Lsn
) -> WalComparison | None:
    """Returns None if the primary removed a segment during the comparison."""
    copies = {s.name: s.data_dir for s in safekeepers}
    copies[PRIMARY] = cluster.postgres.pg_wal
    wal_seg_size = int(cluster.postgres.control_data()["Bytes per WAL segment"])
    try:
        return compare_wal(copies, end_lsn, wal_seg_size)
    except FileNotFoundError:
        return None
