"""Members that start late, lag, or return without their data."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from typing import Any

import pytest
from pending_commit import PendingCommit
from reckoning import TIMEOUT, assert_nothing_lost
from workload import pg_wal_bytes, write_wal

from quorum_wal.cli.output import ExitCode
from quorum_wal.pg_fixtures.cluster import QuorumCluster, flush_lsn
from quorum_wal.pg_fixtures.ledger import Ledger
from quorum_wal.pg_fixtures.safekeeper import SafekeeperProcess
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pgwal.lsn import Lsn

MEGABYTE = 1 << 20
PROPOSER_RSS_MAX = 200 * MEGABYTE
MAX_WAL_MEGABYTES = 16
DONOR = re.compile(r"catching up .*donor=(\S+) safekeeper=(\S+)")


@pytest.fixture(scope="module")
def cluster_options() -> dict[str, Any]:
    """Proxied, to make members lag, and with a pg_wal that would be small without a slot."""
    settings = {"max_wal_size": f"{MAX_WAL_MEGABYTES}MB", "min_wal_size": "4MB"}
    return {"proxied": True, "settings": settings}


def proposers_view(cluster: QuorumCluster, safekeeper: SafekeeperProcess) -> dict[str, Any]:
    """The proposer's status of one safekeeper."""
    return dict(cluster.proposer.status()["safekeepers"][safekeeper.id - 1])


def written_lsn(safekeeper: SafekeeperProcess) -> Lsn:
    timeline = safekeeper.timeline()
    assert timeline is not None
    return Lsn.parse(timeline["written_lsn"])


def test_a_member_that_was_down_from_the_start_gets_everything(
    quorum_cluster: Callable[..., QuorumCluster], ledger_of: Callable[..., Ledger]
) -> None:
    cluster = quorum_cluster(wal_seg_size=MEGABYTE)
    late = cluster.safekeepers[2]
    late.kill()
    ledger = ledger_of(cluster)
    write_wal(cluster.postgres, 24)  # more than the proposer keeps in memory
    cluster.proposer.kill()
    cluster.proposer.start()
    cluster.proposer.wait_streaming()
    ledger.wait_for_progress(20, TIMEOUT)
    late.start()
    assert_nothing_lost(cluster, ledger)


def test_a_member_that_lost_its_data_takes_no_part(
    quorum_cluster: Callable[..., QuorumCluster], ledger_of: Callable[..., Ledger]
) -> None:
    """It has forgotten its vote. With the timeline again it could vote twice."""
    cluster = quorum_cluster(wal_seg_size=MEGABYTE)
    wiped, second, _ = cluster.safekeepers
    ledger = ledger_of(cluster)
    wiped.kill()
    shutil.rmtree(wiped.data_dir)
    wiped.start()
    wiped.wait_ready()
    wait_until(
        lambda: "no such timeline" in (proposers_view(cluster, wiped)["error"] or ""),
        TIMEOUT,
        "the status to say so",
    )
    ledger.wait_for_progress(20, TIMEOUT)

    cluster.proposer.kill()
    cluster.proposer.start()
    cluster.proposer.wait_streaming()
    ledger.wait_for_progress(20, TIMEOUT)
    assert wiped.status()["timelines"] == []
    ledger.pause()
    ledger.wait_idle(TIMEOUT)

    second.kill()
    commit = PendingCommit(cluster.postgres)
    commit.wait_blocked(TIMEOUT)
    cluster.proposer.kill()
    cluster.proposer.start()
    assert cluster.proposer.wait(TIMEOUT) == ExitCode.UNREACHABLE
    assert "lost its data" in cluster.proposer.log_tail()
    assert not commit.has_returned
    assert wiped.status()["timelines"] == []

    second.start()
    second.wait_ready()
    cluster.proposer.start()
    commit.wait_returned(TIMEOUT)
    ledger.resume()
    assert_nothing_lost(cluster, ledger, cluster.safekeepers[1:])
    assert wiped.status()["timelines"] == []


