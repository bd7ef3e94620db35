"""Prefetched segments: ready before they are needed, and never wrong."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest
from archived_log import FIRST_SEGNO, SEG_SIZE, TIMELINE, log_facts, log_of

from quorum_wal.backup import prefetcher as prefetcher_module
from quorum_wal.backup import wal_prefetch
from quorum_wal.backup.prefetcher import Prefetcher
from quorum_wal.backup.recovery_settings import restore_command
from quorum_wal.backup.wal_prefetch import ASKED, FOLDER, PrefetchFolder
from quorum_wal.consensus.ids import TimelineId
from quorum_wal.objectstore.archive import TimelineArchive
from quorum_wal.objectstore.keys import ArchivedWal
from quorum_wal.objectstore.store import open_store
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pgwal.segment import format_segment_name

TIMEOUT = 60.0
AHEAD = 3
SEGNOS = range(FIRST_SEGNO, FIRST_SEGNO + 8)


def name_of(segno: int, tli: int = 1) -> str:
    return format_segment_name(tli, segno, SEG_SIZE)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "pg_wal").mkdir()
    return tmp_path / "pg_wal" / "RECOVERYXLOG"


@pytest.fixture
def folder(target: Path) -> PrefetchFolder:
    made = PrefetchFolder.beside(target, TIMELINE)
    made.path.mkdir(parents=True)
    return made


@pytest.fixture
def archive(tmp_path: Path) -> TimelineArchive:
    made = TimelineArchive.create(open_store(str(tmp_path / "archive")), TIMELINE, log_facts())
    for segno in SEGNOS:
        put(made, segno)
    return made


def put(archive: TimelineArchive, segno: int) -> None:
    archive.put_wal(ArchivedWal(1, segno, (segno + 1) * SEG_SIZE), log_of(segno))


# ---- restore_command


def test_a_ready_segment_is_taken_once(folder: PrefetchFolder, target: Path) -> None:
    assert not folder.take(name_of(5), target)
    folder.add(name_of(5), log_of(5))
    assert not folder.take(name_of(6), target)
    assert folder.take(name_of(5), target)
    assert target.read_bytes() == log_of(5)
    assert not folder.take(name_of(5), target)


def test_each_timeline_has_its_own(folder: PrefetchFolder, target: Path) -> None:
    folder.add(name_of(5), log_of(5))
    other = TimelineId(TIMELINE.tenant_id, bytes(16))
    assert not PrefetchFolder.beside(target, other).take(name_of(5), target)


def test_an_incomplete_file_has_no_segment_name(
    folder: PrefetchFolder, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At whatever step the write fails."""

    def breaks_off(*arguments: object) -> None:
        raise OSError("no space left on device")

    for step in ("write_all", "sync_data"):
        with monkeypatch.context() as patch:
            patch.setattr(wal_prefetch.durable, step, breaks_off)
            with pytest.raises(OSError, match="no space"):
                folder.add(name_of(5), log_of(5))
        assert folder.ready() == set()
        assert not folder.take(name_of(5), target)


def test_the_shell_takes_a_ready_segment_or_runs_the_program(
    folder: PrefetchFolder, target: Path
) -> None:
    """As Postgres calls it: in the data directory, checking the exit code."""
    folder.add(name_of(5), log_of(5))
    program = ("sh", "-c", 'echo "$@" >asked_for; exit 99', "program", "it's")

    def postgres_runs(name: str) -> int:
        command = restore_command(f"pg_wal/{FOLDER}/{TIMELINE}", program)
        command = command.replace("%f", name).replace("%p", "pg_wal/RECOVERYXLOG")
        return subprocess.run(["sh", "-c", command], cwd=target.parent.parent).returncode

    assert postgres_runs(name_of(5)) == 0
    assert target.read_bytes() == log_of(5)
    for name in (name_of(5), name_of(6), "00000002.history"):
        assert postgres_runs(name) == 99
        asked_for = (target.parent.parent / "asked_for").read_text()
        assert asked_for == f"it's {name} pg_wal/RECOVERYXLOG\n"


