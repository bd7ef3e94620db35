"""The refusals of `sk restore`, with the existing targets; and the settings that it takes from a
moved server."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from restored import (
    SEGMENT_BYTES,
    TIMEOUT,
    RestoredPostgres,
    archiving,
    new_folder,
    restored_at,
    take_backup,
)
from sk_command import assert_refused

from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_server.binaries import PostgresBinaries, all_postgres
from quorum_wal.pgwal.lsn import Lsn


def test_only_what_exists_is_restored(
    pg_binaries: PostgresBinaries, quorum_cluster: Callable[..., QuorumCluster], tmp_path: Path
) -> None:
    archive = tmp_path / "archive"
    cluster = quorum_cluster(wal_seg_size=SEGMENT_BYTES, safekeeper_arguments=archiving(archive))
    primary = cluster.postgres
    old_location = new_folder(tmp_path / "old")
    primary.execute(f"CREATE TABLESPACE elsewhere LOCATION '{old_location}'")
    primary.execute("CREATE TABLE t (a) TABLESPACE elsewhere AS VALUES (1)")
    ((before,),) = primary.execute("SELECT pg_current_wal_lsn()::text")
    name = take_backup(archive, primary)
    primary.execute("INSERT INTO t VALUES (2)")
    addresses = ",".join(safekeeper.address for safekeeper in cluster.safekeepers)

    with restored_at(pg_binaries, tmp_path / "restored") as restored:

        def refused(sentence: str, hint: str, *arguments: object) -> None:
            assert_refused(restored.restore(archive, *arguments), 1, sentence, hint)
            assert not restored.data_dir.exists()

        end = Lsn(primary.flush_lsn() + (1 << 30))
        refused(f"{end} is not before the end of the log", "latest", "--target-lsn", end)
        refused("no backup leads to", "sk backup list", "--target-lsn", before)
        refused("is not before", "latest", "--target-time", "2126-11-21T00:00:00+00:00")
        refused("no backup leads to", "list", "--target-time", "2006-11-21T00:00:00Z")
        refused("the log has no end of transaction 4000000000", "read", "--target-xid", 4 * 10**9)
        refused("there is no backup", "list", "--backup", name.replace("2", "3", 1))
        refused("is not before 0/", "", "--backup", name, "--target-lsn", before)
        for other in all_postgres():
            if other.major != pg_binaries.major:
                wrong = f"the backup is of Postgres {pg_binaries.major}"
                refused(wrong, "--pg-bin", "--pg-bin", other.bin_dir)
        refused(f'"{old_location}" is not empty', "Move it")
        done = restored.restore(archive, "--safekeepers", "127.0.0.1:1")
        assert_refused(
            done, 4, "no safekeeper that answers has timeline", "restore from the archive"
        )

        new_location = new_folder(tmp_path / "new")
        moved = ("--tablespace", f"{old_location}={new_location}")
        tried = restored.restore(archive, *moved, "--dry-run", "--safekeepers", addresses)
        assert tried.returncode == 0, tried.stderr
        assert not restored.data_dir.exists()
        restored.data_dir.mkdir()
        (restored.data_dir / "mine").touch()
        assert_refused(restored.restore(archive, *moved), 1, "is not empty", "Move it")
        (restored.data_dir / "mine").unlink()

        done = restored.restore(archive, *moved, "--safekeepers", addresses)
        assert done.returncode == 0, done.stderr
        assert re.search(rf"backup {name}, .* target latest", done.stdout)
        restored.start()
        assert restored.execute("SELECT a FROM t ORDER BY a") == [(1,), (2,)]
        path = restored.execute("SELECT pg_tablespace_location(oid) FROM pg_tablespace")[-1][0]
        assert path == str(new_location)
        restored.stop()

    with restored_at(pg_binaries, tmp_path / "again") as again:
        assert_cannot_start_without_a_part(again, archive, f"{old_location}={tmp_path / 'third'}")


def assert_cannot_start_without_a_part(
    server: RestoredPostgres, archive: Path, tablespace: str
) -> None:
    (missing,) = archive.glob("*/*/backups/*/base.tar/000001")
    missing.unlink()
    assert_refused(server.restore(archive, "--tablespace", tablespace), 1, "does not exist")
    assert not (server.data_dir / "global" / "pg_control").exists()


def test_a_recovery_stops_at_damage_and_continues_after_the_repair(
    pg_binaries: PostgresBinaries, quorum_cluster: Callable[..., QuorumCluster], tmp_path: Path
) -> None:
    archive = tmp_path / "archive"
    cluster = quorum_cluster(wal_seg_size=SEGMENT_BYTES, safekeeper_arguments=archiving(archive))
    primary = cluster.postgres
    take_backup(archive, primary)
    names = []
    for number in range(3):
        primary.execute(f"CREATE TABLE t{number} AS SELECT g FROM generate_series(1, 3000) g")
        names += primary.execute("SELECT pg_walfile_name(pg_switch_wal())")
    (segment, *_) = [wait_archived(archive, name) for (name,) in names]
    content = segment.read_bytes()
    segment.write_bytes(content[:100] + bytes(1) + content[101:])
    with restored_at(pg_binaries, tmp_path / "restored") as restored:
        done = restored.restore(archive, "--start", *restored.starting)
        assert_refused(done, 1, "FATAL", "sk_restore.log")
        assert re.search(r"^    .*FATAL", done.stderr, re.MULTILINE)  # the end of the log
        assert "is damaged" in (restored.data_dir / "sk_restore.log").read_text()
        segment.write_bytes(content)
        restored.start()
        wait_until(
            lambda: restored.execute("SELECT pg_is_in_recovery()") == [(False,)],
            TIMEOUT,
            "the end of the recovery",
        )
        assert restored.execute("SELECT count(*) FROM t2") == [(3000,)]


def wait_archived(archive: Path, file_name: str) -> Path:
    return wait_until(
        lambda: next(archive.glob(f"*/*/wal/*/{file_name}"), None), TIMEOUT, f"{file_name} archived"
    )
