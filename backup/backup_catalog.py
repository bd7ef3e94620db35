"""The base backups in the archive of a timeline.

    .../backups/20261121T101500.123Z-0000000005000028/  start time (UTC) and start LSN
        base.tar/000001, 000002, ...                    the tar archive in parts, each one sealed
        16384.tar/000001                                a tablespace
        backup_manifest/000001                          the file that pg_verifybackup reads
        backup.json                                     written last, once
        places                                          only in a base of a pageserver (pageserver/)

Law: a folder is a backup if it has a `backup.json`. That object is created after all parts are in
the store, and deleted before the first part. So a folder without one is unfinished, or partly
deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime

import msgspec

from quorum_wal.backup.backup_record import Backup, parse_backup_id
from quorum_wal.backup.errors import BackupError
from quorum_wal.backup.retry import create_with_retries
from quorum_wal.objectstore.archive import TimelineArchive, check_present
from quorum_wal.objectstore.errors import ObjectDamaged, ObjectNotFound
from quorum_wal.objectstore.sealed import seal, unseal

BACKUP_FILE = "backup.json"
PART_DIGITS = 6

#: Prepared by the import: msgspec crashes if several threads use a type first.
_PREPARED = msgspec.json.Decoder(Backup)


class BackupCatalog:
    """Every method raises ObjectStoreError."""

    def __init__(self, archive: TimelineArchive) -> None:
        self.archive = archive
        self._store = archive.store

    def part_key(self, backup_id: str, archive_name: str, number: int) -> str:
        return f"{self._folder(backup_id)}{archive_name}/{number:0{PART_DIGITS}d}"

    def object_key(self, backup_id: str, name: str) -> str:
        """The key of an object that is kept beside a backup, and deleted with it."""
        return self._folder(backup_id) + name

    def backups(self) -> list[Backup]:
        """The finished backups, oldest first."""
        found = []
        for backup_id in self._ids():
            try:
                found.append(self._read(backup_id))
            except ObjectNotFound:
                continue  # unfinished, or deleted since
        return found

    def unfinished(self) -> list[str]:
        """The ids of folders that are not backups: one is being written, or was left unfinished."""
        finished = {backup.backup_id for backup in self.backups()}
        return [backup_id for backup_id in self._ids() if backup_id not in finished]

    def written_at(self, backup_id: str) -> datetime:
        """The time of the last write into its folder, by the store's clock. The id does not show
        that time: a backup made from a cut has the time of the cut."""
        began_at, _ = parse_backup_id(backup_id)
        infos = self._store.list(self._folder(backup_id))
        return max((info.modified_at for info in infos), default=began_at)

    def get(self, backup_id: str) -> Backup:
        """Raises BackupError if no backup has this id."""
        parse_backup_id(backup_id)
        try:
            return self._read(backup_id)
        except ObjectNotFound as error:
            raise BackupError(
                f"there is no backup {backup_id}", hint="sk backup list shows all backups."
            ) from error

    def add(self, backup: Backup) -> None:
        """All parts must be in the store. Raises BackupError if another backup has this id,
        ArchiveError if the store does not have the archive any more."""
        check_present(self._store, self.archive.timeline)
        key = self._folder(backup.backup_id) + BACKUP_FILE
        data = msgspec.json.format(msgspec.json.encode(asdict(backup)), indent=2)
        create_with_retries(self._store, key, seal(data, None))

    def delete(self, backup_id: str) -> None:
        """Deletes `backup.json` first, then the rest. Also deletes an unfinished backup."""
        folder = self._folder(backup_id)
        self._store.delete(folder + BACKUP_FILE)
        for info in list(self._store.list(folder)):
            self._store.delete(info.key)

    def _folder(self, backup_id: str) -> str:
        return f"{self.archive.keys.backups}{backup_id}/"

    def _ids(self) -> Sequence[str]:
        ids = []
        for name in self._store.list_folders(self.archive.keys.backups):
            try:
                parse_backup_id(name)
            except BackupError:
                continue  # not ours
            ids.append(name)
        return sorted(ids)

    def _read(self, backup_id: str) -> Backup:
        key = self._folder(backup_id) + BACKUP_FILE
        data = unseal(self._store.get(key), key)
        try:
            return msgspec.convert(msgspec.json.decode(data), Backup)
        except msgspec.MsgspecError as error:
            raise ObjectDamaged(f'object "{key}" is damaged: {error}') from error
