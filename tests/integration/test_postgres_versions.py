"""Every supported Postgres of this machine, with the smallest and the largest usual segment
size."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from reckoning import assert_nothing_lost
from sk_command import sk

from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.data_directory import DataDirectory
from quorum_wal.pg_fixtures.ledger import Ledger
from quorum_wal.pg_server.binaries import PostgresBinaries, all_postgres

TIMEOUT = 120.0
SEGMENTS_MB = (1, 64)


@pytest.mark.parametrize(
    ("pg_binaries", "segment_mb"),
    [
        *((binaries, SEGMENTS_MB[0]) for binaries in all_postgres()),
        *((binaries, SEGMENTS_MB[1]) for binaries in all_postgres()[:1]),
    ],
    ids=lambda value: f"{value} MB" if isinstance(value, int) else f"Postgres {value.version}",
    indirect=["pg_binaries"],
)
def test_commits_reach_a_quorum(
    quorum_cluster: Callable[..., QuorumCluster],
    pg_binaries: PostgresBinaries,
    segment_mb: int,
) -> None:
    """Across the end of a segment that was left half empty."""
    cluster = quorum_cluster(wal_seg_size=segment_mb << 20)
    status = cluster.safekeepers[0].timeline()
    assert status is not None
    assert status["pg_version"] // 10000 == pg_binaries.major
    assert status["wal_seg_size"] == segment_mb << 20
    with Ledger(cluster.postgres.dsn(), clients=3) as ledger:
        ledger.wait_for_progress(50, TIMEOUT)
        cluster.postgres.execute("SELECT pg_switch_wal()")
        assert_nothing_lost(cluster, ledger)
    for service in (*cluster.safekeepers, cluster.proposer):
        assert "Traceback" not in service.log_text()


def test_a_database_without_an_encoding(pg_binaries: PostgresBinaries, tmp_path: Path) -> None:
    """initdb creates one in the C locale by default: drivers get bytes from it."""
    template = DataDirectory(tmp_path / "template", pg_binaries)
    template.initdb("--encoding=SQL_ASCII", wal_seg_size=SEGMENTS_MB[0] << 20)
    with QuorumCluster(
        tmp_path / "cluster",
        binaries=pg_binaries,
        wal_seg_size=SEGMENTS_MB[0] << 20,
        template=template.path,
    ) as cluster:
        cluster.postgres.execute("CREATE TABLE t (a int)")
        checked = sk("check", "--primary", cluster.postgres.dsn())
        assert "Traceback" not in checked.stderr
        assert "b'" not in checked.stdout
        cluster.proposer.kill()
        cluster.proposer.start()
        cluster.proposer.wait_streaming(TIMEOUT)
        cluster.postgres.execute("INSERT INTO t VALUES (1)")
