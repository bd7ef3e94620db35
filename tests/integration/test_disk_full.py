"""A safekeeper whose disk is full stops, reports why, and resumes by itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import hand_written_proposer as by_hand
import pytest
from pending_commit import PendingCommit
from reckoning import assert_nothing_lost
from replication_client import ReplicationClient

from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.http_status import http_get
from quorum_wal.pg_fixtures.ledger import Ledger
from quorum_wal.pg_fixtures.plugin import skip_if_unavailable
from quorum_wal.pg_fixtures.safekeeper import SafekeeperProcess
from quorum_wal.pg_fixtures.small_disk import SmallDisk
from quorum_wal.pg_fixtures.standby import replica_conninfo
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_server.binaries import PostgresBinaries
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.safekeeper.retention import DISK_RESERVE_BYTES

SEG_SIZE = 1 << 20
DISK_BYTES = 128 << 20
TIMEOUT = 120.0
# A safekeeper has space for the open segment and the spare one. This fills both.
FOUR_SEGMENTS = "SELECT pg_logical_emit_message(true, 'fill', repeat('x', 4 << 20))"
# A record over many segments is not committed, so no slot holds it.
MANY_RECORDS = (
    "SELECT count(pg_logical_emit_message(true, 'fill', repeat('x', 1 << 19))) "
    "FROM generate_series(1, 48)"
)

NO_SPACE = "No space left on device"


@pytest.fixture(scope="module")
def disks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[SmallDisk]]:
    """The first two safekeepers' disks."""
    root = tmp_path_factory.mktemp("small") / "cluster"
    with ExitStack() as stack, skip_if_unavailable():
        yield [
            stack.enter_context(SmallDisk(root / f"safekeeper-{id}", DISK_BYTES)) for id in (1, 2)
        ]


@pytest.fixture(scope="module")
def on_small_disks(
    pg_binaries: PostgresBinaries,
    initdb_template: Callable[[PostgresBinaries, int], Path],
    disks: list[SmallDisk],
) -> Iterator[QuorumCluster]:
    with QuorumCluster(
        disks[0].path.parent,
        binaries=pg_binaries,
        wal_seg_size=SEG_SIZE,
        template=initdb_template(pg_binaries, SEG_SIZE),
    ) as cluster:
        yield cluster


@pytest.fixture
def cluster(on_small_disks: QuorumCluster, disks: list[SmallDisk]) -> QuorumCluster:
    """All have free space and follow."""
    for disk in disks:
        disk.free()
    on_small_disks.start()
    wait_until(lambda: followers(on_small_disks) == [1, 2, 3], TIMEOUT, "all to follow")
    return on_small_disks


def followers(cluster: QuorumCluster) -> list[int]:
    peers = cluster.proposer.status()["safekeepers"]
    return sorted(peer["id"] for peer in peers if peer["connected"])


def proposers_view(cluster: QuorumCluster, id: int) -> str:
    """The proposer's error for a safekeeper."""
    peers = cluster.proposer.status()["safekeepers"]
    return " ".join(str(peer["error"]) for peer in peers if peer["id"] == id)


def wait_stopped(safekeeper: SafekeeperProcess) -> str:
    """Return the reason when the timeline has stopped; status, health and log have the same one."""

    def reason() -> str:
        timeline = safekeeper.timeline()
        assert timeline is not None
        return str(timeline["stopped_reason"]) if timeline["state"] == "stopped" else ""

    why = wait_until(reason, TIMEOUT, f"the timeline of {safekeeper.name} to stop")
    code, health = http_get(safekeeper.http_address, "/healthz")
    assert code == 503
    assert why in health
    assert why in safekeeper.log_text().replace("\\'", "'")
    return why


def wait_active(safekeeper: SafekeeperProcess) -> None:
    def is_active() -> bool:
        timeline = safekeeper.timeline()
        return timeline is not None and timeline["state"] == "active"

    wait_until(is_active, TIMEOUT, f"the timeline of {safekeeper.name} to come back")


def position(safekeeper: SafekeeperProcess, name: str) -> Lsn:
    timeline = safekeeper.timeline()
    assert timeline is not None
    return Lsn.parse(timeline[name])


def open_segments(safekeeper: SafekeeperProcess) -> list[str]:
    links = [os.readlink(link) for link in Path(f"/proc/{safekeeper.pid}/fd").iterdir()]
    return [path for path in links if "/wal/" in path]


def assert_nothing_burst(cluster: QuorumCluster) -> None:
    for service in (*cluster.safekeepers, cluster.proposer):
        assert "Traceback" not in service.log_text()


