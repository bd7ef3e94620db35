"""Two proposers, two primaries: one of them wins, the other says why not, and nothing is lost."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from reckoning import TIMEOUT, assert_nothing_lost
from workload import write_wal

from cli.output import ExitCode
from pg_fixtures.cluster import QuorumCluster
from pg_fixtures.ledger import Ledger
from pg_fixtures.postgres import Postgres
from pg_fixtures.proposer import ProposerProcess
from pg_fixtures.waiting import wait_until
from pgwal.lsn import Lsn

BEHIND = re.compile(
    r"the primary's WAL ends at ([0-9A-F]+/[0-9A-F]+), "
    r"but the quorum's log ends at ([0-9A-F]+/[0-9A-F]+)"
)
DIFFERS = re.compile(
    r"the primary's WAL differs from the quorum's log at ([0-9A-F]+/[0-9A-F]+), "
    r"below the log's end at ([0-9A-F]+/[0-9A-F]+)"
)


def test_the_last_of_several_proposers_wins(cluster: QuorumCluster, ledger: Ledger) -> None:
    first, second = cluster.proposer, cluster.new_proposer()
    term = first.status()["node_id"]["term"]
    with second:
        assert first.wait(TIMEOUT) == ExitCode.FENCED
        assert "Another proposer took over this timeline" in first.log_tail()
        second.wait_streaming(TIMEOUT)
        node_id = second.status()["node_id"]
        assert node_id["term"] > term
        for safekeeper in cluster.safekeepers:
            timeline = wait_until(
                lambda s=safekeeper: (t := s.timeline()) and t["proposer"] and t,  # type: ignore[misc]
                TIMEOUT,
                f"{safekeeper.name} to have a proposer",
            )
            assert timeline["promised"] == timeline["proposer"]["node_id"] == node_id
            assert timeline["proposer"]["http"] == second.http_address
        try:
            cluster.proposer = second
            assert_nothing_lost(cluster, ledger)
        finally:
            cluster.proposer = first


def test_of_three_rivals_one_remains(cluster: QuorumCluster, ledger: Ledger) -> None:
    first = cluster.proposer
    with ExitStack() as stack:
        rivals = [first, *(stack.enter_context(cluster.new_proposer()) for _ in range(2))]
        wait_until(
            lambda: [r.exit_code for r in rivals].count(ExitCode.FENCED) == 2,
            TIMEOUT,
            "two of three to be fenced",
        )
        (winner,) = [rival for rival in rivals if rival.alive]
        winner.wait_streaming(TIMEOUT)
        try:
            cluster.proposer = winner
            assert_nothing_lost(cluster, ledger)
        finally:
            cluster.proposer = first


def proposer_for(primary: Postgres, cluster: QuorumCluster) -> ProposerProcess:
    """A proposer that wants to attach another primary to the safekeepers of the cluster."""
    return ProposerProcess(
        primary.dsn(),
        [safekeeper.address for safekeeper in cluster.safekeepers],
        log_path=primary.log_path.with_suffix(".proposer.log"),
    )


@pytest.fixture
def cold_copy(cluster: QuorumCluster, tmp_path: Path) -> Postgres:
    """The primary as it was when it was stopped a moment ago; it has gone on since."""
    cluster.postgres.stop()
    copy = Postgres(
        cluster.postgres.binaries, tmp_path / "copy", template=cluster.postgres.data_dir
    )
    copy.init()
    cluster.start()
    return copy


def test_a_stale_copy_is_refused_and_the_primary_goes_on(
    cluster: QuorumCluster, ledger: Ledger, cold_copy: Postgres
) -> None:
    ledger.wait_for_progress(10, TIMEOUT)
    term = cluster.proposer.status()["node_id"]["term"]
    with cold_copy, proposer_for(cold_copy, cluster) as rival:
        assert rival.wait(TIMEOUT) == ExitCode.FAILED
        positions = BEHIND.search(rival.log_text())
        assert positions is not None, rival.log_text()
        assert Lsn.parse(positions[1]) == cold_copy.flush_lsn()
        assert Lsn.parse(positions[1]) < Lsn.parse(positions[2]) <= cluster.postgres.flush_lsn()
    assert_nothing_lost(cluster, ledger)
    assert cluster.proposer.status()["node_id"]["term"] == term


def refuse_diverged(cluster: QuorumCluster, ledger: Ledger, copy: Postgres) -> None:
    """`copy` wrote other WAL, and more of it; it must not be taken for the primary."""
    ledger.wait_for_progress(10, TIMEOUT)
    with copy, proposer_for(copy, cluster) as rival:
        write_wal(copy, 4)
        copy.execute("CHECKPOINT")
        assert copy.flush_lsn() > cluster.postgres.flush_lsn()
        rival.kill()
        rival.start()
        assert rival.wait(TIMEOUT) == ExitCode.FAILED
        positions = DIFFERS.search(rival.log_text())
        assert positions is not None, rival.log_text()
        assert Lsn.parse(positions[1]) < Lsn.parse(positions[2])
    # The rival had to win a term to read the quorum's log, so our own proposer is fenced.
    wait_until(
        lambda: cluster.proposer.exit_code == ExitCode.FENCED, TIMEOUT, "the first to be fenced"
    )
    cluster.start()
    assert_nothing_lost(cluster, ledger)


def test_a_copy_that_went_its_own_way_is_refused(
    cluster: QuorumCluster, ledger: Ledger, cold_copy: Postgres
) -> None:
    refuse_diverged(cluster, ledger, cold_copy)


def test_a_base_backup_that_went_its_own_way_is_refused(
    cluster: QuorumCluster, ledger: Ledger, tmp_path: Path
) -> None:
    """It has no slot, so nothing but its WAL tells that it is not the primary."""
    copy = cluster.postgres.base_backup(tmp_path / "copy")
    copy.configure(wal_keep_size="1GB")
    refuse_diverged(cluster, ledger, copy)
