"""Makes bytes durable: the one file that calls fsync, rename and unlink.

Laws. A file appears under its name only whole and synced: temporary name, write, fsync, rename,
fsync of the folder. A failed fsync is reported once and never retried: the kernel may have dropped
the dirty pages and marked them clean, so a second fsync that succeeds proves nothing (fsyncgate).
Every failure is a StorageError with the file's name and the OS's message.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from quorum_wal.storage.errors import FULL_DISK, StorageError

# Bytes read or written at a time: copying or comparing this many holds the interpreter for less
# than a millisecond, and the cost of the calls is negligible.
SLICE_BYTES = 1024 * 1024
ZERO_BLOCK = bytes(SLICE_BYTES)
ZERO_PIECE_BYTES = 32 * 1024

DISK_FULL = "53100"


@contextmanager
def storage_errors(path: Path, doing: str, *, resumable: bool = True) -> Iterator[None]:
    """Turn an OSError into a StorageError: `could not <doing> "<path>": <the OS's message>`.

    After a full disk the caller can resume when there is space. Not so after a failed fsync, which
    thin and copy-on-write volumes may cause: then the page cache and the disk differ.
    """
    try:
        yield
    except OSError as error:
        is_full = resumable and error.errno in FULL_DISK
        raise StorageError(
            f'could not {doing} "{path}": {error.strerror}',
            sqlstate=DISK_FULL if is_full else "",
            hint="Free some space; the timeline then resumes without a restart." if is_full else "",
        ) from error


def sync_directory(path: Path, *, missing_ok: bool = False) -> bool:
    """Make the names in a folder durable. With `missing_ok`, False if there is no such folder."""
    with storage_errors(path, "fsync directory", resumable=False):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            if missing_ok:
                return False
            raise
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    return True


def sync_file(path: Path) -> None:
    """Make the bytes read from a file durable: they may have been in the page cache only."""
    with storage_errors(path, "fsync", resumable=False):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def raise_failed(error_number: int, doing: str, path: Path) -> NoReturn:
    """For a failed pwrite or fdatasync of a compiled module. Raises StorageError."""
    with storage_errors(path, doing, resumable=doing == "write"):
        raise OSError(error_number, os.strerror(error_number))
    raise AssertionError("storage_errors must convert every OSError")


def sync_data(fd: int, path: Path) -> None:
    """The hot path's flush: data, and the metadata that is needed to read it back."""
    try:
        os.fdatasync(fd)
    except OSError:
        with storage_errors(path, "fdatasync", resumable=False):
            raise


def write_all(fd: int, data: bytes | memoryview, offset: int, path: Path) -> None:
    """pwrite until everything is written."""
    try:
        written = os.pwrite(fd, data, offset)
        while written < len(data):
            written += os.pwrite(fd, memoryview(data)[written:], offset + written)
    except OSError:
        with storage_errors(path, "write"):
            raise


def replace_file(path: Path, data: bytes, *, like: Path | None = None) -> None:
    """Atomically and durably give `path` the content `data`. The file gets the owner and mode of
    the file `like`; without one, only the owner of this process may use it. Raises StorageError,
    also if `path` is a device, a pipe or a symbolic link: these would be lost."""
    _check_regular(path)
    temporary = path.with_name(path.name + ".tmp")
    with storage_errors(temporary, "write"):
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            if like is not None:
                model = like.stat()
                os.fchown(fd, model.st_uid, model.st_gid)
                os.fchmod(fd, stat.S_IMODE(model.st_mode))
            write_all(fd, data, 0, temporary)
            os.fsync(fd)
        finally:
            os.close(fd)
    publish_file(temporary, path)


def _check_regular(path: Path) -> None:
    with storage_errors(path, "replace"):
        try:
            mode = os.lstat(path).st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is not a regular file")


def publish_file(temporary: Path, path: Path) -> None:
    """Give a synced file its name, durably."""
    with storage_errors(path, "rename to"):
        os.rename(temporary, path)
    sync_directory(path.parent)


def publish_new_file(temporary: Path, path: Path) -> bool:
    """Give a synced file its name unless it is taken; returns whether it was free. The temporary
    name is removed in both cases."""
    with storage_errors(path, "link to"):
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        finally:
            os.unlink(temporary)
    sync_directory(path.parent)
    return True


