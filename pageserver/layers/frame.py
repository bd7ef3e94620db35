"""A frame: all of a data directory at a cut that is no page of a relation. A tar file.

    .forks            the length of every fork (`fork_table`)
    .tablespaces      oid and location of each, a line each
    base/ base/5/ pg_xact/ ...                folders
    global/pg_control pg_xact/0000 ...        files

Left out is what a server makes anew, and what a base backup leaves out, too. The files that nobody
but a person changes (postgresql.auto.conf) come from the frame before: the server that replayed the
epoch was started without them. Source: Postgres `backup/basebackup.c`, excludeFiles.
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

from pageserver.errors import LayerDamaged
from pageserver.layers.control_file import CONTROL_FILE, ControlFile
from pageserver.layers.fork import parse_file
from pageserver.layers.fork_table import ForkTable

FORKS, TABLESPACES = ".forks", ".tablespaces"
AUTO_CONF = "postgresql.auto.conf"
#: folders whose content is not kept
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
    """The tar file at `path`. `kept` are files of persons, by their names."""

    path: Path
    forks: ForkTable
    tablespaces: Mapping[int, str]
    kept: Mapping[str, bytes] = field(default_factory=dict)

    def control_file(self) -> ControlFile:
        """Raises LayerDamaged."""
        return ControlFile.parse(self.read(CONTROL_FILE))

    def read(self, name: str) -> bytes:
        """One file of it. Raises LayerDamaged."""
        with _open(self.path) as tar:
            return _member(tar, name)

    def names(self) -> frozenset[str]:
        """Of its folders and files. Raises LayerDamaged."""
        with _open(self.path) as tar:
            return frozenset(tar.getnames())

    def members(self) -> Iterator[tuple[str, bytes | None]]:
        """Of the data directory: the name of each, and its content, None of a folder. Raises
        LayerDamaged."""
        with _open(self.path) as tar:
            for member in tar:
                if _is_ours(member.name):
                    continue
                if member.isdir():
                    yield member.name, None
                    continue
                file = tar.extractfile(member)
                if file is None:
                    raise LayerDamaged(f'frame has "{member.name}", which is no file')
                yield member.name, file.read()

    def unpack(
        self,
        folder: Path,
        *,
        give: Callable[[Path], None],
        with_kept: bool,
        written: Callable[[Path], None] = lambda path: None,
    ) -> None:
        """Into an empty folder; `give` hands each path to the server's account, `written` hears of
        files. Tablespaces become folders in pg_tblspc. Raises LayerDamaged."""
        for name, content in self.members():
            if name in self.kept and not with_kept:
                continue
            path = folder / name
            if content is None:
                # A tablespace's archive comes before the one with the folder it is in.
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
                raise LayerDamaged(f"a line of tablespaces is no oid and path: {line!r}")
            tablespaces[int(oid)] = location
        kept = {AUTO_CONF: _member(tar, AUTO_CONF)} if AUTO_CONF in tar.getnames() else {}
    return Frame(path, forks, tablespaces, kept)


class FrameWriter:
    """A context manager: folders and files in any order, then finish()."""

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
        """One whose content is not kept is there, and empty."""
        if any(path.startswith(f"{name}/") for name in EMPTIED):
            return
        info = tarfile.TarInfo(path)
        info.type, info.mode = tarfile.DIRTYPE, FOLDER_MODE
        self._tar.addfile(info)
        if path == "pg_wal":
            info.name = "pg_wal/archive_status"
            self._tar.addfile(info)

    def add(self, path: str, content: bytes, *, always: bool = False) -> None:
        """Unless it is left out; or `always`."""
        if path == AUTO_CONF and always:
            self._kept[path] = content
        if always or is_kept(path):
            _add(self._tar, path, content)

    def finish(self, forks: ForkTable, tablespaces: Mapping[int, str]) -> Frame:
        """What it has written."""
        lines = "".join(f"{oid} {where}\n" for oid, where in sorted(tablespaces.items()))
        _add(self._tar, FORKS, forks.pack())
        _add(self._tar, TABLESPACES, lines.encode(errors="surrogateescape"))
        return Frame(self._path, forks, dict(tablespaces), self._kept)


def is_kept(path: str) -> bool:
    """A file of a data directory that belongs into a frame."""
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
    """Out of a data directory whose server is down. The same content gives the same bytes."""
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
    """Not of the data directory; or it leads out of it."""
    return name.startswith((".", "/")) or ".." in Path(name).parts


def _open(path: Path) -> tarfile.TarFile:
    try:
        return tarfile.open(path, mode="r:")
    except tarfile.TarError as error:
        raise LayerDamaged(f"frame {path.name} is no tar file: {error}") from error


def _member(tar: tarfile.TarFile, name: str) -> bytes:
    try:
        file = tar.extractfile(name)
    except KeyError:
        file = None
    if file is None:
        raise LayerDamaged(f'a frame has no file "{name}"')
    return file.read()