def fall_behind(cluster: QuorumCluster, laggard: SafekeeperProcess, megabytes: int) -> None:
    """The lagging member receives nothing; all others get this much WAL, and none keeps more than
    it must."""
    cluster.proxies[laggard.id - 1].stall()
    write_wal(cluster.postgres, megabytes)
    end_lsn = cluster.postgres.flush_lsn()
    cluster.proposer.wait_until(
        lambda: cluster.commit_lsn() >= end_lsn, TIMEOUT, f"commit_lsn to reach {end_lsn}"
    )
    assert flush_lsn(laggard) < end_lsn - (megabytes - 8) * MEGABYTE
    cluster.postgres.execute("CHECKPOINT")
    assert pg_wal_bytes(cluster.postgres) < 2 * MAX_WAL_MEGABYTES * MEGABYTE
    assert cluster.proposer.rss_bytes() < PROPOSER_RSS_MAX


def test_a_laggard_is_caught_up_by_a_donor(cluster: QuorumCluster, ledger: Ledger) -> None:
    laggard = cluster.safekeepers[0]
    fall_behind(cluster, laggard, 40)
    cluster.proxies[0].restore()
    assert_nothing_lost(cluster, ledger)
    assert cluster.proposer.rss_bytes() < PROPOSER_RSS_MAX
    donors = DONOR.findall(cluster.proposer.log_text())
    assert donors
    assert donors[-1][1] == cluster.proxies[0].address


def test_a_laggard_whose_donor_dies_finds_another(cluster: QuorumCluster, ledger: Ledger) -> None:
    """Without the donor, commits need the lagging member: they continue when it has caught up."""
    laggard, proxy = cluster.safekeepers[0], cluster.proxies[0]
    fall_behind(cluster, laggard, 72)  # much more than all buffers on the way can hold
    end_lsn = cluster.postgres.flush_lsn()
    reads_before = len(DONOR.findall(cluster.proposer.log_text()))
    proxy.restore()
    proxy.delay(0.1)  # so that the catch-up takes seconds
    wait_until(
        lambda: len(DONOR.findall(cluster.proposer.log_text())) > reads_before,
        TIMEOUT,
        "the catch-up to begin",
    )
    begin_lsn = flush_lsn(laggard)
    wait_until(lambda: flush_lsn(laggard) > begin_lsn, TIMEOUT, "the catch-up to get on")
    address = DONOR.findall(cluster.proposer.log_text())[-1][0]
    (donor,) = (
        s for s, p in zip(cluster.safekeepers, cluster.proxies, strict=True) if p.address == address
    )
    donor.kill()
    assert flush_lsn(laggard) < end_lsn
    commit = PendingCommit(cluster.postgres)
    commit.wait_blocked(TIMEOUT)
    commit.wait_returned(TIMEOUT)
    assert flush_lsn(laggard) >= end_lsn
    assert len(DONOR.findall(cluster.proposer.log_text())) >= reads_before + 2
    donor.start()
    proxy.restore()
    assert_nothing_lost(cluster, ledger)


def test_a_laggard_inside_a_long_record_may_crash(cluster: QuorumCluster, ledger: Ledger) -> None:
    """It falls out of the window inside a record, so its donor begins inside one. The part of the
    record that it has must not count as flushed, because a restart would not find it."""
    laggard, proxy = cluster.safekeepers[0], cluster.proxies[0]
    ledger.pause()
    ledger.wait_idle(TIMEOUT)
    proxy.stall()
    write_wal(cluster.postgres, 60, message_bytes=60 * MEGABYTE)
    ledger.resume()
    ledger.wait_for_progress(20, TIMEOUT)
    proxy.restore()
    proxy.delay(0.1)
    wait_until(lambda: "catching up" in cluster.proposer.log_tail(), TIMEOUT, "the catch-up")
    begin_lsn = written_lsn(laggard)
    wait_until(lambda: written_lsn(laggard) > begin_lsn + MEGABYTE, TIMEOUT, "it to get on")
    laggard.kill()
    laggard.start()
    proxy.restore()
    assert_nothing_lost(cluster, ledger)


def test_a_laggard_of_ten_default_segments(
    quorum_cluster: Callable[..., QuorumCluster], ledger_of: Callable[..., Ledger]
) -> None:
    cluster = quorum_cluster()
    frozen = cluster.safekeepers[0]
    ledger = ledger_of(cluster)
    frozen.pause()
    write_wal(cluster.postgres, 176)
    ledger.wait_for_progress(20, TIMEOUT)
    assert cluster.proposer.rss_bytes() < PROPOSER_RSS_MAX
    frozen.resume()
    assert_nothing_lost(cluster, ledger)
    assert "catching up" in cluster.proposer.log_text()
    assert cluster.proposer.rss_bytes() < PROPOSER_RSS_MAX
