"""Where the files of a base backup are, kept on the local disk: else all of it is read at a start.

    base-BACKUP_ID.places     msgpack: [[tablespace, database, number, kind, GiB, archive, offset,
                              length], ...]
    base-BACKUP_ID.tar        the first frame

A file that cannot be used is made anew.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from backup.backup_catalog import BackupCatalog
from backup.backup_record import Backup
from pageserver.backup_base import BackupFiles, FilePlace, read_backup
from pageserver.errors import LayerDamaged
from pageserver.fork import Fork, ForkKind
from pageserver.frame import Frame, open_frame

Row = tuple[int, int, int, int, int, int, int, int]


def cached_backup(
    catalog: BackupCatalog, backup: Backup, folder: Path
) -> tuple[BackupFiles, Frame]:
    """Raises BackupError, ObjectStoreError, LayerDamaged."""
    places = folder / f"base-{backup.backup_id}.places"
    frame = folder / f"base-{backup.backup_id}.tar"
    if places.exists() and frame.exists():
        try:
            return BackupFiles(_unpack(places.read_bytes())), open_frame(frame)
        except LayerDamaged:
            places.unlink()
    files, first = read_backup(catalog, backup, frame)
    places.write_bytes(_pack(files))
    return files, first


def _pack(files: BackupFiles) -> bytes:
    rows: list[Row] = [
        (fork.tablespace, fork.database, fork.number, int(fork.kind), segment,
         place.archive, place.offset, place.length)
        for (fork, segment), place in files.places.items()
    ]  # fmt: skip
    return msgspec.msgpack.encode(rows)


def _unpack(data: bytes) -> dict[tuple[Fork, int], FilePlace]:
    try:
        rows = msgspec.msgpack.decode(data, type=list[Row])
        found = {}
        for tablespace, database, number, kind, segment, *place in rows:
            found[Fork(tablespace, database, number, ForkKind(kind)), segment] = FilePlace(*place)
        return found
    except (msgspec.MsgspecError, ValueError) as error:
        raise LayerDamaged(f"a table of files is damaged: {error}") from error
