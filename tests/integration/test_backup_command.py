"""`sk backup`: from the primary and from a standby, verified, listed, removed; damaged pages."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest
from restored import SEGMENT_BYTES, TIMEOUT, archiving, new_folder, restored_at, take_backup
from sk_command import assert_refused, sk, sk_json

from quorum_wal.backup.backup_catalog import BackupCatalog
from quorum_wal.backup.base_backup import BackupOptions
from quorum_wal.backup.create import BackedUpServer, create_backup
from quorum_wal.backup.errors import BackupError
from quorum_wal.consensus.ids import TimelineId
from quorum_wal.objectstore.archive import ArchivedTimeline, TimelineArchive
from quorum_wal.objectstore.local import LocalStore
from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.standby import wait_replayed
from quorum_wal.pgwal.lsn import Lsn

PAGE_BYTES = 8192


def test_backups_of_a_cluster(
    quorum_cluster: Callable[..., QuorumCluster],
    standby_factory: Callable[..., Postgres],
    tmp_path: Path,
) -> None:
    """Three backups, one from a standby, all sound; then the oldest are removed."""
    archive = tmp_path / "archive"
    cluster = quorum_cluster(wal_seg_size=SEGMENT_BYTES, safekeeper_arguments=archiving(archive))
    primary, where = cluster.postgres, ("--archive", archive)
    standby = standby_factory(primary, "standby", cluster.replica_conninfo())
    primary.execute("CREATE TABLE t AS SELECT g, repeat('x', 100) FROM generate_series(1, 9999) g")
    wait_replayed(standby, primary.flush_lsn(), TIMEOUT)
    names = [take_backup(archive, server) for server in (primary, standby)]
    ((before_tablespace,),) = primary.execute("SELECT pg_current_wal_insert_lsn()::text")
    location = new_folder(tmp_path / "tablespace")
    primary.execute(f"CREATE TABLESPACE elsewhere LOCATION '{location}'")
    primary.execute("CREATE TABLE there (a) TABLESPACE elsewhere AS VALUES (1)")
    names.append(take_backup(archive, primary, "--label", "third", "--compression", "0"))
    for name in names:
        verified = sk("backup", "verify", *where, name)
        assert verified.returncode == 0, verified.stderr

    with restored_at(primary.binaries, tmp_path / "restored") as restored:
        target = ("--backup", names[1], "--target-lsn", before_tablespace)
        done = restored.restore(archive, *target, "--start", *restored.starting)
        assert done.returncode == 0, done.stderr
        assert restored.execute("SELECT count(*) FROM t") == [(9999,)]

    listed = sk_json("backup", "list", *where)
    assert [each["backup_id"] for each in listed] == names
    assert [each["from_standby"] for each in listed] == [False, True, False]
    assert [each["tablespaces"] for each in listed] == [[], [], [str(location)]]
    shown = sk_json("backup", "show", *where, names[2])
    assert shown["label"] == "third"
    assert Lsn.parse(shown["archived_lsn"]) >= Lsn.parse(shown["stop_lsn"])

    damage_a_part(archive, names[0])
    assert_refused(sk("backup", "verify", *where, names[0]), 1, "is damaged")

    would = sk("backup", "prune", *where, "--keep", 1, "--dry-run")
    assert would.stdout.count("would be deleted") == 2
    kept = sk("backup", "prune", *where, "--keep", 1, "--days", 30)
    assert kept.stdout == ""
    pruned = sk("backup", "prune", *where, "--keep", 2)
    assert pruned.stdout.split()[0] == names[0]
    assert sk("backup", "delete", *where, names[1]).returncode == 0
    assert_refused(sk("backup", "delete", *where, names[1]), 1, "there is no backup", "list")
    assert_refused(sk("backup", "delete", *where, names[2]), 1, "the last undamaged one", "--yes")
    assert sk("backup", "delete", *where, names[2], "--yes").returncode == 0
    assert sk_json("backup", "list", *where) == []


def damage_a_part(archive: Path, backup_id: str) -> None:
    (part,) = archive.glob(f"*/*/backups/{backup_id}/base.tar/000001")
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)


def damage_a_page(server: Postgres) -> str:
    """Damage a page of a table; returns the file's name. The server does not run."""
    ((name,),) = server.execute("SELECT pg_relation_filepath('t')")
    server.stop()
    with (server.data_dir / name).open("r+b") as file:
        file.seek(PAGE_BYTES + 5000)
        file.write(b"damage")
    server.start()
    return str(name)


def test_damaged_pages_are_reported_and_remembered(
    postgres_factory: Callable[..., Postgres], tmp_path: Path
) -> None:
    """The backup is complete, as the server is. A restore uses it only if it is named."""
    server = postgres_factory("checksums", fresh=True, start=False)
    server.init("--data-checksums")
    server.start()
    server.execute("CREATE TABLE t AS SELECT g, repeat('x', 100) FROM generate_series(1, 999) g")
    name = damage_a_page(server)
    catalog, facts = archive_of(server, tmp_path / "archive")
    with closing(psycopg.connect(server.dsn(replication="true"), autocommit=True)) as connection:
        made = create_backup(connection, facts, catalog, BackupOptions(label="damaged"))
    assert any(name in failure for failure in made.checksum_failures)
    assert catalog.backups() == [made]


def archive_of(server: Postgres, folder: Path) -> tuple[BackupCatalog, BackedUpServer]:
    """An archive that has the WAL of this server."""
    system_id = int(server.control_data()["Database system identifier"])
    facts = BackedUpServer(
        system_id=system_id,
        pg_version=server.binaries.major * 10000,
        is_standby=False,
        read_clock=lambda: datetime.now(UTC),
    )
    archived = ArchivedTimeline(system_id, facts.pg_version, server_segment_bytes(server), 1, 0)
    timeline = TimelineId(bytes(16), bytes(16))
    return BackupCatalog(TimelineArchive.create(LocalStore(str(folder)), timeline, archived)), facts


def server_segment_bytes(server: Postgres) -> int:
    return int(server.control_data()["Bytes per WAL segment"])


def test_a_server_that_does_not_belong_to_the_archive(
    postgres_factory: Callable[..., Postgres], tmp_path: Path
) -> None:
    catalog, facts = archive_of(postgres_factory("one", fresh=True), tmp_path / "archive")
    other = postgres_factory("other", fresh=True)
    _, others = archive_of(other, tmp_path / "others")
    refused = sk("backup", "create", "--archive", tmp_path / "archive", "--from", other.dsn())
    assert_refused(refused, 1, f"of system {others.system_id}, the archive's", "archive of this")
    assert catalog.unfinished() == []
    assert facts.system_id != others.system_id


def test_a_connection_that_breaks_leaves_no_backup(
    postgres_factory: Callable[..., Postgres], tmp_path: Path
) -> None:
    server = postgres_factory()
    catalog, facts = archive_of(server, tmp_path / "archive")
    options = BackupOptions(label="broken", max_rate_kb=1024)
    with closing(psycopg.connect(server.dsn(replication="true"), autocommit=True)) as connection:

        def crash() -> datetime:
            server.crash()
            return datetime.now(UTC)

        broken = BackedUpServer(facts.system_id, facts.pg_version, False, crash)
        with pytest.raises(BackupError, match="lost the server during the base backup"):
            create_backup(connection, broken, catalog, options)
    assert catalog.backups() == []
