"""A folder as an object store. Files are the objects, folders the slashes of their keys.

An object appears under its key only whole and synced, including its name. `create` uses link(2),
which fails if the name exists. A temporary file that a crash left behind has a name that no key can
have; the first write to its folder a day later removes it.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from quorum_wal.objectstore.errors import ObjectNotFound, ObjectStoreError
from quorum_wal.objectstore.store import PIECE_BYTES, Data, ObjectInfo, named_keys
from quorum_wal.storage import durable
from quorum_wal.storage.errors import StorageError

TEMPORARY = ".tmp-"
#: Longer than any upload takes: others write to the same folders.
LEFTOVER_SECONDS = 24 * 3600.0

_PERMISSION = "Let the user that runs this process read and write the folder of the archive."
_NO_FOLDER = "Name a folder for the archive."
#: Errors that a retry cannot repair, and their hints.
LASTING = {
    errno.EACCES: _PERMISSION,
    errno.EPERM: _PERMISSION,
    errno.EROFS: "The file system of the archive is mounted read-only.",
    errno.ENOTDIR: _NO_FOLDER,
    errno.EISDIR: _NO_FOLDER,
    errno.ELOOP: _NO_FOLDER,
    errno.ENAMETOOLONG: _NO_FOLDER,
}


class LocalStore:
    """The first object creates the folder."""

    def __init__(self, root: str) -> None:
        if not os.path.isabs(root):
            raise ObjectStoreError(
                f'an archive\'s folder must be an absolute path, found "{root}"',
                hint="Use /srv/archive, file:///srv/archive or s3://bucket/prefix.",
            )
        self.root = Path(root)
        self.url = str(self.root)
        #: Not the process id: containers that share a folder may all have the same.
        self._token = secrets.token_hex(8)
        self._numbers = count(1)
        self._cleaned: set[Path] = set()

    def put(self, key: str, data: Data) -> None:
        path = self._path(key)
        temporary = self._write(key, path, data)
        with _errors(key):
            durable.publish_file(temporary, path)

    def create(self, key: str, data: Data) -> bool:
        path = self._path(key)
        with _errors(key):
            if path.exists():
                return False
        temporary = self._write(key, path, data)
        with _errors(key):
            return durable.publish_new_file(temporary, path)

    def get(self, key: str) -> bytes:
        with _errors(key):
            return self._path(key).read_bytes()

    def get_pieces(self, key: str) -> Iterator[bytes]:
        with _errors(key), self._path(key).open("rb") as file:
            while piece := file.read(PIECE_BYTES):
                yield piece

    def get_tail(self, key: str, length: int) -> bytes:
        with _errors(key), self._path(key).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - length))
            return file.read(length)

    def get_range(self, key: str, begin: int, length: int) -> bytes:
        assert begin >= 0
        assert length >= 0
        with _errors(key), self._path(key).open("rb") as file:
            file.seek(begin)
            return file.read(length)

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        assert not prefix or prefix.endswith("/")
        with _errors(prefix):
            yield from self._list(self.root / prefix, prefix, after)

    def list_folders(self, prefix: str) -> Sequence[str]:
        with _errors(prefix):
            try:
                entries = list(os.scandir(self.root / prefix))
            except (FileNotFoundError, NotADirectoryError):
                return []
            names = sorted(e.name for e in entries if e.is_dir(follow_symlinks=False))
            return [name for name in names if any(self.list(f"{prefix}{name}/"))]

    def delete(self, key: str) -> None:
        """Another process may delete the same object, and the empty folder, at the same time."""
        path = self._path(key)
        with _errors(key):
            if path.exists():
                durable.remove_file(path, missing_ok=True)
            if path.parent != self.root:
                durable.remove_empty_directory(path.parent)
            self._sync_nearest(path.parent)

    def _sync_nearest(self, folder: Path) -> None:
        """Syncs `folder`, or the nearest one above it that exists."""
        while not durable.sync_directory(folder, missing_ok=True) and folder != self.root:
            folder = folder.parent

    def delete_many(self, keys: Sequence[str]) -> None:
        """One by one: for a folder nothing else is faster."""
        left = list[str]()
        cause: ObjectStoreError | None = None
        for key in keys:
            try:
                self.delete(key)
            except ObjectStoreError as error:
                left.append(key)
                cause = error
        if cause is not None:
            raise ObjectStoreError(
                f"could not delete {named_keys(left)} in {self.url}: {cause}",
                hint=cause.hint,
                is_transient=cause.is_transient,
            ) from cause

    def _path(self, key: str) -> Path:
        assert not {"", ".", ".."} & set(key.split("/")), key
        return self.root / key

    def _write(self, key: str, path: Path, data: Data) -> Path:
        """A synced temporary file beside `path`; removed if writing fails, or `data` raises."""
        with _errors(key):
            self._remove_leftovers(path.parent)
            temporary = path.with_name(f"{TEMPORARY}{self._token}-{next(self._numbers)}")
            fd = _open_new(temporary)
        offset = 0
        try:
            for piece in (data,) if isinstance(data, bytes) else data:
                with _errors(key):
                    durable.write_all(fd, piece, offset, temporary)
                offset += len(piece)
            with _errors(key):
                durable.sync_data(fd, temporary)
        except BaseException:
            with _errors(key):
                durable.remove_file(temporary)
            raise
        finally:
            os.close(fd)
        return temporary

    def _remove_leftovers(self, folder: Path) -> None:
        """Once per folder: removes old temporary files of interrupted writes."""
        if folder in self._cleaned or not folder.is_dir():
            return
        self._cleaned.add(folder)
        before = datetime.now(UTC).timestamp() - LEFTOVER_SECONDS
        for leftover in folder.glob(f"{TEMPORARY}*"):
            with suppress(FileNotFoundError):  # another process removes them, too
                if leftover.stat().st_mtime < before:
                    leftover.unlink()

    def _list(self, folder: Path, prefix: str, after: str) -> Iterator[ObjectInfo]:
        try:
            # A folder sorts like its objects: by its name and a slash.
            entries = sorted(
                os.scandir(folder), key=lambda e: e.name + "/" * e.is_dir(follow_symlinks=False)
            )
        except (FileNotFoundError, NotADirectoryError):
            return
        for entry in entries:
            key = prefix + entry.name
            if entry.is_dir(follow_symlinks=False):
                if not after or f"{key}/" > after or after.startswith(f"{key}/"):
                    yield from self._list(folder / entry.name, f"{key}/", after)
            elif key > after and not entry.name.startswith(TEMPORARY):
                try:
                    stat = entry.stat()
                except FileNotFoundError:
                    continue  # deleted since
                modified_at = datetime.fromtimestamp(stat.st_mtime, UTC)
                yield ObjectInfo(key, stat.st_size, modified_at)


def _open_new(path: Path) -> int:
    """Creates the file and its folder. Creates the folder again if the deletion of its last object
    removes it at the same time."""
    while True:
        if not path.parent.is_dir():
            durable.make_directory(path.parent)
        try:
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileNotFoundError:
            continue


@contextmanager
def _errors(key: str) -> Iterator[None]:
    """Turns errors of the disk into errors of a store."""
    try:
        yield
    except FileNotFoundError as error:
        raise ObjectNotFound(f'object "{key}" does not exist') from error
    except OSError as error:
        raise ObjectStoreError(
            f'could not access object "{key}": {error.strerror}',
            hint=LASTING.get(error.errno or 0, ""),
            is_transient=error.errno not in LASTING,
        ) from error
    except StorageError as error:
        raise ObjectStoreError(str(error), hint=error.hint, is_transient=True) from error