def test_one_full_disk_costs_no_commit(
    cluster: QuorumCluster, disks: list[SmallDisk], ledger: Ledger
) -> None:
    safekeeper, *others = cluster.safekeepers
    pid = safekeeper.pid
    disks[0].fill()
    cluster.postgres.execute(FOUR_SEGMENTS)
    why = wait_stopped(safekeeper)
    assert NO_SPACE in why
    assert str(safekeeper.data_dir) in why

    ledger.wait_for_progress(100, TIMEOUT)
    assert followers(cluster) == [2, 3]
    wait_until(lambda: NO_SPACE in proposers_view(cluster, 1), TIMEOUT, "the proposer to know why")
    for other in others:
        assert http_get(other.http_address, "/healthz")[0] == 200

    disks[0].free()
    wait_active(safekeeper)
    assert safekeeper.pid == pid
    assert_nothing_lost(cluster, ledger)  # caught up, byte for byte
    assert http_get(safekeeper.http_address, "/healthz")[0] == 200
    assert_nothing_burst(cluster)


def test_two_full_disks_make_commits_wait(
    cluster: QuorumCluster, disks: list[SmallDisk], ledger: Ledger
) -> None:
    first, second, _ = cluster.safekeepers
    for disk in disks:
        disk.fill()
    pending = PendingCommit(cluster.postgres, FOUR_SEGMENTS)
    for safekeeper in (first, second):
        assert NO_SPACE in wait_stopped(safekeeper)
    pending.wait_blocked(TIMEOUT)
    wait_until(
        lambda: not cluster.proposer.status()["quorum"]["ok"], TIMEOUT, "the quorum to be lost"
    )
    assert followers(cluster) == [3]

    for disk in disks:
        disk.free()
    pending.wait_returned(TIMEOUT)
    assert_nothing_lost(cluster, ledger)
    assert_nothing_burst(cluster)


def test_dropping_the_slot_that_filled_the_disk_frees_the_space(
    pg_binaries: PostgresBinaries,
    initdb_template: Callable[[PostgresBinaries, int], Path],
    tmp_path: Path,
) -> None:
    """Dropping the slot is enough: WAL is removed while the timeline is stopped, too."""
    with ExitStack() as stack:
        with skip_if_unavailable():
            disk = stack.enter_context(SmallDisk(tmp_path / "safekeeper-1", DISK_BYTES))
        cluster = stack.enter_context(
            QuorumCluster(
                tmp_path,
                binaries=pg_binaries,
                safekeepers=1,
                wal_seg_size=SEG_SIZE,
                template=initdb_template(pg_binaries, SEG_SIZE),
                safekeeper_arguments=["--wal-keep-size=2MB"],
            )
        )
        (keeper,) = cluster.safekeepers
        slot = stack.enter_context(ReplicationClient(replica_conninfo([keeper.address])))
        slot.command("CREATE_REPLICATION_SLOT forgotten PHYSICAL RESERVE_WAL")
        for _ in range(2):
            cluster.postgres.execute(FOUR_SEGMENTS)
        wait_until(
            # Members report what they hold ten times a second; the disk is full before the next
            # report.
            lambda: position(keeper, "truncate_lsn") == position(keeper, "flush_lsn"),
            TIMEOUT,
            "the slot alone to hold eight segments",
        )
        disk.fill(leave_bytes=DISK_RESERVE_BYTES + 16 * SEG_SIZE)
        pending = PendingCommit(cluster.postgres, MANY_RECORDS)
        why = wait_stopped(keeper)
        assert NO_SPACE in why
        assert f"{DISK_RESERVE_BYTES + 3 * SEG_SIZE} bytes are free" in why
        pending.wait_blocked(TIMEOUT)
        timeline = keeper.timeline()
        assert timeline is not None
        assert timeline["retention"]["held_by"] == "slot forgotten"

        slot.command("DROP_REPLICATION_SLOT forgotten")
        wait_active(keeper)
        pending.wait_returned(TIMEOUT)
        assert_nothing_burst(cluster)


def test_a_vote_that_cannot_be_persisted_is_not_given(
    cluster: QuorumCluster, disks: list[SmallDisk], ledger: Ledger
) -> None:
    first, second, third = cluster.safekeepers
    ledger.pause()
    ledger.wait_idle(TIMEOUT)
    promised = by_hand.promise(first)
    (control,) = first.data_dir.glob("timelines/*/control")
    disks[0].fill()
    cluster.proposer.kill()
    cluster.proposer.start()
    why = wait_stopped(first)
    assert f'could not write "{control}.tmp": {NO_SPACE}' in why
    cluster.proposer.wait_streaming()

    assert by_hand.promise(first) == promised
    assert by_hand.promise(second) == by_hand.promise(third) > promised
    ledger.resume()
    ledger.wait_for_progress(50, TIMEOUT)
    assert followers(cluster) == [2, 3]

    disks[0].free()
    wait_active(first)
    assert_nothing_lost(cluster, ledger)
    assert by_hand.promise(first) == by_hand.promise(second)
    assert len(open_segments(first)) == 1  # the WAL before it was released
    assert_nothing_burst(cluster)
