"""After a failed fsync the timeline stops until a restart; the fsync is never tried again.

The kernel reports lost pages once. A second fsync succeeds and proves nothing ("fsyncgate").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import hand_written_proposer as by_hand
import pytest
from pending_commit import PendingCommit
from reckoning import assert_nothing_lost

from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.failing_disk import FailingDisk
from quorum_wal.pg_fixtures.http_status import http_get
from quorum_wal.pg_fixtures.ledger import Ledger
from quorum_wal.pg_fixtures.plugin import skip_if_unavailable
from quorum_wal.pg_fixtures.safekeeper import SafekeeperProcess
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_server.binaries import PostgresBinaries

SEG_SIZE = 1 << 20
TIMEOUT = 120.0
IO_ERROR = "Input/output error"
# The proposer reconnects twice a second; housekeeping, which could resume it, runs every 5 seconds.
REFUSALS = 12


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("failing")


@pytest.fixture(scope="module")
def disks(root: Path) -> list[FailingDisk]:
    """The first two safekeepers' disks."""
    with skip_if_unavailable():
        return [
            FailingDisk(root / f"disk-{id}", only_below=root / "cluster" / f"safekeeper-{id}")
            for id in (1, 2)
        ]


@pytest.fixture(scope="module")
def on_failing_disks(
    pg_binaries: PostgresBinaries,
    initdb_template: Callable[[PostgresBinaries, int], Path],
    root: Path,
    disks: list[FailingDisk],
) -> Iterator[QuorumCluster]:
    cluster = QuorumCluster(
        root / "cluster",
        binaries=pg_binaries,
        wal_seg_size=SEG_SIZE,
        template=initdb_template(pg_binaries, SEG_SIZE),
    )
    for safekeeper, disk in zip(cluster.safekeepers, disks, strict=False):
        safekeeper.env.update(disk.env)
    with cluster:
        yield cluster


@pytest.fixture
def cluster(on_failing_disks: QuorumCluster, disks: list[FailingDisk]) -> Iterator[QuorumCluster]:
    """All disks work, and all safekeepers follow."""
    yield on_failing_disks
    for disk, safekeeper in zip(disks, on_failing_disks.safekeepers, strict=False):
        disk.restore()
        if stopped_reason(safekeeper):
            safekeeper.restart()


def stopped_reason(safekeeper: SafekeeperProcess) -> str:
    timeline = safekeeper.timeline()
    assert timeline is not None
    return str(timeline["stopped_reason"] or "")


def wait_stopped(safekeeper: SafekeeperProcess) -> str:
    """Return the reason for the stop; status, health and log have the same one."""
    why = wait_until(lambda: stopped_reason(safekeeper), TIMEOUT, f"{safekeeper.name} to stop")
    code, health = http_get(safekeeper.http_address, "/healthz")
    assert code == 503
    assert why in health
    assert why in safekeeper.log_text()
    assert IO_ERROR in why
    assert str(safekeeper.data_dir) in why
    return why


def assert_nothing_burst(cluster: QuorumCluster) -> None:
    for service in (*cluster.safekeepers, cluster.proposer):
        assert "Traceback" not in service.log_text()


def test_a_failed_fsync_is_never_tried_again(
    cluster: QuorumCluster, disks: list[FailingDisk], ledger: Ledger
) -> None:
    safekeeper, disk = cluster.safekeepers[0], disks[0]
    said = said_refusals_count(safekeeper)
    disk.fail_sync()
    why = wait_stopped(safekeeper)
    failures, refusals = disk.failures, refusals_count(safekeeper)
    assert failures >= 1
    assert "could not fdatasync" in why

    wait_until(
        lambda: refusals_count(safekeeper) >= refusals + REFUSALS,
        TIMEOUT,
        "the proposer to try again and again",
    )
    assert stopped_reason(safekeeper) == why
    assert disk.failures == failures
    assert said_refusals_count(safekeeper) <= said + 2, "each reason is said once"
    ledger.wait_for_progress(100, TIMEOUT)  # with the two others

    disk.restore()
    safekeeper.restart()  # it reads what is really on disk
    assert_nothing_lost(cluster, ledger)
    assert_nothing_burst(cluster)


def refusals_count(safekeeper: SafekeeperProcess) -> int:
    _, text = http_get(safekeeper.http_address, "/metrics")
    (line,) = [line for line in text.splitlines() if line.startswith("sk_refusals_total ")]
    return int(float(line.split()[1]))


def said_refusals_count(safekeeper: SafekeeperProcess) -> int:
    return sum(" refused " in line for line in safekeeper.log_text().splitlines())


def test_two_failed_fsyncs_make_commits_wait(
    cluster: QuorumCluster, disks: list[FailingDisk], ledger: Ledger
) -> None:
    first, second, _ = cluster.safekeepers
    for disk in disks:
        disk.fail_sync()
    pending = PendingCommit(cluster.postgres)
    for safekeeper in (first, second):
        wait_stopped(safekeeper)
    pending.wait_blocked(TIMEOUT)
    for disk, safekeeper in zip(disks, (first, second), strict=True):
        disk.restore()
        safekeeper.restart()
    pending.wait_returned(TIMEOUT)
    assert_nothing_lost(cluster, ledger)
    assert_nothing_burst(cluster)


def test_a_vote_that_may_not_be_on_disk_is_not_given(
    cluster: QuorumCluster, disks: list[FailingDisk], ledger: Ledger
) -> None:
    first, second, third = cluster.safekeepers
    ledger.pause()
    ledger.wait_idle(TIMEOUT)
    promised = by_hand.promise(first)
    disks[0].fail_sync()
    cluster.proposer.kill()
    cluster.proposer.start()
    wait_stopped(first)
    cluster.proposer.wait_streaming()
    assert by_hand.promise(first) == promised
    assert by_hand.promise(second) == by_hand.promise(third) > promised

    disks[0].restore()
    first.restart()
    ledger.resume()
    assert_nothing_lost(cluster, ledger)
    assert by_hand.promise(first) == by_hand.promise(second)
    assert_nothing_burst(cluster)
