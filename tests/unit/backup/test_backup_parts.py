"""Streams cut into objects and joined again. A missing or changed part is an error, and nothing is
unpacked outside of the given folders."""

from __future__ import annotations

import io
import random
import tarfile
from datetime import UTC, datetime
from pathlib import Path
from threading import Event

import pytest

from quorum_wal.backup import parts as parts_module
from quorum_wal.backup import retry
from quorum_wal.backup.backup_catalog import BackupCatalog
from quorum_wal.backup.backup_record import Backup, BackupArchive, format_backup_id, parse_backup_id
from quorum_wal.backup.errors import BackupError
from quorum_wal.backup.parts import PartReader, PartWriter
from quorum_wal.backup.retry import with_retries
from quorum_wal.backup.unpack import Unpacking
from quorum_wal.consensus.ids import TimelineId
from quorum_wal.objectstore.archive import ArchivedTimeline, TimelineArchive
from quorum_wal.objectstore.errors import ObjectDamaged, ObjectNotFound, ObjectStoreError
from quorum_wal.objectstore.local import LocalStore

TIMELINE = TimelineId(bytes(16), bytes(range(16)))
NOW = datetime(2026, 11, 21, 10, 15, 0, 123000, tzinfo=UTC)
ID = "20261121T101500.123Z-0000000005000028"
OLDER_ID = "20261121T101500Z-0000000005000028"
SMALL_PART_BYTES = 1000


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BackupCatalog:
    monkeypatch.setattr(parts_module, "PART_BYTES", SMALL_PART_BYTES)
    facts = ArchivedTimeline(1, 150000, 1 << 20, 1, 0)
    store = LocalStore(str(tmp_path / "store"))
    return BackupCatalog(TimelineArchive.create(store, TIMELINE, facts))


def write(catalog: BackupCatalog, contents: dict[str, bytes]) -> tuple[BackupArchive, ...]:
    def part_key(name: str, number: int) -> str:
        return catalog.part_key(ID, name, number)

    with PartWriter(catalog.archive.store, part_key) as writer:
        for name, content in contents.items():
            writer.begin(name, "")
            for at in range(0, len(content), 777):
                writer.write(content[at : at + 777])
        return writer.finish()


def read(catalog: BackupCatalog, archive: BackupArchive) -> bytes:
    def part_key(name: str, number: int) -> str:
        return catalog.part_key(ID, name, number)

    with PartReader(catalog.archive.store, part_key, archive) as reader:
        return reader.readall() or b""


def backup_of(archives: tuple[BackupArchive, ...]) -> Backup:
    return Backup(
        backup_id=ID,
        label="",
        system_id=1,
        pg_version=150000,
        start_lsn=0x5000028,
        start_tli=1,
        stop_lsn=0x5000100,
        stop_tli=1,
        started_at=NOW,
        stopped_at=NOW,
        from_standby=False,
        archives=archives,
    )


def test_what_was_written_is_read(catalog: BackupCatalog) -> None:
    choose = random.Random(5)
    sizes = (0, 1, SMALL_PART_BYTES - 1, SMALL_PART_BYTES, SMALL_PART_BYTES + 1, 12_345)
    contents = {f"{size}.tar": choose.randbytes(size) for size in sizes}
    archives = write(catalog, contents)
    assert [archive.parts for archive in archives] == [1, 1, 1, 1, 2, 13]
    for archive in archives:
        assert archive.content_bytes == len(contents[archive.name])
        assert read(catalog, archive) == contents[archive.name]


def test_a_missing_a_damaged_and_a_surplus_part(catalog: BackupCatalog) -> None:
    (archive,) = write(catalog, {"base.tar": bytes(3500)})
    store = catalog.archive.store
    assert isinstance(store, LocalStore)
    key = catalog.part_key(ID, "base.tar", 2)
    original = store.get(key)
    store.put(key, original[:-1])
    with pytest.raises(ObjectDamaged):
        read(catalog, archive)
    store.put(key, store.get(catalog.part_key(ID, "base.tar", 4)))
    with pytest.raises(BackupError, match="expected 3500 bytes, found 3000"):
        read(catalog, archive)
    store.delete(key)
    with pytest.raises(ObjectNotFound):
        read(catalog, archive)


def test_two_backups_never_mix(catalog: BackupCatalog) -> None:
    write(catalog, {"base.tar": b"mine"})
    write(catalog, {"base.tar": b"mine"})  # a repeated attempt is not another backup
    with pytest.raises(BackupError, match="another backup"):
        write(catalog, {"base.tar": b"theirs"})


def test_a_backup_is_what_was_finished(catalog: BackupCatalog) -> None:
    archives = write(catalog, {"base.tar": b"x"})
    assert catalog.backups() == []
    assert catalog.unfinished() == [ID]
    with pytest.raises(BackupError, match="there is no backup"):
        catalog.get(ID)
    catalog.add(backup_of(archives))
    assert catalog.backups() == [catalog.get(ID)] == [backup_of(archives)]
    assert catalog.unfinished() == []
    catalog.add(backup_of(archives))  # a repeated attempt
    with pytest.raises(BackupError, match="another backup has the same name"):
        catalog.add(backup_of(()))
    catalog.delete(ID)
    assert catalog.backups() == []
    assert catalog.unfinished() == []
    catalog.delete(ID)


