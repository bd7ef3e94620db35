"""`sk archive fetch` as the restore_command of a real Postgres: recovery gets all committed WAL
from any source that has it. If a source is unavailable, recovery stops and does not end."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pg_versions import oldest_and_newest
from sk_command import sk
from stock_clients import table_checksums
from test_archiving import ArchivedCluster

from quorum_wal.backup.recovery_settings import restore_command
from quorum_wal.backup.wal_prefetch import FOLDER
from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.data_directory import DataDirectory
from quorum_wal.pg_fixtures.errors import ProcessEnded
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.processes import SK
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_server.binaries import PostgresBinaries
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.pgwal.segment import format_segment_name, parse_segment_name

TIMEOUT = 120.0
MB = 1 << 20
PREFETCH_FOLDER = f"pg_wal/{FOLDER}"


class LostPrimary:
    """A cluster with an archive, whose primary will be lost, and a base backup of it."""

    def __init__(self, archived: ArchivedCluster, restored: Postgres) -> None:
        self.archived = archived
        self.cluster = archived.cluster
        self.folder = archived.folder
        self.restored = restored
        self.checksums: dict[str, str] = {}
        self.end_lsn = Lsn(0)

    def commit_rows(self, megabytes: int) -> None:
        """Commit rows, in a table of their own."""
        primary = self.cluster.postgres
        primary.execute(
            f"CREATE TABLE t{int(primary.flush_lsn())} AS "
            f"SELECT i, repeat(md5(i::text), 8) AS a FROM generate_series(1, {megabytes * 3000}) i"
        )

    def lose(self) -> None:
        """Lose the primary, after all safekeepers know the last commit."""
        primary = self.cluster.postgres
        self.checksums = table_checksums(primary)
        self.end_lsn = primary.flush_lsn()
        self.wait_committed(self.end_lsn)
        primary.crash()
        self.cluster.proposer.kill()

    def wait_committed(self, lsn: int) -> None:
        def is_known() -> bool:
            statuses = [safekeeper.timeline() for safekeeper in self.cluster.safekeepers]
            return all(s is not None and Lsn.parse(s["commit_lsn"]) >= lsn for s in statuses)

        wait_until(is_known, TIMEOUT, "all to know what is committed")

    def safekeepers(self) -> str:
        return ",".join(safekeeper.address for safekeeper in self.cluster.safekeepers)

    def recover(self, *options: str, by_hand: bool = False) -> None:
        """Start the restored server with this restore_command, and return when it is promoted."""
        self.prepare(*options, by_hand=by_hand)
        self.restored.start()
        self.wait_promoted()

    def prepare(self, *options: str, by_hand: bool = False) -> None:
        """Prepare the server as `sk restore` does, or with the minimum."""
        timeline = str(self.archived.timeline)
        words = [*SK, "archive", "fetch", *options]
        if by_hand:
            command = " ".join([*words, "%f", "%p"])
        else:
            words += ["--timeline", timeline]
            command = restore_command(f"{PREFETCH_FOLDER}/{timeline}", words)
        DataDirectory(self.restored.data_dir, self.restored.binaries).write("recovery.signal", "")
        self.restored.configure(restore_command=command, synchronous_standby_names="")

    def wait_promoted(self) -> None:
        wait_until(
            lambda: self.restored.execute("SELECT pg_is_in_recovery()") == [(False,)],
            TIMEOUT,
            "the end of the recovery",
        )

    def assert_nothing_lost(self) -> None:
        assert len(self.checksums) >= 2
        assert table_checksums(self.restored) == self.checksums
        text = self.restored.log_text()
        assert "Traceback" not in text
        wait_until(
            lambda: not (self.restored.data_dir / PREFETCH_FOLDER).exists(),
            TIMEOUT,
            "the prefetched segments to be gone",
        )

    def segment_in_archive(self, segno: int) -> Path:
        folder = self.folder / str(self.archived.timeline) / "wal" / "00000001"
        return folder / format_segment_name(1, segno, MB)


@pytest.fixture
def lost_primary(
    quorum_cluster: Callable[..., QuorumCluster], tmp_path: Path
) -> Iterator[Callable[..., LostPrimary]]:
    with ExitStack() as servers:

        def make(*arguments: str, **options: Any) -> LostPrimary:
            folder = tmp_path / "archive"
            cluster = quorum_cluster(
                wal_seg_size=MB,
                safekeeper_arguments=[
                    f"--archive={folder}",
                    "--archive-partial-interval=0.5",
                    *arguments,
                ],
                **options,
            )
            restored = cluster.postgres.base_backup(tmp_path / "restored")
            servers.callback(restored.crash)
            world = LostPrimary(ArchivedCluster(cluster, folder), restored)
            world.commit_rows(3)
            return world

        yield make


def kill_safekeepers(world: LostPrimary) -> None:
    for safekeeper in world.cluster.safekeepers:
        safekeeper.kill()


@pytest.mark.parametrize("pg_binaries", oldest_and_newest()[-1:], ids=str, indirect=True)
def test_from_the_archive_alone(
    lost_primary: Callable[..., LostPrimary], pg_binaries: PostgresBinaries
) -> None:
    """No safekeeper is left. The archive also has the beginning of the unfinished segment."""
    world = lost_primary()
    world.commit_rows(5)
    world.archived.wait_archived(world.cluster.postgres.flush_lsn())
    world.lose()
    world.archived.wait_archived(world.end_lsn)
    assert world.end_lsn % MB
    kill_safekeepers(world)
    world.recover(f"--archive={world.folder}")
    world.assert_nothing_lost()
    assert "restored log file" in world.restored.log_text()


def test_from_the_safekeepers_alone(lost_primary: Callable[..., LostPrimary]) -> None:
    """One of them is lost."""
    world = lost_primary()
    world.commit_rows(2)
    world.lose()
    world.cluster.safekeepers[0].kill()
    world.recover(f"--safekeepers={world.safekeepers()}")
    world.assert_nothing_lost()


def test_at_the_boundary_of_archive_and_safekeepers(
    lost_primary: Callable[..., LostPrimary], tmp_path: Path
) -> None:
    """The archive ends inside a segment, and the safekeepers have the WAL from there on."""
    world = lost_primary("--wal-keep-size=1MB")
    primary = world.cluster.postgres
    world.commit_rows(4)
    world.archived.wait_archived(primary.flush_lsn())
    begins_lsn = primary.flush_lsn()
    snapshot = tmp_path / "snapshot"
    shutil.copytree(world.folder, snapshot)
    primary.execute("CHECKPOINT")
    world.commit_rows(1)
    world.lose()

    def has_removed_some() -> bool:
        statuses = [safekeeper.timeline() for safekeeper in world.cluster.safekeepers]
        return all(s is not None and Lsn.parse(s["local_start_lsn"]) > 4 * MB for s in statuses)

    wait_until(has_removed_some, TIMEOUT, "the safekeepers to keep less than a restore needs")
    assert begins_lsn % MB
    # Neither of them has all of it.
    archive, safekeepers = f"--archive={snapshot}", f"--safekeepers={world.safekeepers()}"
    last = format_segment_name(1, int(world.end_lsn) // MB, MB)
    assert sk("archive", "fetch", archive, last, tmp_path / "x").returncode == 1
    assert sk("archive", "fetch", safekeepers, f"{1:08X}{0:08X}{3:08X}", tmp_path / "x").returncode
    world.recover(archive, safekeepers, by_hand=True)
    world.assert_nothing_lost()


@pytest.mark.parametrize("prefetch", [0, 8])
def test_a_recovery_never_ends_early(
    lost_primary: Callable[..., LostPrimary], tmp_path: Path, prefetch: int
) -> None:
    """One object of the archive is truncated, then it cannot be read: Postgres stops. After the
    repair it is started again and recovers everything."""
    world = lost_primary()
    world.commit_rows(5)
    world.lose()
    world.archived.wait_archived(world.end_lsn)
    kill_safekeepers(world)
    first = min(segments_needed(world.restored))
    damaged = world.segment_in_archive(first + 3)
    aside = tmp_path / "aside"
    shutil.copy2(damaged, aside)
    world.prepare(f"--archive={world.folder}", f"--prefetch={prefetch}", "--patience=0")

    damaged.write_bytes(aside.read_bytes()[:-100])
    assert_stops(world, "is damaged")
    damaged.unlink()
    damaged.mkdir()
    assert_stops(world, "could not access object")
    damaged.rmdir()
    aside.replace(damaged)
    world.restored.start()
    world.wait_promoted()
    world.assert_nothing_lost()


def segments_needed(restored: Postgres) -> list[int]:
    """The numbers of the segments that the backup contains."""
    names = [path.name for path in restored.pg_wal.iterdir() if len(path.name) == 24]
    return [parse_segment_name(name, MB).segno for name in names]


def assert_stops(world: LostPrimary, reason: str) -> None:
    """Postgres may serve queries for a moment, but is never promoted."""
    try:
        world.restored.start()
    except ProcessEnded:
        pass  # so soon; the log has the reason
    wait_until(lambda: not world.restored.is_running, TIMEOUT, "Postgres to stop")
    text = world.restored.log_text()
    assert "archive recovery complete" not in text
    assert reason in text
    assert "could not restore file" in text
