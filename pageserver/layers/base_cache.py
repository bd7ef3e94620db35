"""Stored positions of the files of a base backup, to find a page without reading all of them.

    on the local disk of a pageserver:
    base-BACKUP_ID.places     msgpack: [[tablespace, database, number, kind, GiB, archive, offset,
                              length], ...]
    base-BACKUP_ID.tar        the first frame
    beside the backup in the archive, sealed:
    .../backups/BACKUP_ID/places        the same content as the first file

The pageserver creates these files at its first start. Damaged files on the local disk are created
again; a damaged object in the archive is ignored.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from quorum_wal.backup.backup_catalog import BackupCatalog
from quorum_wal.backup.backup_record import Backup
from quorum_wal.objectstore.errors import ObjectDamaged, ObjectNotFound
from quorum_wal.objectstore.sealed import ZSTD_LEVEL, seal, unseal
from quorum_wal.pageserver.errors import LayerDamaged
from quorum_wal.pageserver.layers.backup_base import BackupFiles, FilePlace, read_backup
from quorum_wal.pageserver.layers.fork import Fork, ForkKind
from quorum_wal.pageserver.layers.frame import Frame, open_frame

PLACES = "places"
Row = tuple[int, int, int, int, int, int, int, int]


def cached_backup(
    catalog: BackupCatalog, backup: Backup, folder: Path
) -> tuple[BackupFiles, Frame]:
    """Raises BackupError, ObjectStoreError, LayerDamaged."""
    places = folder / f"base-{backup.backup_id}.places"
    frame = folder / f"base-{backup.backup_id}.tar"
    if places.exists() and frame.exists():
        try:
            return decode_places(places.read_bytes()), open_frame(frame)
        except LayerDamaged:
            places.unlink()
    files, first = read_backup(catalog, backup, frame)
    places.write_bytes(encode_places(files))
    return files, first


def store_places(catalog: BackupCatalog, backup: Backup, files: BackupFiles) -> None:
    """For commands without a data directory. May be repeated. Raises ObjectStoreError."""
    key = catalog.object_key(backup.backup_id, PLACES)
    catalog.archive.store.create(key, seal(encode_places(files), ZSTD_LEVEL))


def stored_places(catalog: BackupCatalog, backup: Backup) -> BackupFiles | None:
    """Returns None if no pageserver has stored them yet. Raises ObjectStoreError."""
    key = catalog.object_key(backup.backup_id, PLACES)
    try:
        return decode_places(unseal(catalog.archive.store.get(key), key))
    except (ObjectNotFound, ObjectDamaged, LayerDamaged):
        return None


def encode_places(files: BackupFiles) -> bytes:
    """Equal input gives equal bytes."""
    rows: list[Row] = [
        (fork.tablespace, fork.database, fork.number, int(fork.kind), segment,
         place.archive, place.offset, place.length)
        for (fork, segment), place in sorted(files.places.items())
    ]  # fmt: skip
    return msgspec.msgpack.encode(rows)


def decode_places(data: bytes) -> BackupFiles:
    """Raises LayerDamaged."""
    try:
        rows = msgspec.msgpack.decode(data, type=list[Row])
        found = {}
        for tablespace, database, number, kind, segment, *place in rows:
            if min(place) < 0:
                raise LayerDamaged(f"a table of files is damaged: found position {place}")
            found[Fork(tablespace, database, number, ForkKind(kind)), segment] = FilePlace(*place)
        return BackupFiles(found)
    except (msgspec.MsgspecError, ValueError) as error:
        raise LayerDamaged(f"a table of files is damaged: {error}") from error
