"""`VirtualBackups`: the cuts of a timeline as base backups that `sk restore` can start from.

    cut 1      cut 2      cut 3      target
      |----------|----------|----------X          the restore writes cut 3 and replays from there

Law: as for any backup, `stopped_at` is not before the cut's last byte was written. The time of a
checkpoint is its start. So a cut ended before the next one began, and the newest one before now.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from quorum_wal.backup.backup_record import Backup, BackupArchive
from quorum_wal.backup.file_sync import FileSync
from quorum_wal.backup.unpack import BASE, TABLESPACES, Unpacking, make_folder, require_empty
from quorum_wal.objectstore.archive import TimelineArchive
from quorum_wal.pageserver.cuts.cut_files import CutFiles
from quorum_wal.pageserver.cuts.cut_pages import fetch_frame, open_files
from quorum_wal.pageserver.cuts.page_objects import PageObjects
from quorum_wal.pageserver.cuts.virtual_full import write_virtual_full
from quorum_wal.pageserver.errors import PageNotFound
from quorum_wal.pageserver.layers.control_file import CONTROL_FILE
from quorum_wal.pageserver.layers.fork import PAGE_BYTES
from quorum_wal.pageserver.layers.frame import Frame
from quorum_wal.pageserver.objects.page_index import Cut
from quorum_wal.pg_server.account import give
from quorum_wal.storage import durable

PREFIX = "cut-"
LABEL = "virtual full"


class VirtualBackups:
    """The cuts of the newest index. Every method raises ObjectStoreError, PageserverError."""

    def __init__(self, archive: TimelineArchive, now: datetime) -> None:
        self._archive = archive
        self._objects = PageObjects(archive.store, archive.timeline)
        self._now = now
        self._index = self._objects.newest_index()
        self._folder = tempfile.TemporaryDirectory(prefix="cuts-")
        self._frames: dict[str, Frame] = {}

    def close(self) -> None:
        self._folder.cleanup()

    def backups(self) -> list[Backup]:
        """Oldest first. `archives` is empty; details() fills it in."""
        cuts = self._index.cuts
        ends = [datetime.fromtimestamp(cut.time_unix_s + 1, UTC) for cut in cuts[1:]]
        newest = max([self._now, *ends[-1:]])
        return [
            self._backup(cut, stopped_at)
            for cut, stopped_at in zip(cuts, [*ends, newest], strict=False)
        ]

    @property
    def horizon(self) -> Cut | None:
        """The oldest cut, if older ones were deleted."""
        return self._index.cuts[0] if self._index.cuts and self._index.horizon_lsn else None

    def details(self, backup: Backup) -> Backup:
        """The same backup with the archives that it will write."""
        frame = self._frame(backup)
        sizes: dict[int, int] = {}
        for fork, blocks in frame.forks.items():
            sizes[fork.tablespace] = sizes.get(fork.tablespace, 0) + blocks * PAGE_BYTES
        own = sum(size for oid, size in sizes.items() if oid not in frame.tablespaces)
        archives = [_archive(BASE, "", own)]
        archives += [
            _archive(f"{oid}.tar", where, sizes.get(oid, 0))
            for oid, where in frame.tablespaces.items()
        ]
        return replace(backup, archives=tuple(archives))

    def write(self, backup: Backup, unpacking: Unpacking) -> None:
        """Writes a data directory from which a server can recover. The control file is written
        last, so an interrupted restore cannot be started. Also raises BackupError, StorageError."""
        frame, cut_files = self.open(backup)
        for folder in unpacking.folders(backup):
            require_empty(folder)
            make_folder(folder, unpacking.owner)
        data_dir = unpacking.data_dir
        with FileSync(unpacking.is_synced) as sync:
            files = _Files(unpacking, sync)
            links = files.folder(data_dir / TABLESPACES)
            for archive in backup.archives:
                if archive.path:
                    link = links / archive.name.removesuffix(".tar")
                    link.symlink_to(unpacking.folder_of(archive).absolute())
                    files.give(link)
            write_virtual_full(
                data_dir,
                frame,
                cut_files,
                pg_major=self._archive.facts.server.pg_major,
                give=files.give,
                progress=unpacking.progress,
                written=files.written,
            )
            sync.finish(_folders(data_dir))
        durable.replace_file(
            data_dir / CONTROL_FILE, frame.read(CONTROL_FILE), like=data_dir / "PG_VERSION"
        )

    def open(self, backup: Backup) -> tuple[Frame, CutFiles]:
        """The frame and all files of the cut."""
        frame, cut = self._frame(backup), self._cut(backup)
        return frame, open_files(self._archive, self._objects, self._index, cut, frame)

    # ---- cuts and frames

    def _backup(self, cut: Cut, stopped_at: datetime) -> Backup:
        facts = self._archive.facts
        return Backup(
            backup_id=f"{PREFIX}{cut.end_lsn:016X}",
            label=LABEL,
            system_id=facts.system_id,
            pg_version=facts.pg_version,
            start_lsn=cut.redo_lsn,
            start_tli=cut.tli,
            stop_lsn=cut.end_lsn,
            stop_tli=cut.tli,
            started_at=datetime.fromtimestamp(cut.time_unix_s, UTC),
            stopped_at=stopped_at,
            from_standby=True,
            archives=(),
        )

    def _cut(self, backup: Backup) -> Cut:
        for cut in self._index.cuts:
            if cut.end_lsn == backup.stop_lsn:
                return cut
        raise PageNotFound(f"cut {backup.backup_id} does not exist")

    def _frame(self, backup: Backup) -> Frame:
        if backup.backup_id not in self._frames:
            path = Path(self._folder.name) / backup.backup_id
            frame = fetch_frame(self._objects, self._index, self._cut(backup), path)
            self._frames[backup.backup_id] = frame
        return self._frames[backup.backup_id]


def _archive(name: str, path: str, content_bytes: int) -> BackupArchive:
    return BackupArchive(name=name, path=path, parts=0, content_bytes=content_bytes, stored_bytes=0)


class _Files:
    """Sets the owner of written files and syncs them."""

    def __init__(self, unpacking: Unpacking, sync: FileSync) -> None:
        self._unpacking = unpacking
        self._sync = sync

    def give(self, path: Path) -> None:
        give(path, self._unpacking.owner)

    def folder(self, path: Path) -> Path:
        path.mkdir(mode=0o700)
        self.give(path)
        return path

    def written(self, path: Path) -> None:
        """Removes the control file, which is written last."""
        if path == self._unpacking.data_dir / CONTROL_FILE:
            path.unlink()
        else:
            self._sync.add(path)


def _folders(data_dir: Path) -> Iterator[Path]:
    """All folders of a data directory, including those of its tablespaces."""
    for top in (data_dir, *(data_dir / TABLESPACES).iterdir()):
        yield top
        yield from (path for path in top.rglob("*") if path.is_dir() and not path.is_symlink())
