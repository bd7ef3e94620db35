"""The steady path that the commands report is the one that runs, and commits proceed with each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from reckoning import TIMEOUT, assert_nothing_lost

from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.ledger import Ledger
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_server.binaries import PostgresBinaries
from quorum_wal.storage.compiled import INTERPRETED

SEG_SIZE = 1 << 20


@pytest.mark.parametrize(("value", "how"), [("", "compiled"), ("1", "interpreted")])
def test_commits_by_the_reported_path(
    pg_binaries: PostgresBinaries,
    initdb_template: Callable[[PostgresBinaries, int], Path],
    ledger_of: Callable[[QuorumCluster], Ledger],
    tmp_path: Path,
    value: str,
    how: str,
) -> None:
    cluster = QuorumCluster(
        tmp_path / "cluster",
        binaries=pg_binaries,
        wal_seg_size=SEG_SIZE,
        template=initdb_template(pg_binaries, SEG_SIZE),
        env={INTERPRETED: value},
    )
    with cluster:
        ledger = ledger_of(cluster)
        ledger.wait_for_progress(100, TIMEOUT)
        wait_until(
            lambda: cluster.proposer.status()["steady_path"] == how, TIMEOUT, f"it to be {how}"
        )
        for keeper in cluster.safekeepers:
            assert f"steady_path={how}" in keeper.log_text()
        assert f"steady_path={how}" in cluster.proposer.log_text()
        assert_nothing_lost(cluster, ledger)
