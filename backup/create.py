"""Takes a base backup: cuts the server's stream into parts, compresses them and archives them.

The backup does not contain WAL, because safekeepers archive it. A backup can be restored from the
archive alone once the archive has reached the backup's stop LSN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

import psycopg

from quorum_wal.backup.backup_catalog import BackupCatalog
from quorum_wal.backup.backup_record import Backup, format_backup_id
from quorum_wal.backup.base_backup import (
    ArchiveData,
    BackupOptions,
    BackupPosition,
    BaseBackup,
    NewArchive,
    Progress,
)
from quorum_wal.backup.errors import BackupError
from quorum_wal.backup.parts import PartWriter
from quorum_wal.objectstore.archive import TimelineArchive
from quorum_wal.objectstore.sealed import ZSTD_LEVEL
from quorum_wal.pgwal.lsn import format_lsn


@dataclass(frozen=True, slots=True)
class BackedUpServer:
    """The server that is backed up. `read_clock` asks it for its time."""

    system_id: int
    pg_version: int
    is_standby: bool
    read_clock: Callable[[], datetime]


@dataclass(frozen=True, slots=True)
class BackupWatcher:
    """`began` gets the backup id and the estimated bytes, `progressed` the bytes read so far."""

    began: Callable[[str, int], None] = lambda backup_id, estimated_bytes: None
    progressed: Callable[[int], None] = lambda done_bytes: None


def create_backup(
    connection: psycopg.Connection,
    server: BackedUpServer,
    catalog: BackupCatalog,
    options: BackupOptions,
    *,
    level: int | None = ZSTD_LEVEL,
    watcher: BackupWatcher | None = None,
) -> Backup:
    """`connection` is a physical replication connection to `server`; after a failure its owner
    closes it. Raises BackupError, ObjectStoreError.

    An interrupted call leaves an unfinished backup in the archive; `prune` removes it.
    """
    watcher = watcher or BackupWatcher()
    _check_server(catalog.archive, server)
    source = BaseBackup(connection, options)
    began = source.start()
    _check_start(catalog.archive, began)
    started_at = server.read_clock()
    backup_id = format_backup_id(started_at, began.lsn)
    watcher.began(backup_id, source.estimated_bytes)

    def part_key(name: str, number: int) -> str:
        return catalog.part_key(backup_id, name, number)

    with PartWriter(catalog.archive.store, part_key, level) as writer:
        for message in source.messages():
            match message:
                case ArchiveData(data):
                    writer.write(data)
                case NewArchive(name, path):
                    writer.begin(name, path)
                case Progress(done_bytes):
                    watcher.progressed(done_bytes)
        ended = source.finish()
        archives = writer.finish()
    backup = Backup(
        backup_id=backup_id,
        label=options.label,
        system_id=server.system_id,
        pg_version=server.pg_version,
        start_lsn=began.lsn,
        start_tli=began.tli,
        stop_lsn=ended.lsn,
        stop_tli=ended.tli,
        started_at=started_at,
        stopped_at=server.read_clock(),
        from_standby=server.is_standby,
        archives=archives,
        checksum_failures=tuple(source.checksum_failures),
    )
    catalog.add(backup)
    return backup


def archived_lsn(archive: TimelineArchive, backup: Backup) -> int:
    """The position up to which the archive has, without a gap, the WAL to restore this backup."""
    from_lsn = backup.start_lsn - backup.start_lsn % archive.facts.wal_seg_size
    return archive.archived_lsn(archive.newest_history(), from_lsn)


def _check_server(archive: TimelineArchive, server: BackedUpServer) -> None:
    facts = archive.facts
    if (server.system_id, server.pg_version // 10000) != (
        facts.system_id,
        facts.server.pg_major,
    ):
        raise BackupError(
            f"the server is Postgres {server.pg_version // 10000} of system {server.system_id}, "
            f"the archive's timeline belongs to Postgres {facts.server.pg_major} of system "
            f"{facts.system_id}",
            hint="Name the archive of this cluster, or its timeline with --timeline.",
        )


def _check_start(archive: TimelineArchive, began: BackupPosition) -> None:
    if began.lsn < archive.facts.timeline_start_lsn:
        raise BackupError(
            f"the backup begins at {format_lsn(began.lsn)}, before the archive's WAL, which begins "
            f"at {format_lsn(archive.facts.timeline_start_lsn)}",
            hint="If the server is a standby that lags, take the backup from the primary.",
        )
