"""Unpacks the tar archives of a base backup into a data directory.

    each tablespace into its own folder, then base.tar into the data directory

Threads sync the files that are written, while further parts are unpacked.

Laws. Nothing is written outside of the given folders: names are checked, and links are made only
where Postgres has them, in pg_tblspc, and only to those folders. global/pg_control is the last file
of base.tar, so an interrupted unpacking cannot start.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from quorum_wal.backup.backup_catalog import BackupCatalog
from quorum_wal.backup.backup_record import Backup, BackupArchive
from quorum_wal.backup.base_backup import MANIFEST
from quorum_wal.backup.errors import BackupError
from quorum_wal.backup.file_sync import FileSync
from quorum_wal.backup.parts import PartReader
from quorum_wal.backup.tar_members import members
from quorum_wal.pg_server.account import Account, give
from quorum_wal.storage import durable

BASE = "base.tar"
TABLESPACES = "pg_tblspc"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpacking:
    """Where a backup is unpacked. `tablespaces` maps the old path of a tablespace to a new one, if
    they differ. `owner` owns the files; None: our account. `progress` gets the length of each
    portion that is written."""

    data_dir: Path
    tablespaces: Mapping[str, Path] = field(default_factory=dict)
    owner: Account | None = None
    is_synced: bool = True
    progress: Callable[[int], None] = lambda length: None

    def folder_of(self, archive: BackupArchive) -> Path:
        if not archive.path:
            return self.data_dir
        return self.tablespaces.get(archive.path, Path(archive.path))

    def run(self, catalog: BackupCatalog, backup: Backup) -> None:
        """Raises BackupError, ObjectStoreError, StorageError."""
        for folder in self.folders(backup):
            require_empty(folder)
        links = {
            f"{TABLESPACES}/{archive.name.removesuffix('.tar')}": self.folder_of(archive)
            for archive in backup.archives
            if archive.path
        }
        for archive in backup.archives:
            folder = self.folder_of(archive)
            make_folder(folder, self.owner)
            reader = PartReader(
                catalog.archive.store,
                lambda name, number: catalog.part_key(backup.backup_id, name, number),
                archive,
            )
            with closing(reader), _errors(folder), FileSync(self.is_synced) as sync:
                unpacked = _Unpacked(folder, self, links if archive.name == BASE else {}, sync)
                if archive.name == MANIFEST:
                    unpacked.file(reader.pieces(), MANIFEST, 0o600)
                else:
                    unpacked.tar(reader)
                unpacked.finish()

    def folders(self, backup: Backup) -> list[Path]:
        return list(dict.fromkeys(self.folder_of(archive) for archive in backup.archives))


def require_empty(folder: Path) -> None:
    """Raises BackupError unless the folder is empty or does not exist."""
    try:
        is_empty = not any(folder.iterdir())
    except FileNotFoundError:
        return
    except OSError as error:
        raise BackupError(f'could not read "{folder}": {error.strerror}') from error
    if not is_empty:
        raise BackupError(f'"{folder}" is not empty', hint="Move it, or name another folder.")


class _Unpacked:
    """The unpacking of one archive into `folder`."""

    def __init__(
        self,
        folder: Path,
        unpacking: Unpacking,
        links: Mapping[str, Path],
        sync: FileSync,
    ) -> None:
        self._folder = folder
        self._unpacking = unpacking
        self._links = links
        self._sync = sync
        self._directories: list[Path] = [folder]

    def tar(self, reader: PartReader) -> None:
        for member, content in members(reader):
            name = _checked_name(member.name)
            if member.isdir():
                self._directory(name, member.mode)
            elif member.issym():
                self._link(name)
            elif member.isreg():
                self.file(content, name, member.mode)
            else:
                raise BackupError(f'"{name}" in the backup is neither a file nor a directory')

    def _directory(self, name: str, mode: int) -> None:
        path = self._folder / name
        path.mkdir(mode=mode & 0o777, exist_ok=True)
        give(path, self._unpacking.owner)
        self._directories.append(path)

    def _link(self, name: str) -> None:
        if name not in self._links:
            raise BackupError(f'"{name}" in the backup is a link where none is expected')
        path = self._folder / name
        path.symlink_to(self._links[name].absolute())
        give(path, self._unpacking.owner)

    def file(self, content: Iterable[memoryview], name: str, mode: int) -> None:
        """Write one file."""
        path = self._folder / name
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode & 0o777)
        offset = 0
        try:
            for piece in content:
                durable.write_all(fd, piece, offset, path)
                offset += len(piece)
                self._unpacking.progress(len(piece))
        finally:
            os.close(fd)
        give(path, self._unpacking.owner)
        self._sync.add(path)

    def finish(self) -> None:
        """Returns when all files are synced."""
        self._sync.finish(reversed(self._directories))


def _checked_name(name: str) -> str:
    parts = PurePosixPath(name).parts
    if name.startswith("/") or ".." in parts:
        raise BackupError(f'"{name}" in the backup is not a name inside of the data directory')
    return "/".join(parts)


def make_folder(folder: Path, owner: Account | None) -> None:
    """Creates it with the mode that Postgres requires."""
    durable.make_directory(folder)
    with _errors(folder):
        folder.chmod(0o700)
        if owner is not None:
            os.chown(folder, owner.uid, owner.gid)


@contextmanager
def _errors(folder: Path) -> Iterator[None]:
    """An error of the disk, or of a tar header, becomes a BackupError."""
    try:
        yield
    except OSError as error:
        raise BackupError(f'could not unpack into "{folder}": {error.strerror}') from error
    except tarfile.TarError as error:
        raise BackupError(f'could not unpack into "{folder}": {error}') from error