def test_a_dead_process_is_not_waited_for(folder: PrefetchFolder, target: Path) -> None:
    """The segment that it was fetching is fetched at once."""
    (folder.path / f"{name_of(5)}.tmp").touch()
    folder.lock.touch()
    assert not folder.is_running()
    assert not folder.take(name_of(5), target)


def test_a_folder_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / FOLDER).write_text("")
    folder = PrefetchFolder.beside(tmp_path / "RECOVERYXLOG", TIMELINE)
    folder.ask(name_of(5), {})
    assert not folder.take(name_of(5), tmp_path / "RECOVERYXLOG")
    folder.end()


# ---- the process


def settings_of(archive: TimelineArchive) -> dict[str, object]:
    url = archive.store.url
    return {"url": url, "options": {}, "timeline": str(TIMELINE), "ahead": AHEAD}


def run_prefetcher(folder: PrefetchFolder, archive: TimelineArchive) -> subprocess.Popen[bytes]:
    """Starts it as ask() does."""
    with folder.lock.open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        process = subprocess.Popen(
            [sys.executable, "-m", "quorum_wal.backup.prefetcher"],
            stdin=subprocess.PIPE,
            pass_fds=[lock.fileno()],
        )
    assert process.stdin is not None
    process.stdin.write(json.dumps({**settings_of(archive), "folder": str(folder.path)}).encode())
    process.stdin.close()
    return process


@pytest.fixture
def prefetcher(
    folder: PrefetchFolder, archive: TimelineArchive
) -> Iterator[subprocess.Popen[bytes]]:
    ask(folder, FIRST_SEGNO)
    process = run_prefetcher(folder, archive)
    yield process
    process.kill()
    process.wait()


def ask(folder: PrefetchFolder, segno: int) -> None:
    temporary = folder.path / "asked.tmp"
    temporary.write_text(name_of(segno))
    temporary.rename(folder.path / ASKED)


def wait_ready(folder: PrefetchFolder, *segnos: int) -> None:
    expected = {name_of(segno) for segno in segnos}
    wait_until(lambda: folder.ready() == expected, TIMEOUT, f"{segnos} to be ready")


def test_it_prefetches_after_each_taken_segment(
    folder: PrefetchFolder, target: Path, prefetcher: subprocess.Popen[bytes]
) -> None:
    """It notices by itself; and it keeps no more than the limit."""
    wait_ready(folder, 4, 5, 6)
    for segno, *ready in ((4, 5, 6, 7), (5, 6, 7, 8), (6, 7, 8, 9), (7, 8, 9, 10), (8, 9, 10)):
        (folder.path / name_of(segno)).rename(target)
        assert target.read_bytes() == log_of(segno)
        wait_ready(folder, *ready)


def test_it_follows_a_request(folder: PrefetchFolder, prefetcher: subprocess.Popen[bytes]) -> None:
    """Skipped segments are removed; the requested one is left to the process that asked."""
    wait_ready(folder, 4, 5, 6)
    ask(folder, 6)
    wait_ready(folder, 6, 7, 8, 9)
    ask(folder, 3)
    wait_ready(folder, 4, 5, 6)


def test_a_missing_segment_is_retried_on_request(
    folder: PrefetchFolder, archive: TimelineArchive, prefetcher: subprocess.Popen[bytes]
) -> None:
    """An archive grows while a standby replays it."""
    wait_ready(folder, 4, 5, 6)
    ask(folder, 9)
    wait_ready(folder, 10)  # the last one in the archive
    put(archive, 11)
    ask(folder, 10)
    wait_ready(folder, 10, 11)


