"""A folder as a store: an object is whole and stays, whichever process is killed at any moment."""

from __future__ import annotations

import errno
import os
import random
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from faulty_store import insist

from quorum_wal.objectstore.errors import ObjectStoreError
from quorum_wal.objectstore.local import LEFTOVER_SECONDS, LocalStore
from quorum_wal.pg_fixtures.waiting import wait_until

TIMEOUT = 60.0
WRITER = """
import random, sys
from quorum_wal.objectstore.local import LocalStore
store, seed = LocalStore(sys.argv[1]), int(sys.argv[2])
numbers = random.Random(seed)
while True:
    number = numbers.randrange(50)
    data = random.Random(number).randbytes(200_000 + number)
    key = f"wal/{number % 5}/{number:03d}"
    match numbers.randrange(3):
        case 0: store.put(key, data)
        case 1: store.create(key, data)
        case 2: store.delete(key)
"""
CREATOR = """
import sys
from quorum_wal.objectstore.local import LocalStore
store, who = LocalStore(sys.argv[1]), sys.argv[2]
sys.stdin.readline()
for number in range(100):
    if store.create(f"race/{number:03d}", who.encode() * 10_000):
        print(number, flush=True)
"""


def python(source: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", source, *map(str, arguments)]


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOTDIR, errno.EIO])
def test_lasting_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """An I/O error may be temporary; a missing permission is not."""

    def fails(path: Path) -> bytes:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "read_bytes", fails)
    with pytest.raises(ObjectStoreError, match=os.strerror(number)) as error:
        LocalStore(str(tmp_path)).get("timeline.json")
    assert error.value.is_transient == (number == errno.EIO)
    assert bool(error.value.hint) != error.value.is_transient


def test_killed_in_the_middle(tmp_path: Path) -> None:
    """Repeatedly, while it puts, creates and deletes: existing objects are whole, nothing else is
    listed, and the store works."""
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    moments = random.Random(seed)
    store = LocalStore(str(tmp_path))
    leftovers = 0
    for turn in range(8):
        writer = subprocess.Popen(python(WRITER, tmp_path, seed + turn))
        try:
            wait_until(lambda: any(store.list("")), TIMEOUT, "the writer to write")
            # This waits for nothing: the moment of the kill is random.
            with pytest.raises(subprocess.TimeoutExpired):
                writer.wait(moments.random() * 0.2)
        finally:
            writer.send_signal(signal.SIGKILL)
            writer.wait()
        for info in store.list(""):
            number = int(info.key[-3:])
            assert info.key == f"wal/{number % 5}/{number:03d}"
            data = store.get(info.key)
            assert data == random.Random(number).randbytes(200_000 + number)
            assert info.size_bytes == len(data)
        leftovers = sum(1 for path in tmp_path.rglob(".tmp-*"))
        store.put("wal/0/000", random.Random(0).randbytes(200_000))
    print(f"{leftovers} temporary files were left behind, and never listed")


