"""The one file that calls fsync: short writes, order, and errors that name file and reason."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from timeline_on_disk import raising

from quorum_wal.storage import durable
from quorum_wal.storage.errors import StorageError


def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, bytes(data)[:3], at))
    durable.replace_file(tmp_path / "file", b"0123456789")
    assert (tmp_path / "file").read_bytes() == b"0123456789"


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    """As /dev/null, and /dev/stdout, which is a link."""
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to("file")
    for path in (pipe, link):
        with pytest.raises(StorageError, match=f'could not replace "{path}": it is not a regular'):
            durable.replace_file(path, b"content")
    assert link.is_symlink()
    assert sorted(tmp_path.iterdir()) == [link, pipe]


@pytest.mark.parametrize("create", [durable.create_zeroed, durable.create_allocated])
def test_a_new_file_is_full_of_zeros(tmp_path: Path, create: Callable[[Path, int], None]) -> None:
    size_bytes = 2 * len(durable.ZERO_BLOCK) + 5
    create(tmp_path / "file", size_bytes)
    assert (tmp_path / "file").read_bytes() == bytes(size_bytes)
    assert (tmp_path / "file").stat().st_blocks * 512 >= size_bytes


def test_only_the_range_is_zeroed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100)
    fd = os.open(path, os.O_RDWR)
    durable.zero_range(fd, 10, 90, path)
    os.close(fd)
    assert path.read_bytes() == b"x" * 10 + bytes(80) + b"x" * 10


@pytest.mark.parametrize(
    ("create", "call"),
    [
        (durable.create_zeroed, "pwrite"),
        (durable.create_zeroed, "fsync"),
        (durable.create_allocated, "posix_fallocate"),
    ],
)
def test_a_file_that_could_not_be_filled_gives_its_space_back(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    create: Callable[[Path, int], None],
    call: str,
) -> None:
    monkeypatch.setattr(os, call, raising(OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(StorageError, match="No space left") as caught:
        create(tmp_path / "file", 100)
    assert caught.value.sqlstate == durable.DISK_FULL
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "sqlstate"),
    [
        (errno.EIO, "58030"),
        (errno.ENOSPC, "53100"),
        (errno.EDQUOT, "53100"),
        (errno.EROFS, "58030"),
    ],
)
def test_an_error_names_the_file_and_what_the_os_said(
    tmp_path: Path, error: int, sqlstate: str
) -> None:
    with pytest.raises(StorageError) as caught, durable.storage_errors(tmp_path, "write"):
        raise OSError(error, os.strerror(error))
    assert str(caught.value) == f'could not write "{tmp_path}": {os.strerror(error)}'
    assert caught.value.sqlstate == sqlstate


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_at_an_fsync_is_not_resumable(tmp_path: Path, error: int) -> None:
    """The pages may have been dropped: free space does not bring them back."""
    with (
        pytest.raises(StorageError) as caught,
        durable.storage_errors(tmp_path, "fdatasync", resumable=False),
    ):
        raise OSError(error, os.strerror(error))
    assert caught.value.sqlstate == "58030"
    assert caught.value.hint == ""


def test_each_kind_of_fsync_reports_its_failure_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    calls = []

    def fail(fd: int) -> None:
        calls.append(fd)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    monkeypatch.setattr(os, "fdatasync", fail)
    fd = os.open(path, os.O_RDWR)
    syncs: list[Callable[[], None]] = [
        lambda: durable.sync_data(fd, path),
        lambda: durable.sync_file(path),
        lambda: durable.sync_directory(tmp_path),
    ]
    for sync in syncs:
        with pytest.raises(StorageError, match="Input/output error"):
            sync()
    os.close(fd)
    assert len(calls) == 3