def create_zeroed(path: Path, size_bytes: int) -> None:
    """Create a synced file of zeros. They are written, not only allocated: a later fdatasync then
    writes no metadata (136 against 174 us here)."""
    _create(path, lambda fd: zero_range(fd, 0, size_bytes, path))


def create_allocated(path: Path, size_bytes: int) -> None:
    """Create a file of zeros, only allocated: takes a tenth of the time, but later flushes cost
    more."""
    _create(path, lambda fd: os.posix_fallocate(fd, 0, size_bytes))


def _create(path: Path, fill: Callable[[int], None]) -> None:
    with storage_errors(path, "create"):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            fill(fd)
            os.fsync(fd)
        except (OSError, StorageError):
            os.unlink(path)  # give the space back: the next attempt needs it
            raise
        finally:
            os.close(fd)


def zero_range(fd: int, begin: int, end: int, path: Path) -> None:
    """Overwrite [begin, end) of an open file with zeros; not synced.

    In small pieces: the page cache keeps a large write as one large folio, and each small write
    into it would go through all blocks of it. Zeroing 16 MB takes 12.8 ms in pieces of 8 kB, 6.3 in
    these, 4.2 in pieces of 1 MB; a small write afterwards 8.6, 8.7 and 9.9 us.
    """
    while begin < end:
        block = memoryview(ZERO_BLOCK)[: min(ZERO_PIECE_BYTES, end - begin)]
        write_all(fd, block, begin, path)
        begin += len(block)


def clear_range(fd: int, begin: int, end: int, path: Path) -> bool:
    """Like `zero_range`, but skips slices that are zero. Returns whether anything was written."""
    is_written = False
    while begin < end:
        length = min(SLICE_BYTES, end - begin)
        with storage_errors(path, "read"):
            found = os.pread(fd, length, begin)
        if found != ZERO_BLOCK[:length]:  # with a memoryview it takes 300 times as long
            zero_range(fd, begin, begin + length, path)
            is_written = True
        begin += length
    return is_written


def extend(fd: int, size_bytes: int, path: Path) -> None:
    """Give an open file its full size, with zeros; not synced."""
    with storage_errors(path, "allocate"):
        os.posix_fallocate(fd, 0, size_bytes)


def discard_tail(fd: int, begin: int, path: Path) -> None:
    """Turn everything from `begin` on into allocated, unwritten zeros; takes the same time for any
    length; not synced. A crash in between leaves a file that ends at `begin`."""
    with storage_errors(path, "truncate"):
        size_bytes = os.fstat(fd).st_size
        os.ftruncate(fd, begin)
        os.posix_fallocate(fd, 0, size_bytes)


def copy_range(source: Path, begin: int, end: int, fd: int, path: Path) -> None:
    """Copy [begin, end) of a file to the same place of an open one; not synced."""
    with storage_errors(source, "open"):
        source_fd = os.open(source, os.O_RDONLY)
    try:
        while begin < end:
            with storage_errors(source, "read"):
                data = os.pread(source_fd, min(SLICE_BYTES, end - begin), begin)
                if not data:
                    raise OSError(errno.EIO, f"it ends at {begin}, expected {end}")
            write_all(fd, data, begin, path)
            begin += len(data)
    finally:
        os.close(source_fd)


def remove_file(path: Path, *, missing_ok: bool = False) -> None:
    """Remove a name; the caller syncs the folder once for several."""
    with storage_errors(path, "remove"):
        path.unlink(missing_ok=missing_ok)


def remove_empty_directory(path: Path) -> bool:
    """Remove a folder if it exists and is empty; the caller syncs its parent."""
    try:
        os.rmdir(path)
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        with storage_errors(path, "remove directory"):
            raise
    return True


def free_bytes(path: Path) -> int:
    """The space left for this process on the disk of `path`."""
    with storage_errors(path, "stat"):
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize


def make_directory(path: Path) -> None:
    """Create a folder and its parents, and make their names durable. The folder may exist."""
    if not path.parent.is_dir():
        make_directory(path.parent)
    with storage_errors(path, "create directory"):
        path.mkdir(mode=0o700, exist_ok=True)
    sync_directory(path)
    sync_directory(path.parent)