def test_exactly_one_process_creates(tmp_path: Path) -> None:
    names = [f"{number}" for number in range(4)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    racers = [subprocess.Popen(python(CREATOR, tmp_path, name), **pipes) for name in names]
    for racer in racers:
        racer.stdin.write("go\n")
        racer.stdin.flush()
    won = [set(map(int, racer.communicate(timeout=TIMEOUT)[0].split())) for racer in racers]
    assert sorted(number for numbers in won for number in numbers) == list(range(100))
    store = LocalStore(str(tmp_path))
    for name, numbers in zip(names, won, strict=True):
        for number in numbers:
            assert store.get(f"race/{number:03d}") == name.encode() * 10_000


@pytest.mark.parametrize("method", ["put", "create"])
def test_an_object_is_synced_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """The data, then the name, then the folder of the name; and first the folder's own name."""
    calls: list[str] = []

    def record(name: str, path_of: Callable[..., str]) -> None:
        real = getattr(os, name)

        def recorded(*arguments: Any, **keywords: Any) -> Any:
            calls.append(f"{name} {path_of(*arguments)}")
            return real(*arguments, **keywords)

        monkeypatch.setattr(os, name, recorded)

    def of_fd(fd: int) -> str:
        name = os.readlink(f"/proc/self/fd/{fd}").removeprefix(str(tmp_path))
        return "temporary" if ".tmp-" in name else name

    for name in ("fsync", "fdatasync"):
        record(name, of_fd)
    for name in ("rename", "link"):
        record(name, lambda _, target: str(target).removeprefix(str(tmp_path)))
    getattr(LocalStore(str(tmp_path)), method)("a/b/c", b"content")
    written = calls.index("fdatasync temporary")
    named = calls.index(("rename" if method == "put" else "link") + " /a/b/c")
    assert written < named
    assert "fsync /a/b" in calls[named:]
    assert {"fsync ", "fsync /a"} <= set(calls[:written])


@pytest.mark.parametrize("call", ["fdatasync", "pwrite", "open"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("method", ["put", "create"])
def test_a_disk_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, code: int, call: str
) -> None:
    """The error is raised, and neither half an object nor another file remains."""
    store = LocalStore(str(tmp_path))
    store.put("a/old", b"x")

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(ObjectStoreError, match=os.strerror(code)) as error:
            getattr(store, method)("a/new", b"y")
    assert error.value.is_transient
    assert [info.key for info in store.list("")] == ["a/old"]
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["old"]


@pytest.mark.parametrize("method", ["put", "create"])
def test_a_disk_that_becomes_full_between_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """The space is freed, and there is no object; the same if creating the pieces fails."""
    store = LocalStore(str(tmp_path))

    def pieces(error: BaseException | None) -> Iterator[bytes]:
        yield b"one"
        assert any(tmp_path.rglob(".tmp-*"))
        if error is not None:
            raise error
        monkeypatch.setattr(os, "pwrite", raising(OSError(errno.ENOSPC, "No space left on device")))
        yield b"two"

    for error in (RuntimeError("a bug"), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            getattr(store, method)("a/b", pieces(error))
        assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    with pytest.raises(ObjectStoreError, match="No space left on device") as caught:
        getattr(store, method)("a/b", pieces(None))
    assert caught.value.is_transient
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def raising(error: OSError) -> Callable[..., Any]:
    def fail(*_: object) -> Any:
        raise error

    return fail


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "archive").write_text("")
    store = LocalStore(str(tmp_path / "archive"))
    with pytest.raises(ObjectStoreError, match=r"Not a directory|File exists"):
        store.put("a/b", b"x")
    with pytest.raises(ObjectStoreError):
        store.get("a/b")


def test_folders_are_made_and_removed_at_the_same_time(tmp_path: Path) -> None:
    """As partial segments are created and removed: a creation concurrent to a removal may fail, and
    succeeds when it is repeated; it never leaves a part."""
    store = LocalStore(str(tmp_path))
    stop = threading.Event()

    def come_and_go() -> None:
        while not stop.is_set():
            insist(lambda: store.put("a/b/c/other", b"x"))
            insist(lambda: store.delete("a/b/c/other"))

    other = threading.Thread(target=come_and_go)
    other.start()
    try:
        for number in range(200):
            insist(partial(store.put, "a/b/c/mine", b"%d" % number))
            assert store.get("a/b/c/mine") == b"%d" % number
            insist(partial(store.delete, "a/b/c/mine"))
    finally:
        stop.set()
        other.join()
    assert [info.key for info in store.list("")] == []


def test_old_temporary_files_are_removed(tmp_path: Path) -> None:
    """Temporary files that are a day old, by the next writer; younger ones may belong to a running
    write."""
    LocalStore(str(tmp_path)).put("wal/1", b"content")
    for name, age_seconds in ((".tmp-old-1", LEFTOVER_SECONDS + 60), (".tmp-new-1", 60.0)):
        leftover = tmp_path / "wal" / name
        leftover.write_bytes(b"half")
        then = datetime.now(UTC).timestamp() - age_seconds
        os.utime(leftover, (then, then))
    store = LocalStore(str(tmp_path))
    store.create("other/1", b"content")
    assert (tmp_path / "wal" / ".tmp-old-1").exists()
    assert store.create("wal/2", b"content")
    assert sorted(path.name for path in (tmp_path / "wal").iterdir()) == [".tmp-new-1", "1", "2"]


DELETE_ALL = """
import sys
from quorum_wal.objectstore.local import LocalStore
store = LocalStore(sys.argv[1])
store.delete_many([f"layers/{number}/part" for number in range(int(sys.argv[2]))])
"""


def test_two_processes_delete_the_same_objects(tmp_path: Path) -> None:
    """A pageserver and `sk pageserver delete-timeline` do, after a tombstone."""
    store, count = LocalStore(str(tmp_path)), 2000
    for number in range(count):
        path = tmp_path / "layers" / str(number) / "part"
        path.parent.mkdir(parents=True)
        path.touch()
    command = [sys.executable, "-c", DELETE_ALL, str(tmp_path), str(count)]
    deleting = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    errors = [process.communicate(timeout=TIMEOUT)[1] for process in deleting]
    assert errors == ["", ""]
    assert list(store.list("layers/")) == []
