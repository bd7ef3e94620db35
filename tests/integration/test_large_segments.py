"""Segments of a gibibyte, the largest of Postgres: no operation may take that much memory or time.

Before, the first commit waited for a gibibyte of zeros on each member (53 s). Each start and each
truncation read the whole segment into memory (1.2 GB), and members were disconnected meanwhile.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from peak_rss import RSS_BYTES_MAX, peak_rss_bytes
from pending_commit import PendingCommit
from reckoning import TIMEOUT, assert_equal_logs

from quorum_wal.pg_fixtures.cluster import QuorumCluster

GIB = 1 << 30
MIB = 1 << 20
#: Two segments of Postgres, two of each safekeeper, and a reserve for other tests.
DISK_BYTES_MIN = 16 * GIB
LARGE = f"SELECT pg_logical_emit_message(true, 'large', repeat('l', {200 * MIB}))"
NEXT_COMMIT_SECONDS = 30.0


def test_a_primary_is_killed_inside_a_large_record(tmp_path: Path) -> None:
    if shutil.disk_usage(tmp_path).free < DISK_BYTES_MIN:
        pytest.skip(f"less than {DISK_BYTES_MIN >> 30} GiB free for segments of 1 GiB")
    settings = {"min_wal_size": "2GB", "max_wal_size": "4GB"}
    with QuorumCluster(tmp_path, wal_seg_size=GIB, settings=settings) as cluster:
        cluster.postgres.execute("CREATE TABLE t (a int)")
        large = PendingCommit(cluster.postgres, LARGE)
        cluster.proposer.wait_until(
            lambda: cluster.proposer.status()["unconfirmed_bytes"] > 100 * MIB,
            TIMEOUT,
            "the middle of a large record",
        )
        assert not large.has_returned
        cluster.postgres.crash()
        cluster.postgres.start()
        PendingCommit(cluster.postgres).wait_returned(NEXT_COMMIT_SECONDS)
        cluster.safekeepers[0].restart()
        PendingCommit(cluster.postgres).wait_returned(NEXT_COMMIT_SECONDS)
        for process in (cluster.proposer, *cluster.safekeepers):
            assert peak_rss_bytes(process) < RSS_BYTES_MAX, process.name
        assert_equal_logs(cluster)
    shutil.rmtree(tmp_path)  # otherwise it would be kept for an hour of tests