def test_names_of_backups() -> None:
    assert format_backup_id(NOW, 0x5000028) == ID
    assert parse_backup_id(ID) == (NOW, 0x5000028)
    assert parse_backup_id(OLDER_ID) == (NOW.replace(microsecond=0), 0x5000028)
    short_lsn, no_day = ID.replace("-00", "-"), ID.replace("1121", "1131")
    for name in ("", "x", ID.lower(), f"../{ID}", f"{ID}0", short_lsn, no_day):
        with pytest.raises(BackupError):
            parse_backup_id(name)


def test_only_transient_errors_are_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "PAUSE_SECONDS", 0.001)
    tries: list[bool] = []

    def fails(is_transient: bool) -> None:
        tries.append(is_transient)
        if len(tries) < 3:
            raise ObjectStoreError("no", is_transient=is_transient)

    with_retries(lambda: fails(True), Event())
    assert len(tries) == 3
    tries.clear()
    with pytest.raises(ObjectStoreError):
        with_retries(lambda: fails(False), Event())
    assert len(tries) == 1
    stopping = Event()
    stopping.set()
    tries.clear()
    with pytest.raises(ObjectStoreError):
        with_retries(lambda: fails(True), stopping)
    assert len(tries) == 1


# ---- unpacking


def tar_of(*members: tuple[str, bytes, str]) -> bytes:
    """(name, type, content or target of the link)"""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, kind, text in members:
            info = tarfile.TarInfo(name)
            info.type = kind
            info.mode = 0o700 if kind == tarfile.DIRTYPE else 0o600
            if kind == tarfile.REGTYPE:
                info.size = len(text)
                archive.addfile(info, io.BytesIO(text.encode()))
            else:
                info.linkname = text
                archive.addfile(info)
    return buffer.getvalue()


def unpack(catalog: BackupCatalog, folder: Path, archives: tuple[BackupArchive, ...]) -> None:
    tablespaces = {"/was/here": folder.with_name("moved")}
    Unpacking(data_dir=folder, tablespaces=tablespaces).run(catalog, backup_of(archives))


def test_files_folders_and_tablespaces(catalog: BackupCatalog, tmp_path: Path) -> None:
    contents = {
        "16384.tar": tar_of(("PG_15", tarfile.DIRTYPE, ""), ("PG_15/1", tarfile.REGTYPE, "one")),
        "base.tar": tar_of(
            ("base", tarfile.DIRTYPE, ""),
            ("base/2", tarfile.REGTYPE, "x" * 5000),
            ("pg_tblspc", tarfile.DIRTYPE, ""),
            ("pg_tblspc/16384", tarfile.SYMTYPE, "/was/here"),
        ),
        "backup_manifest": b"{}",
    }
    tablespace, base, manifest = write(catalog, contents)
    tablespace = BackupArchive(
        name=tablespace.name,
        path="/was/here",
        parts=tablespace.parts,
        content_bytes=tablespace.content_bytes,
        stored_bytes=0,
    )
    folder = tmp_path / "data"
    # The manifest comes last, into a folder that we have filled ourselves.
    unpack(catalog, folder, (tablespace, base, manifest))
    assert (folder / "base" / "2").read_text() == "x" * 5000
    assert (folder / "pg_tblspc" / "16384" / "PG_15" / "1").read_text() == "one"
    assert (folder / "backup_manifest").read_text() == "{}"
    assert (tmp_path / "moved" / "PG_15").is_dir()
    assert folder.stat().st_mode & 0o777 == 0o700
    with pytest.raises(BackupError, match="is not empty"):
        unpack(catalog, folder, (tablespace, base, manifest))


@pytest.mark.parametrize(
    "member",
    [
        ("../outside", tarfile.REGTYPE, "x"),
        ("a/../../outside", tarfile.REGTYPE, "x"),
        ("/outside", tarfile.REGTYPE, "x"),
        ("link", tarfile.SYMTYPE, "/etc"),
        ("pg_tblspc/99", tarfile.SYMTYPE, "/etc"),
        ("device", tarfile.CHRTYPE, ""),
        ("hard", tarfile.LNKTYPE, "/etc/passwd"),
    ],
    ids=str,
)
def test_nothing_is_written_outside(
    catalog: BackupCatalog, tmp_path: Path, member: tuple[str, bytes, str]
) -> None:
    archives = write(catalog, {"base.tar": tar_of(member)})
    with pytest.raises(BackupError):
        unpack(catalog, tmp_path / "deep" / "data", archives)
    assert not (tmp_path / "outside").exists()
    assert not (tmp_path / "deep" / "outside").exists()
    assert list((tmp_path / "deep" / "data").iterdir()) == []


def test_a_tar_that_is_cut_short(catalog: BackupCatalog, tmp_path: Path) -> None:
    archives = write(catalog, {"base.tar": tar_of(("a", tarfile.REGTYPE, "x" * 5000))[:2000]})
    with pytest.raises(BackupError, match="could not unpack"):
        unpack(catalog, tmp_path / "data", archives)
