"""The archive follows the commits whichever process dies, and a store that is down stops no
commit."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from archive_folder import give_back, take_away
from failover_world import FailoverWorld, Loss

from quorum_wal.consensus.ids import TimelineId, parse_id
from quorum_wal.objectstore.archive import TimelineArchive
from quorum_wal.objectstore.errors import ObjectNotFound
from quorum_wal.objectstore.local import LocalStore
from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.ledger import Ledger
from quorum_wal.pg_fixtures.safekeeper import SafekeeperProcess
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.pgwal.segment import format_segment_name

TIMEOUT = 120.0
MB = 1 << 20
PARTIAL_INTERVAL_SECONDS = 4.0
TAKEOVER_SECONDS_MAX = 10.0
FILL = "SELECT pg_logical_emit_message(true, 'fill', repeat('x', {} << 20))"


class ArchivedCluster:
    """A cluster with a folder as its archive."""

    def __init__(self, cluster: QuorumCluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        status = timeline_of(cluster.safekeepers[0])
        self.timeline = TimelineId(
            parse_id(status["tenant_id"], "tenant"), parse_id(status["timeline_id"], "timeline")
        )

    def archive(self) -> TimelineArchive:
        return TimelineArchive.open(LocalStore(str(self.folder)), self.timeline)

    def archived_lsn(self) -> int:
        """The position that a reader finds from the start of the timeline on; 0 without an
        archive."""
        try:
            archive = self.archive()
        except ObjectNotFound:
            return 0
        return archive.archived_lsn(archive.newest_history(), archive.facts.timeline_start_lsn)

    def wait_archived(self, lsn: int, timeout: float = TIMEOUT) -> None:
        wait_until(lambda: self.archived_lsn() >= lsn, timeout, f"the archive to reach {Lsn(lsn)}")

    def wait_known(self, lsn: int, safekeepers: list[SafekeeperProcess]) -> None:
        wait_until(
            lambda: all(Lsn.parse(archive_of(s)["archived_lsn"]) >= lsn for s in safekeepers),
            TIMEOUT,
            f"all to know that {Lsn(lsn)} is archived",
        )

    def archiver(self) -> SafekeeperProcess:
        """The safekeeper that uploads."""

        def find() -> SafekeeperProcess | None:
            found = [s for s in self.cluster.safekeepers if is_archiving(s)]
            return found[0] if len(found) == 1 else None

        return wait_until(find, TIMEOUT, "exactly one to archive")


def timeline_of(safekeeper: SafekeeperProcess) -> dict[str, Any]:
    timeline = safekeeper.timeline()
    assert timeline is not None
    return timeline


def archive_of(safekeeper: SafekeeperProcess) -> dict[str, Any]:
    status: dict[str, Any] = timeline_of(safekeeper)["archive"]
    return status


def is_archiving(safekeeper: SafekeeperProcess) -> bool:
    return archive_of(safekeeper)["state"] == "archiving"


@pytest.fixture
def archived(
    quorum_cluster: Callable[..., QuorumCluster], tmp_path: Path
) -> Callable[..., ArchivedCluster]:
    def make(*arguments: str, **options: Any) -> ArchivedCluster:
        folder = tmp_path / "archive"
        cluster = quorum_cluster(
            wal_seg_size=MB,
            safekeeper_arguments=[
                f"--archive={folder}",
                f"--archive-partial-interval={PARTIAL_INTERVAL_SECONDS}",
                *arguments,
            ],
            **options,
        )
        return ArchivedCluster(cluster, folder)

    return make


def test_the_archive_has_what_is_committed(
    archived: Callable[..., ArchivedCluster], ledger_of: Callable[[QuorumCluster], Ledger]
) -> None:
    world = archived("--wal-keep-size=4MB")
    cluster, primary = world.cluster, world.cluster.postgres
    ledger = ledger_of(cluster)
    primary.execute(FILL.format(12))
    ledger.stop()
    end_lsn = primary.flush_lsn()
    begun = time.monotonic()
    world.wait_archived(end_lsn)
    seconds = time.monotonic() - begun
    print(f"the newest commit was archived after {seconds:.1f} s")
    assert seconds <= PARTIAL_INTERVAL_SECONDS
    world.wait_known(end_lsn, cluster.safekeepers)
    archive = world.archive()
    reached, chain = archive.extent(archive.newest_history(), archive.facts.timeline_start_lsn)
    last = cluster.safekeepers[0]
    for wal in chain:
        content = archive.read(wal)
        local = last.data_dir.glob(f"timelines/*/wal/{wal.tli:08X}*{wal.segno:08X}")
        for path in local:  # those that are still kept
            assert path.read_bytes()[: len(content)] == content
    assert sum(len(archive.read(wal)) for wal in chain) == reached - chain[0].segno * MB
    beginnings = [o.key for o in archive.store.list(archive.keys.wal) if ".partial/" in o.key]
    assert len(beginnings) == (1 if reached % MB else 0)
    assert world.archiver().alive


def test_another_one_takes_over(archived: Callable[..., ArchivedCluster]) -> None:
    world = archived()
    primary = world.cluster.postgres
    primary.execute(FILL.format(2))
    world.wait_archived(primary.flush_lsn())
    archiver = world.archiver()
    archiver.kill()
    primary.execute(FILL.format(2))
    begun = time.monotonic()
    world.wait_archived(primary.flush_lsn() // MB * MB)
    seconds = time.monotonic() - begun
    print(f"another one had taken over after {seconds:.1f} s")
    assert seconds < TAKEOVER_SECONDS_MAX
    archiver.start()
    archiver.wait_ready()

    def is_alone_again() -> bool:
        primary.execute(FILL.format(2))  # the other one stops archiving when it notices this one
        return [s for s in world.cluster.safekeepers if is_archiving(s)] == [archiver]

    wait_until(is_alone_again, TIMEOUT, "the first in line to archive alone", interval=0.5)
    world.wait_archived(primary.flush_lsn())
    for safekeeper in world.cluster.safekeepers:
        assert "Traceback" not in safekeeper.log_text()


def test_the_archive_follows_a_failover(
    failover_world: Callable[..., FailoverWorld], tmp_path: Path
) -> None:
    """The segment of the switch is stored whole under its newest timeline, and so is the
    history."""
    folder = tmp_path / "archive"
    world = failover_world(
        safekeeper_arguments=[
            f"--archive={folder}",
            f"--archive-partial-interval={PARTIAL_INTERVAL_SECONDS}",
        ]
    )
    archived = ArchivedCluster(world.cluster, folder)
    world.cluster.postgres.execute(FILL.format(2))
    archived.wait_archived(world.cluster.postgres.flush_lsn())
    world.lose(Loss.MACHINE)
    with world.promotion() as promotion:
        promotion.wait_streaming(TIMEOUT)
        world.standby.execute(FILL.format(2))
        end_lsn = world.standby.flush_lsn()
        archived.wait_archived(end_lsn)
        archive = archived.archive()
        history = archive.newest_history()
        assert history.tli == 2
        (switch,) = history.entries
        _, chain = archive.extent(history, archive.facts.timeline_start_lsn)
        of_switch = next(wal for wal in chain if wal.end_lsn > switch.switch_lsn)
        assert (of_switch.tli, chain[-1].tli) == (2, 2)
        segment = world.standby.pg_wal / format_segment_name(2, of_switch.segno, MB)
        assert archive.read(of_switch) == segment.read_bytes()
        leftovers = [wal for wal in archive.wal(1) if wal.segno >= of_switch.segno]
        assert leftovers == []


def test_an_absent_member_gets_removed_wal_from_the_archive(
    archived: Callable[..., ArchivedCluster], ledger_of: Callable[[QuorumCluster], Ledger]
) -> None:
    world = archived("--wal-keep-size=1MB", "--max-member-wal-keep-size=1MB")
    cluster, primary = world.cluster, world.cluster.postgres
    ledger = ledger_of(cluster)
    first, second, third = cluster.safekeepers
    third.kill()
    away_lsn = Lsn.parse(timeline_of(first)["commit_lsn"])
    primary.execute(FILL.format(12))
    for safekeeper in (first, second):
        wait_until(
            lambda keeper=safekeeper: (
                Lsn.parse(timeline_of(keeper)["local_start_lsn"]) > away_lsn + 4 * MB
            ),
            TIMEOUT,
            "WAL that the third one lacks to go",
        )
    cluster.proposer.kill()  # otherwise the proposer has that WAL in memory
    cluster.start()
    ledger.pause()
    ledger.wait_idle(TIMEOUT)
    assert ledger.verify().ok
    end_lsn = primary.flush_lsn()
    cluster.wait_flushed(end_lsn, TIMEOUT)
    assert f"safekeeper={third.address}" in cluster.proposer.log_text().split("catching up", 1)[1]
    world.wait_archived(end_lsn)
    archive = world.archive()
    compared = 0
    for path in sorted(third.data_dir.glob("timelines/*/wal/0*")):
        segno = int(path.name[16:], 16)
        if (segno + 1) * MB > end_lsn:
            continue
        archived = archive.read_segment(1, segno)
        with suppress(FileNotFoundError):  # its retention continues
            assert path.read_bytes() == archived
            compared += 1
    assert compared >= 1
    third.restart()  # it decodes its log
    wait_until(lambda: timeline_of(third)["state"] == "active", TIMEOUT, "its log to be good")


def test_a_store_that_is_down_costs_no_commit(archived: Callable[..., ArchivedCluster]) -> None:
    world = archived("--wal-keep-size=1MB")
    cluster, primary = world.cluster, world.cluster.postgres
    primary.execute(FILL.format(2))
    world.wait_archived(primary.flush_lsn())
    aside = take_away(world.folder)
    primary.execute(FILL.format(8))
    keeper = world.cluster.safekeepers[0]
    status = wait_until(
        lambda: (
            timeline_of(keeper)
            if timeline_of(keeper)["retention"]["held_by"] == "archive"
            and archive_of(keeper)["error"]
            else None
        ),
        TIMEOUT,
        "the archive to hold WAL, and to say why",
    )
    assert status["archive"]["state"] == "retrying"
    assert status["archive"]["backlog_bytes"] >= 8 * MB
    assert status["wal_bytes"] >= 8 * MB
    give_back(world.folder, aside)
    world.wait_archived(primary.flush_lsn())
    wait_until(
        lambda: (
            timeline_of(keeper)["retention"]["held_by"] != "archive"
            and timeline_of(keeper)["wal_bytes"] <= 6 * MB
        ),
        TIMEOUT,
        "WAL to go",
    )
    assert "archiving resumed" in "".join(s.log_text() for s in cluster.safekeepers)


def test_the_backlog_is_bounded(
    archived: Callable[..., ArchivedCluster], ledger_of: Callable[[QuorumCluster], Ledger]
) -> None:
    world = archived("--archive-backlog-max=8MB", "--wal-keep-size=1MB")
    cluster, primary = world.cluster, world.cluster.postgres
    ledger = ledger_of(cluster)
    world.wait_archived(primary.flush_lsn())
    aside = take_away(world.folder)
    for _ in range(24):
        primary.execute(
            "SELECT pg_logical_emit_message(false, 'fill', repeat('x', 1 << 20))",
            options="-c synchronous_commit=local",
        )
    reasons = wait_until(
        lambda: [
            reason
            for s in cluster.safekeepers
            if (reason := timeline_of(s)["stopped_reason"]) is not None
        ],
        TIMEOUT,
        "WAL to be refused",
    )
    assert "archive backlog has reached its limit of 8388608 bytes" in reasons[0]
    # As much again of uncommitted WAL, and one segment before and after.
    assert all(timeline_of(s)["wal_bytes"] <= 19 * MB for s in cluster.safekeepers)
    assert any(
        "archive backlog" in line for s in cluster.safekeepers for line in s.log_text().splitlines()
    )
    give_back(world.folder, aside)
    ledger.resume()
    ledger.wait_for_progress(10, TIMEOUT)
    world.wait_archived(primary.flush_lsn())
    ledger.pause()
    ledger.wait_idle(TIMEOUT)
    assert ledger.verify().ok