def test_there_is_one_process_for_a_folder(
    folder: PrefetchFolder, archive: TimelineArchive, target: Path
) -> None:
    """The lock is held from before its start, so that the next request starts no second one."""
    folder.ask(name_of(3), settings_of(archive))
    assert folder.is_running()
    wait_until(lambda: len(folder.ready()) == AHEAD, TIMEOUT, "it to work")
    folder.ask(name_of(5), settings_of(archive))
    wait_ready(folder, 5, 6, 7, 8)
    folder.end()
    wait_until(lambda: list(target.parent.iterdir()) == [], TIMEOUT, "it to end")


def test_the_lock_is_held_until_the_folder_is_removed(
    folder: PrefetchFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the next process would use a folder that is being removed."""
    folder.add(name_of(5), log_of(5))
    held = []

    def watched(step: Callable[..., None]) -> Callable[..., None]:
        def look_and_go_on(path: Path, **options: bool) -> None:
            if folder.path.exists():
                held.append(folder.is_running())
            step(path, **options)

        return look_and_go_on

    with folder.lock.open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        monkeypatch.setattr(Path, "unlink", watched(Path.unlink))
        monkeypatch.setattr(Path, "rmdir", watched(Path.rmdir))
        folder.remove()
    assert held == [True, True]  # a segment, the folder
    assert not folder.lock.exists()


def test_a_lock_whose_file_was_removed_excludes_nothing(
    folder: PrefetchFolder, archive: TimelineArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was opened before, and locked after the process that held it had ended."""
    flock = fcntl.flock

    def removed_meanwhile(lock: IO[bytes], operation: int) -> None:
        folder.lock.unlink()
        flock(lock, operation)

    monkeypatch.setattr(fcntl, "flock", removed_meanwhile)
    folder.ask(name_of(3), settings_of(archive))
    monkeypatch.undo()
    assert not folder.is_running()
    assert folder.ready() == set()


def test_a_running_process_removes_the_folder(folder: PrefetchFolder) -> None:
    folder.add(name_of(5), log_of(5))
    with folder.lock.open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        folder.end()
        assert folder.ready() == {name_of(5)}
    folder.end()
    assert not folder.path.exists()


def test_it_ends_and_leaves_no_files(
    folder: PrefetchFolder, target: Path, prefetcher: subprocess.Popen[bytes]
) -> None:
    wait_ready(folder, 4, 5, 6)
    folder.end()
    assert prefetcher.wait(TIMEOUT) == 0
    assert list(target.parent.iterdir()) == []


def test_it_ends_if_no_segment_is_taken(
    folder: PrefetchFolder, archive: TimelineArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefetcher_module, "IDLE_SECONDS", 0.2)
    ask(folder, FIRST_SEGNO)
    Prefetcher(folder, archive, AHEAD).run()
    assert folder.ready() == {name_of(4), name_of(5), name_of(6)}


def test_it_ends_if_its_folder_is_removed(
    folder: PrefetchFolder, target: Path, prefetcher: subprocess.Popen[bytes]
) -> None:
    """A data directory is removed, while the process removes its own files."""
    wait_ready(folder, 4, 5, 6)
    subprocess.run(["rm", "-rf", target.parent], check=True)  # ignores files that disappear
    assert prefetcher.wait(TIMEOUT) == 0


def test_a_damaged_object_is_left_to_the_requester(
    folder: PrefetchFolder, archive: TimelineArchive, prefetcher: subprocess.Popen[bytes]
) -> None:
    wait_ready(folder, 4, 5, 6)
    key = archive.keys.segment(1, 8)
    archive.store.put(key, archive.store.get(key)[:-1])
    ask(folder, 6)
    wait_ready(folder, 6, 7, 9)


def test_a_missing_archive(folder: PrefetchFolder, archive: TimelineArchive) -> None:
    ask(folder, 3)
    archive.store.delete(f"{archive.keys.prefix}timeline.json")
    assert run_prefetcher(folder, archive).wait(TIMEOUT) != 0
    assert not folder.path.exists()
