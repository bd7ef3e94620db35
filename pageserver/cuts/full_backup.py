"""Writes a cut to the archive as a base backup, without reading from a server.

    16384.tar, ..     folders, files of the frame | relation files, in the order of the base
    base.tar          backup_label, the same, links of tablespaces | ... | global/pg_control
    backup_manifest

Only the frame is on the local disk. Memory is that of `CutFiles` and `PartWriter`.
Law: the same cut produces the same bytes under the same name. So an interrupted backup is continued
by running it again, and two runs at the same time do no harm.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterable
from dataclasses import replace

from crc32c import crc32c

from quorum_wal.backup.backup_catalog import BackupCatalog
from quorum_wal.backup.backup_label import standby_label
from quorum_wal.backup.backup_record import Backup, format_backup_id
from quorum_wal.backup.base_backup import MANIFEST
from quorum_wal.backup.errors import BackupError
from quorum_wal.backup.manifest import ManifestWriter
from quorum_wal.backup.parts import PartWriter
from quorum_wal.backup.tar_members import BLOCK_BYTES
from quorum_wal.backup.unpack import BASE, TABLESPACES
from quorum_wal.objectstore.sealed import ZSTD_LEVEL
from quorum_wal.pageserver.cuts.cut_files import CutFiles
from quorum_wal.pageserver.errors import PageserverError
from quorum_wal.pageserver.layers.backup_base import BACKUP_LABEL
from quorum_wal.pageserver.layers.control_file import CONTROL_FILE
from quorum_wal.pageserver.layers.fork import PAGE_BYTES
from quorum_wal.pageserver.layers.frame import FILE_MODE, FOLDER_MODE, Frame
from quorum_wal.pgwal.lsn import format_lsn

#: The end of a tar archive.
END = bytes(2 * BLOCK_BYTES)


def new_backup_id(catalog: BackupCatalog, cut: Backup) -> str:
    """The name of the backup that this cut becomes. Raises BackupError if that backup already
    exists, ObjectStoreError."""
    backup_id = format_backup_id(cut.started_at, cut.start_lsn)
    if backup_id in {each.backup_id for each in catalog.backups()}:
        raise BackupError(
            f"backup {backup_id} of the cut at {format_lsn(cut.stop_lsn)} already exists",
            hint="Wait for the next cut of the pageserver.",
        )
    return backup_id


def create_full_backup(
    catalog: BackupCatalog,
    cut: Backup,
    frame: Frame,
    files: CutFiles,
    *,
    label: str,
    level: int | None = ZSTD_LEVEL,
    progress: Callable[[int], None] = lambda length: None,
) -> Backup:
    """`cut` is an entry of `VirtualBackups`; `frame` and `files` are its contents. Raises
    BackupError, ObjectStoreError, PageserverError."""
    backup_id = new_backup_id(catalog, cut)

    def part_key(name: str, number: int) -> str:
        return catalog.part_key(backup_id, name, number)

    with PartWriter(catalog.archive.store, part_key, level) as writer:
        stream = _FullStream(writer, frame, files, cut, progress)
        for oid, path in stream.linked:
            writer.begin(f"{oid}.tar", path)
            stream.tablespace(oid)
        writer.begin(BASE, "")
        stream.base(standby_label(
            cut.start_lsn, frame.control_file().checkpoint_lsn, cut.start_tli, cut.started_at,
            label, catalog.archive.facts.wal_seg_size,
        ))  # fmt: skip
        writer.begin(MANIFEST, "")
        writer.write(stream.manifest.finish(cut.start_tli, cut.start_lsn, cut.stop_lsn))
        archives = writer.finish()
    backup = replace(cut, backup_id=backup_id, label=label, archives=archives)
    catalog.add(backup)
    return backup


class _FullStream:
    def __init__(
        self,
        writer: PartWriter,
        frame: Frame,
        files: CutFiles,
        cut: Backup,
        progress: Callable[[int], None],
    ) -> None:
        self._writer = writer
        self._frame = frame
        self._files = files
        self._cut = cut
        self._progress = progress
        #: oid and location; in-place tablespaces are folders of pg_tblspc instead
        self.linked = sorted(each for each in frame.tablespaces.items() if each[1])
        self._version_folder = frame.control_file().version_folder(cut.pg_major)
        self.manifest = ManifestWriter(cut.pg_major, cut.system_id, cut.started_at)

    def tablespace(self, oid: int) -> None:
        """Writes its archive, which the caller has begun. Names are relative to the tablespace."""
        folder = f"{TABLESPACES}/{oid}/"
        self._frame_members(folder, lambda name: name.startswith(folder))
        self._relations(oid, folder)
        self._writer.write(END)

    def base(self, backup_label: bytes) -> None:
        self._file("", BACKUP_LABEL, len(backup_label), [memoryview(backup_label)])
        spaces = tuple(f"{TABLESPACES}/{oid}" for oid, _ in self.linked)

        def is_ours(name: str) -> bool:
            is_linked = name in spaces or name.startswith(tuple(f"{each}/" for each in spaces))
            return name != CONTROL_FILE and not is_linked

        self._frame_members("", is_ours)
        for oid, path in self.linked:
            self._link(f"{TABLESPACES}/{oid}", path)
        in_place = [oid for oid, path in sorted(self._frame.tablespaces.items()) if not path]
        for each in (*in_place, None):
            self._relations(each, "")
        control = self._frame.read(CONTROL_FILE)
        self._file("", CONTROL_FILE, len(control), [memoryview(control)])
        self._writer.write(END)

    def _frame_members(self, folder: str, is_ours: Callable[[str], bool]) -> None:
        for name, content in self._frame.members():
            if not is_ours(name):
                continue
            if content is None:
                info = tarfile.TarInfo(name.removeprefix(folder))
                info.type, info.mode = tarfile.DIRTYPE, FOLDER_MODE
                self._header(info)
            else:
                self._file(folder, name, len(content), [memoryview(content)])

    def _relations(self, oid: int | None, folder: str) -> None:
        for file in self._files.of_tablespace(oid):
            path = file.fork.file(self._version_folder, file.segment)
            self._file(folder, path, file.blocks * PAGE_BYTES, file.pieces)

    def _file(self, folder: str, path: str, size_bytes: int, pieces: Iterable[memoryview]) -> None:
        """`path` is relative to the data directory; the archive contains files below `folder`."""
        info = tarfile.TarInfo(path.removeprefix(folder))
        info.size, info.mode = size_bytes, FILE_MODE
        self._header(info)
        crc = length = 0
        for piece in pieces:
            crc = crc32c(piece, crc)
            length += len(piece)
            self._writer.write(piece)
            self._progress(len(piece))
        assert length == size_bytes
        self._writer.write(bytes(-length % BLOCK_BYTES))
        self.manifest.add(path, length, crc)

    def _link(self, name: str, target: str) -> None:
        info = tarfile.TarInfo(name)
        info.type, info.mode, info.linkname = tarfile.SYMTYPE, 0o777, target
        self._header(info)

    def _header(self, info: tarfile.TarInfo) -> None:
        info.mtime = int(self._cut.started_at.timestamp())
        try:
            header = info.tobuf(tarfile.USTAR_FORMAT, "utf-8", "surrogateescape")
        except ValueError as error:
            raise PageserverError(
                f'name "{info.linkname or info.name}" is too long for a tar archive: {error}',
                hint="Use sk restore to restore from the cut, which needs no archive.",
            ) from error
        self._writer.write(header)
