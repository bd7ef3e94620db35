"""A frame: all files of a data directory at a cut except relation files. A tar file.

    .forks            the length of every fork (`fork_table`)
    .tablespaces      oid and location of each, a line each
    base/ base/5/ pg_xact/ ...                folders
    global/pg_control pg_xact/0000 ...        files

Omitted are files that a server creates again, and files that a base backup omits. User-maintained
files (postgresql.auto.conf) are copied from the previous frame, because the server that replayed
the epoch ran without them. Source: Postgres `backup/basebackup.c`, excludeFiles.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from quorum_wal.pageserver.errors import LayerDamaged
from quorum_wal.pageserver.layers.control_file import CONTROL_FILE, ControlFile
from quorum_wal.pageserver.layers.fork import parse_file
from quorum_wal.pageserver.layers.fork_table import ForkTable

FORKS, TABLESPACES = ".forks", ".tablespaces"
AUTO_CONF = "postgresql.auto.conf"
#: folders whose contents are omitted
EMPTIED = frozenset({
    "pg_dynshmem", "pg_notify", "pg_replslot", "pg_serial", "pg_snapshots", "pg_stat",
    "pg_stat_tmp", "pg_subtrans", "pg_wal", "log",
})  # fmt: skip
LEFT_OUT = frozenset({
    "postmaster.pid", "postmaster.opts", "backup_label", "backup_label.old", "tablespace_map",
    "tablespace_map.old", "backup_manifest", "current_logfiles", "current_logfiles.tmp",
    "standby.signal", "recovery.signal", "pg_internal.init", "postgresql.auto.conf.tmp", AUTO_CONF,
})  # fmt: skip
_TEMPORARY = "pgsql_tmp"
FOLDER_MODE, FILE_MODE = 0o700, 0o600


@dataclass(frozen=True, slots=True)
class Frame:
    """The tar file at `path`. `kept` are user-maintained files, by name."""

    path: Path
    forks: ForkTable
    tablespaces: Mapping[int, str]
    kept: Mapping[str, bytes] = field(default_factory=dict)

    def control_file(self) -> ControlFile:
        """Raises LayerDamaged."""
        return ControlFile.parse(self.read(CONTROL_FILE))

    def read(self, name: str) -> bytes:
        """Reads one file. Raises LayerDamaged."""
        with _open(self.path) as tar:
            return _member(tar, name)

    def names(self) -> frozenset[str]:
        """The names of all folders and files. Raises LayerDamaged."""
        with _open(self.path) as tar:
            return frozenset(tar.getnames())

    def members(self) -> Iterator[tuple[str, bytes | None]]:
        """The entries of the data directory: (name, content), with content None for a folder.
        Raises LayerDamaged."""
        with _open(self.path) as tar:
            for member in tar:
                if _is_ours(member.name):
                    continue
                if member.isdir():
                    yield member.name, None
                    continue
                file = tar.extractfile(member)
                if file is None:
                    raise LayerDamaged(f'frame member "{member.name}" is not a regular file')
                yield member.name, file.read()

    def unpack(
        self,
        folder: Path,
        *,
        give: Callable[[Path], None],
        with_kept: bool,
        written: Callable[[Path], None] = lambda path: None,
    ) -> None:
        """Writes into an empty folder. `give` changes the owner of a path to the server's account;
        `written` receives each file. Tablespaces become folders in pg_tblspc. Raises
        LayerDamaged."""
        for name, content in self.members():
            if name in self.kept and not with_kept:
                continue
            path = folder / name
            if content is None:
                # A tablespace's archive precedes the archive that contains its parent folder.
                path.mkdir(parents=True, exist_ok=True)
                path.chmod(FOLDER_MODE)
                give(path)
            else:
                path.write_bytes(content)
                path.chmod(FILE_MODE)
                give(path)
                written(path)


def open_frame(path: Path) -> Frame:
    """Raises LayerDamaged."""
    with _open(path) as tar:
        forks = ForkTable.unpack(_member(tar, FORKS))
        tablespaces = {}
        for line in _member(tar, TABLESPACES).decode(errors="surrogateescape").splitlines():
            oid, _, location = line.partition(" ")
            if not oid.isdecimal():
                raise LayerDamaged(f"expected a line with oid and path, found {line!r}")
            tablespaces[int(oid)] = location
        kept = {AUTO_CONF: _member(tar, AUTO_CONF)} if AUTO_CONF in tar.getnames() else {}
    return Frame(path, forks, tablespaces, kept)


class FrameWriter:
    """A context manager. Takes folders and files in any order, then finish()."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kept: dict[str, bytes] = {}

    def __enter__(self) -> Self:
        self._tar = tarfile.open(self._path, mode="w:")
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._tar.close()

    def add_folder(self, path: str) -> None:
        """A folder whose contents are omitted is added as an empty folder."""
        if any(path.startswith(f"{name}/") for name in EMPTIED):
            return
        info = tarfile.TarInfo(path)
        info.type, info.mode = tarfile.DIRTYPE, FOLDER_MODE
        self._tar.addfile(info)
        if path == "pg_wal":
            info.name = "pg_wal/archive_status"
            self._tar.addfile(info)

    def add(self, path: str, content: bytes, *, always: bool = False) -> None:
        """Adds a file, unless it is omitted. `always` adds it in any case."""
        if path == AUTO_CONF and always:
            self._kept[path] = content
        if always or is_kept(path):
            _add(self._tar, path, content)

    def finish(self, forks: ForkTable, tablespaces: Mapping[int, str]) -> Frame:
        """Returns the frame."""
        lines = "".join(f"{oid} {where}\n" for oid, where in sorted(tablespaces.items()))
        _add(self._tar, FORKS, forks.pack())
        _add(self._tar, TABLESPACES, lines.encode(errors="surrogateescape"))
        return Frame(self._path, forks, dict(tablespaces), self._kept)


