"""Prefetched segments: ready before they are asked for, and never a wrong one."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from archived_log import FIRST_SEGNO, SEG_SIZE, TIMELINE, log_facts, log_of

from backup import wal_prefetch
from backup.wal_prefetch import LOCK, PrefetchFolder, take_prefetched
from objectstore.archive import TimelineArchive
from objectstore.keys import ArchivedWal
from objectstore.store import open_store
from pg_fixtures.waiting import wait_until
from pgwal.segment import format_segment_name

TIMEOUT = 60.0
OPTIONS = ["--archive=/srv/archive"]
AHEAD = 3
SEGNOS = range(FIRST_SEGNO, FIRST_SEGNO + 8)


def name_of(segno: int) -> str:
    return format_segment_name(1, segno, SEG_SIZE)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "pg_wal").mkdir()
    return tmp_path / "pg_wal" / "RECOVERYXLOG"


@pytest.fixture
def folder(target: Path) -> PrefetchFolder:
    made = PrefetchFolder.beside(target, OPTIONS)
    made.path.mkdir(parents=True)
    return made


@pytest.fixture
def archive(tmp_path: Path) -> TimelineArchive:
    made = TimelineArchive.create(open_store(str(tmp_path / "archive")), TIMELINE, log_facts())
    for segno in SEGNOS:
        made.put_wal(ArchivedWal(1, segno, (segno + 1) * SEG_SIZE), log_of(segno))
    return made


def test_a_ready_one_is_taken_once(folder: PrefetchFolder, target: Path) -> None:
    assert not folder.take(name_of(5), target)
    folder.add(name_of(5), log_of(5))
    assert not folder.take(name_of(6), target)
    assert folder.take(name_of(5), target)
    assert target.read_bytes() == log_of(5)
    assert not folder.take(name_of(5), target)


@pytest.mark.parametrize("wrong", ["changed", "cut", "empty", "old", "of tomorrow"])
def test_a_wrong_one_is_not(folder: PrefetchFolder, target: Path, wrong: str) -> None:
    """And is removed."""
    folder.add(name_of(5), log_of(5))
    (path,) = folder.ready()
    content = bytearray(log_of(5))
    modified_at = path.stat().st_mtime
    match wrong:
        case "changed":
            content[1234] ^= 1
        case "cut":
            del content[-1]
        case "empty":
            content.clear()
        case "old":
            modified_at -= wal_prefetch.AGE_SECONDS_MAX + 10
        case "of tomorrow":
            modified_at += 86400
    path.write_bytes(content)
    os.utime(path, (modified_at, modified_at))
    assert not folder.take(name_of(5), target)
    assert not target.exists()
    assert folder.ready() == []


def test_each_archive_has_its_own(folder: PrefetchFolder, target: Path) -> None:
    folder.add(name_of(5), log_of(5))
    assert not PrefetchFolder.beside(target, ["--archive=/srv/other"]).take(name_of(5), target)


def test_a_process_that_died_is_not_waited_for(folder: PrefetchFolder, target: Path) -> None:
    """What it was working on is fetched at once."""
    (folder.path / f"{name_of(5)}.tmp").touch()
    (folder.path / LOCK).touch()
    assert not folder.is_running()
    assert not folder.take(name_of(5), target)


def test_one_process_at_a_time(folder: PrefetchFolder, archive: TimelineArchive) -> None:
    with (folder.path / LOCK).open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert folder.is_running()
        assert run_prefetcher(folder, archive).wait(TIMEOUT) == 0
        assert folder.path.exists()  # the other one's


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / wal_prefetch.FOLDER).write_text("")
    folder = PrefetchFolder.beside(tmp_path / "RECOVERYXLOG", OPTIONS)
    folder.ask(name_of(5), {})
    assert not folder.take(name_of(5), tmp_path / "RECOVERYXLOG")
    folder.end()


# ---- the process


def run_prefetcher(folder: PrefetchFolder, archive: TimelineArchive) -> subprocess.Popen[bytes]:
    settings = {
        "url": archive.store.url,
        "options": {},
        "timeline": "",
        "ahead": AHEAD,
        "folder": str(folder.path),
    }
    process = subprocess.Popen([sys.executable, "-m", "backup.prefetcher"], stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(json.dumps(settings).encode())
    process.stdin.close()
    return process


@pytest.fixture
def prefetcher(
    folder: PrefetchFolder, archive: TimelineArchive
) -> Iterator[subprocess.Popen[bytes]]:
    (folder.path / wal_prefetch.ASKED).write_text(name_of(FIRST_SEGNO))
    process = run_prefetcher(folder, archive)
    yield process
    process.kill()
    process.wait()


def ask(folder: PrefetchFolder, segno: int) -> None:
    temporary = folder.path / "asked.tmp"
    temporary.write_text(name_of(segno))
    temporary.rename(folder.path / wal_prefetch.ASKED)


def ready_segnos(folder: PrefetchFolder) -> list[int]:
    return [int(path.name[16:24], 16) for path in folder.ready()]


def wait_ready(folder: PrefetchFolder, *segnos: int) -> None:
    wait_until(lambda: ready_segnos(folder) == [*segnos], TIMEOUT, f"{segnos} to be ready")


def test_it_keeps_ahead(
    folder: PrefetchFolder, target: Path, prefetcher: subprocess.Popen[bytes]
) -> None:
    """And no more than that; what was jumped over goes."""
    wait_ready(folder, 4, 5, 6)
    ask(folder, 4)
    assert folder.take(name_of(4), target)
    assert target.read_bytes() == log_of(4)
    wait_ready(folder, 5, 6, 7)
    ask(folder, 7)
    wait_ready(folder, 7, 8, 9, 10)  # the one asked for is about to be taken
    ask(folder, 9)
    wait_ready(folder, 9, 10)  # the archive's last


def test_it_ends_and_leaves_nothing(
    folder: PrefetchFolder, target: Path, prefetcher: subprocess.Popen[bytes]
) -> None:
    wait_ready(folder, 4, 5, 6)
    folder.end()
    assert prefetcher.wait(TIMEOUT) == 0
    assert list(target.parent.iterdir()) == []


def test_it_ends_when_its_folder_goes(
    folder: PrefetchFolder, prefetcher: subprocess.Popen[bytes]
) -> None:
    """A data directory is removed whole."""
    wait_ready(folder, 4, 5, 6)
    folder.remove()
    assert prefetcher.wait(TIMEOUT) == 0


def test_the_short_way(
    folder: PrefetchFolder,
    target: Path,
    prefetcher: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only for the very same command, and only while the process goes on."""
    wait_ready(folder, 4, 5, 6)
    for arguments in (
        [],
        [str(target)],
        ["--archive=/srv/other", name_of(4), str(target)],
        [*OPTIONS, "--timeline=x", name_of(4), str(target)],
        [*OPTIONS, name_of(4), str(target), "--prefetch=4"],
        [*OPTIONS, "00000002.history", str(target)],
        [*OPTIONS, name_of(3), str(target)],
        [*OPTIONS, name_of(4), str(target.parent.parent / "elsewhere")],
    ):
        assert not take_prefetched(arguments), arguments
        assert not target.exists()
    with monkeypatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", "http://another")
        assert not take_prefetched([*OPTIONS, name_of(4), str(target)])
    assert take_prefetched([*OPTIONS, name_of(4), str(target)])
    assert target.read_bytes() == log_of(4)
    wait_ready(folder, 5, 6, 7)
    prefetcher.kill()
    prefetcher.wait()
    assert not take_prefetched([*OPTIONS, name_of(5), str(target)])


def test_a_damaged_object_is_left_to_who_asks(
    folder: PrefetchFolder, archive: TimelineArchive
) -> None:
    key = archive.keys.segment(1, 5)
    archive.store.put(key, archive.store.get(key)[:-1])
    (folder.path / wal_prefetch.ASKED).write_text(name_of(3))
    process = run_prefetcher(folder, archive)
    try:
        wait_ready(folder, 4, 6)
    finally:
        process.kill()
        process.wait()


def test_an_archive_that_is_not_there(folder: PrefetchFolder, archive: TimelineArchive) -> None:
    (folder.path / wal_prefetch.ASKED).write_text(name_of(3))
    archive.store.delete(f"{archive.keys.prefix}timeline.json")
    assert run_prefetcher(folder, archive).wait(TIMEOUT) != 0
    assert not folder.path.exists()
