"""A base backup made from a cut, checked with stock programs: pg_verifybackup, a server that
recovers from it, pg_amcheck."""

from __future__ import annotations

import hashlib
import json
import os
from datetime import timedelta
from pathlib import Path

import pytest
from crc32c import crc32c
from page_world import PageWorld
from pg_versions import oldest_and_newest
from random_epochs import check_epoch

from quorum_wal.backup.backup_record import Backup
from quorum_wal.backup.unpack import Unpacking
from quorum_wal.pageserver.cuts.cut_files import CutFiles
from quorum_wal.pageserver.cuts.full_backup import create_full_backup
from quorum_wal.pageserver.layers.page_stack import LayerStack
from quorum_wal.pageserver.layers.touches import Checkpoint
from quorum_wal.pg_fixtures.ports import free_port
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_server.account import server_account
from quorum_wal.pg_server.binaries import PostgresBinaries
from quorum_wal.pg_server.program import run_program

SEGMENT_BYTES = 1 << 20
TIMEOUT = 60.0
ROWS = "SELECT count(*), md5(string_agg(m, '' ORDER BY g, m)) FROM"


@pytest.mark.parametrize("binaries", oldest_and_newest(), ids=lambda found: str(found.major))
def test_stock_programs_accept_the_base_backup(binaries: PostgresBinaries, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    server = Postgres(binaries, tmp_path / "primary", wal_seg_size=SEGMENT_BYTES)
    server.init("--data-checksums")
    world = PageWorld(server, tmp_path)
    with server:
        world.start()
        make_tables(world, "old")
        server.execute("CREATE TABLE gone AS SELECT g FROM generate_series(1, 9999) g")
        world.take_base()
        server.execute("DROP TABLE gone; UPDATE t_old SET m = m || 'x' WHERE g % 3 = 0")
        server.execute("DELETE FROM here WHERE g > 100")
        server.execute("VACUUM here")
        make_tables(world, "new")
        target = world.cut()
        world.replay(target)
        made = full_backup(world, target)
        with_more = server.execute("INSERT INTO t_new SELECT -g, 'late' FROM generate_series(1,9) g"
                                   " RETURNING g")  # fmt: skip
        assert len(with_more) == 9
        rows = {name: server.execute(f"{ROWS} {name}") for name in ("t_old", "t_new", "here")}
        world.switch_wal()
    restored = unpacked(world, made, tmp_path / "restored")
    check_verified(restored, made, world.wal_dir)
    check_recovers(world, restored, rows)


def check_verified(restored: Postgres, made: Backup, wal_dir: Path) -> None:
    """Runs pg_verifybackup, which also checks the WAL. The one of version 18 in the wheel cannot be
    loaded. There, pg_combinebackup parses manifest and label with the same code, and our own check
    runs."""
    data_dir, programs = restored.data_dir, restored.binaries
    check_manifest(data_dir)
    verify = programs.program("pg_verifybackup")
    if run_program([verify, "--version"], timeout=TIMEOUT, check=False).returncode == 0:
        run_program([verify, "--wal-directory", wal_dir, data_dir], timeout=TIMEOUT)
        return
    moved = [
        f"--tablespace-mapping={(data_dir / 'pg_tblspc' / name).readlink()}={data_dir}-{name}"
        for name in (each.name.removesuffix(".tar") for each in made.archives if each.path)
    ]
    combine = [programs.program("pg_combinebackup"), "--dry-run", *moved, "-o", f"{data_dir}-2"]
    run_program([*combine, data_dir], timeout=TIMEOUT, account=server_account())


def check_manifest(data_dir: Path) -> None:
    """The manifest lists every file with its checksum, and no other file."""
    lines = (data_dir / "backup_manifest").read_bytes().splitlines(keepends=True)
    manifest = json.loads(b"".join(lines))
    assert hashlib.sha256(b"".join(lines[:-1])).hexdigest() == manifest["Manifest-Checksum"]
    listed = {each["Path"]: (each["Size"], each["Checksum"]) for each in manifest["Files"]}
    assert len(listed) == len(manifest["Files"])
    found = {}
    for folder, _, names in os.walk(data_dir, followlinks=True):
        for path in (Path(folder) / name for name in names):
            content = path.read_bytes()
            checksum = crc32c(content).to_bytes(4, "little").hex()
            found[str(path.relative_to(data_dir))] = len(content), checksum
    del found["backup_manifest"], found["postgresql.auto.conf"], listed["postgresql.auto.conf"]
    assert listed == found


def make_tables(world: PageWorld, name: str) -> None:
    """Creates tables in a tablespace of that name, and outside of it."""
    where = world.root / f"space {name}"
    where.mkdir()
    world.server.give(where)
    world.primary.execute(f"CREATE TABLESPACE {name} LOCATION '{where}'")
    rows = "SELECT g, md5(g::text) AS m FROM generate_series(1, 3000) g"
    world.primary.execute(f"CREATE TABLE t_{name} TABLESPACE {name} AS {rows}")
    world.primary.execute(f"CREATE INDEX ON t_{name} (m) TABLESPACE {name}")
    world.primary.execute(f"CREATE TABLE IF NOT EXISTS here AS {rows}")
    world.primary.execute("CREATE INDEX IF NOT EXISTS here_g ON here (g)")


def full_backup(world: PageWorld, target: Checkpoint) -> Backup:
    cut = Backup(
        backup_id="",
        label="",
        system_id=world.facts.system_id,
        pg_version=world.facts.pg_version,
        start_lsn=target.redo_lsn,
        start_tli=target.tli,
        stop_lsn=target.end_lsn,
        stop_tli=target.tli,
        started_at=target.at,
        stopped_at=target.at + timedelta(seconds=1),
        from_standby=True,
        archives=(),
    )
    frame = world.frame
    layers = LayerStack(world.layers)
    files = CutFiles(world.catalog, world.backup, frame.forks, frame.tablespaces, layers)
    made = create_full_backup(world.catalog, cut, frame, files, label="of\na cut")
    assert world.catalog.get(made.backup_id) == made
    return made


def unpacked(world: PageWorld, made: Backup, data_dir: Path) -> Postgres:
    spaces = {
        each.path: world.root / f"{Path(each.path).name} restored"
        for each in made.archives
        if each.path
    }
    assert len(spaces) == 2
    Unpacking(
        data_dir=data_dir, tablespaces=spaces, owner=world.server.account, is_synced=False
    ).run(world.catalog, made)
    return Postgres(world.primary.binaries, data_dir, port=free_port())


def check_recovers(world: PageWorld, restored: Postgres, rows: dict[str, list[tuple]]) -> None:
    (restored.data_dir / "recovery.signal").touch()
    world.server.give(restored.data_dir / "recovery.signal")
    auto_conf = restored.data_dir / "postgresql.auto.conf"
    with auto_conf.open("a") as file:
        file.write(f'restore_command = \'cp "{world.wal_dir}/%f" "%p"\'\narchive_mode = off\n')
    with restored:
        wait_until(
            lambda: restored.execute("SELECT pg_is_in_recovery()") == [(False,)],
            TIMEOUT,
            "its recovery to end",
        )
        for name, found in rows.items():
            assert restored.execute(f"{ROWS} {name}") == found
        if restored.execute("SELECT 1 FROM pg_available_extensions WHERE name = 'amcheck'"):
            restored.execute("CREATE EXTENSION amcheck")
            done = run_program(
                [
                    *(restored.binaries.program("pg_amcheck"), "--all", "--heapallindexed"),
                    *(f"--port={restored.port}", "--host=127.0.0.1", "--username=postgres"),
                ],
                timeout=TIMEOUT,
                check=False,
            )
            assert done.returncode == 0, done.stdout + done.stderr


def test_it_is_a_valid_base_for_cuts(pg_binaries: PostgresBinaries, tmp_path: Path) -> None:
    """It is a valid base: replaying WAL on it gives the files of a standby."""
    tmp_path.chmod(0o755)
    server = Postgres(pg_binaries, tmp_path / "primary", wal_seg_size=SEGMENT_BYTES)
    world = PageWorld(server, tmp_path)
    with server:
        world.start()
        make_tables(world, "old")
        world.take_base()
        server.execute("UPDATE t_old SET m = m || 'x' WHERE g % 3 = 0")
        target = world.cut()
        world.replay(target)
        world.stand_on(full_backup(world, target))
        server.execute("UPDATE t_old SET m = m || 'y' WHERE g % 2 = 0")
        make_tables(world, "new")
        check_epoch(world, "second")