def is_kept(path: str) -> bool:
    """Whether a file of a data directory belongs in a frame."""
    folder, _, name = path.rpartition("/")
    return not (
        name in LEFT_OUT
        or name.startswith((_TEMPORARY, "."))
        or folder.partition("/")[0] in EMPTIED
        or parse_file(path) is not None
    )


def write_frame(
    path: Path,
    data_dir: Path,
    forks: ForkTable,
    tablespaces: Mapping[int, str],
    kept: Mapping[str, bytes],
) -> Frame:
    """Writes the frame of a data directory whose server is stopped. Equal content gives equal
    bytes."""
    with FrameWriter(path) as writer:
        for name, content in sorted(kept.items()):
            writer.add(name, content, always=True)
        _add_folder(writer, data_dir, "")
        return writer.finish(forks, tablespaces)


def _add_folder(writer: FrameWriter, data_dir: Path, name: str) -> None:
    with os.scandir(data_dir / name) as entries:
        ordered = sorted(entries, key=lambda entry: entry.name)
    for entry in ordered:
        path = f"{name}/{entry.name}" if name else entry.name
        if entry.name.startswith((_TEMPORARY, ".")):
            continue
        if entry.is_dir():
            writer.add_folder(path)
            if path not in EMPTIED:
                _add_folder(writer, data_dir, path)
        elif is_kept(path):
            writer.add(path, Path(entry.path).read_bytes())


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), FILE_MODE
    tar.addfile(info, io.BytesIO(content))


def _is_ours(name: str) -> bool:
    """Whether it is not a file of the data directory: .forks, .tablespaces, or an unsafe path."""
    return name.startswith((".", "/")) or ".." in Path(name).parts


def _open(path: Path) -> tarfile.TarFile:
    try:
        return tarfile.open(path, mode="r:")
    except tarfile.TarError as error:
        raise LayerDamaged(f"frame {path.name} is not a tar file: {error}") from error


def _member(tar: tarfile.TarFile, name: str) -> bytes:
    try:
        file = tar.extractfile(name)
    except KeyError:
        file = None
    if file is None:
        raise LayerDamaged(f'file "{name}" is missing in a frame')
    return file.read()
