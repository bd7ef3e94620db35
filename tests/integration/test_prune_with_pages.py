"""`sk archive prune` and `verify` beside the cuts of a pageserver: on objects alone."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from sk_command import assert_refused, sk, sk_json

from quorum_wal.backup.backup_catalog import BackupCatalog
from quorum_wal.backup.backup_record import Backup, format_backup_id
from quorum_wal.consensus.ids import TimelineId
from quorum_wal.generations.suffix import Suffix
from quorum_wal.objectstore.archive import ArchivedTimeline, TimelineArchive
from quorum_wal.objectstore.keys import ArchivedWal
from quorum_wal.objectstore.local import LocalStore
from quorum_wal.pageserver.cuts.page_objects import PageObjects
from quorum_wal.pageserver.objects.page_index import Cut, LayerRef, PageIndex, encode_index
from quorum_wal.pageserver.objects.page_keys import IndexName, PageKeys
from quorum_wal.pgwal.lsn import Lsn

MB = 1 << 20
NOW = datetime(2026, 11, 21, tzinfo=UTC)
TIMELINE = TimelineId(bytes(15) + b"\1", bytes(15) + b"\2")
BASE_ID = format_backup_id(NOW, 2 * MB + 40)


def archive_of(folder: Path) -> TimelineArchive:
    """An archive with segments 1 to 11, and a base backup in the second one."""
    facts = ArchivedTimeline(7, 150018, MB, 1, MB)
    archive = TimelineArchive.create(LocalStore(str(folder)), TIMELINE, facts)
    for segno in range(1, 12):
        archive.put_wal(ArchivedWal(1, segno, (segno + 1) * MB), bytes(MB))
    backup = Backup(
        backup_id=BASE_ID, label="", system_id=7, pg_version=150018, start_lsn=2 * MB + 40,
        start_tli=1, stop_lsn=2 * MB + 400, stop_tli=1, started_at=NOW, stopped_at=NOW,
        from_standby=False, archives=(),
    )  # fmt: skip
    BackupCatalog(archive).add(backup)
    return archive


def put_index(archive: TimelineArchive, suffix: Suffix, horizon_lsn: int, *redo_lsns: int) -> str:
    cuts = tuple(Cut(lsn, lsn + 100, lsn + 200, 1, lsn) for lsn in redo_lsns)
    key = PageKeys(TIMELINE).key(IndexName(suffix, 1))
    archive.store.create(key, encode_index(PageIndex(horizon_lsn, cuts, base_backup_id=BASE_ID)))
    return key


def test_wal_below_the_oldest_cut_is_removed_and_nothing_that_an_index_needs(
    tmp_path: Path,
) -> None:
    archive, where = archive_of(tmp_path), f"--archive={tmp_path}"
    young = put_index(archive, Suffix.pack(1, 1, 1), 0, 4 * MB, 7 * MB)
    assert "removed 1 segments below 0/200000" in sk("archive", "prune", where).stdout
    put_index(archive, Suffix.pack(2, 1, 1), 7 * MB + 200, 7 * MB, 9 * MB)
    assert "removed 0 segments below 0/200000" in sk("archive", "prune", where).stdout
    before = f"--before={Lsn(3 * MB)}"
    refused = sk("archive", "prune", where, before)
    assert_refused(refused, 1, "needs the WAL from 0/200028, --before is 0/300000", "history-days")

    whole = archive.store.get(young)
    for damaged in (whole[:-3], b"no index"):
        archive.store.put(young, damaged)
        for arguments in ((where,), (where, before), (where, "--dry-run")):
            refused = sk("archive", "prune", *arguments)
            assert_refused(refused, 1, f'cuts need: object "{young}"', "Restore that object")
    assert [wal.segno for wal in archive.wal(1)] == [*range(2, 12)]

    archive.store.delete(young)
    done = sk("archive", "prune", where)
    assert "removed 5 segments below 0/700000" in done.stdout, done.stderr
    assert [wal.segno for wal in archive.wal(1)] == [*range(7, 12)]
    assert sk_json("archive", "verify", where, "--fast")["begin_lsn"] == "0/700000"


def test_verify_reads_the_pages_too(tmp_path: Path) -> None:
    archive, where = archive_of(tmp_path), f"--archive={tmp_path}"
    assert "pageserver" not in sk("archive", "verify", where, "--fast").stdout
    file, suffix = tmp_path / "layer", Suffix.pack(1, 1, 1)
    file.write_bytes(b"pages" * 100)
    layer = LayerRef(4 * MB + 200, 0, suffix, 1, 500)
    PageObjects(archive.store, TIMELINE).upload(layer, file)
    cut = Cut(4 * MB, 4 * MB + 100, 4 * MB + 200, 1, 0)
    index = PageIndex(0, (cut,), (layer,), base_backup_id=BASE_ID)
    archive.store.create(PageKeys(TIMELINE).key(IndexName(suffix, 2)), encode_index(index))
    sound = sk("archive", "verify", where, "--fast")
    assert (sound.returncode, "complete: 1 objects of a pageserver" in sound.stdout) == (0, True)
    key = PageKeys(TIMELINE).key(layer.name)
    archive.store.delete(key)
    lost = sk("archive", "verify", where, "--fast")
    assert (lost.returncode, f'damaged: object "{key}" does not exist' in lost.stdout) == (1, True)
    assert "NOT SOUND: 1 damaged objects" in lost.stdout
    found = sk_json("archive", "verify", where, "--fast")
    assert (found["sound"], found["pages"]["sound"], found["damaged"]) == (False, False, [])
