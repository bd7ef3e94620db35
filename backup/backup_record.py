"""`backup.json`: what a base backup says of itself, and its name. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from backup.errors import BackupError

TIME_FORMAT = "%Y%m%dT%H%M%SZ"
LSN_DIGITS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupArchive:
    """A tar archive of a backup, or its manifest, in parts numbered from 1. `path` is where a
    tablespace was, "" for the data directory."""

    name: str
    path: str
    parts: int
    content_bytes: int
    stored_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Backup:
    """`backup.json`. A restore needs the WAL from `start_lsn`; it is consistent at `stop_lsn`.
    Times are the server's clock; `stopped_at` is not before the stop LSN was written."""

    backup_id: str
    label: str
    system_id: int
    pg_version: int
    start_lsn: int
    start_tli: int
    stop_lsn: int
    stop_tli: int
    started_at: datetime
    stopped_at: datetime
    from_standby: bool
    archives: tuple[BackupArchive, ...]
    checksum_failures: tuple[str, ...] = ()

    @property
    def content_bytes(self) -> int:
        return sum(archive.content_bytes for archive in self.archives)

    @property
    def stored_bytes(self) -> int:
        return sum(archive.stored_bytes for archive in self.archives)

    @property
    def pg_major(self) -> int:
        return self.pg_version // 10000


def format_backup_id(started_at: datetime, start_lsn: int) -> str:
    """Ids sort as backups began."""
    return f"{started_at.astimezone(UTC):{TIME_FORMAT}}-{start_lsn:0{LSN_DIGITS}X}"


def parse_backup_id(backup_id: str) -> tuple[datetime, int]:
    """When it began, and at which LSN. Raises BackupError."""
    time, _, lsn = backup_id.partition("-")
    try:
        began = datetime.strptime(time, TIME_FORMAT).replace(tzinfo=UTC), int(lsn, 16)
    except ValueError:
        began = None
    if began is None or format_backup_id(*began) != backup_id:
        raise BackupError(
            f'"{backup_id}" is no name of a backup', hint="sk backup list shows those there are."
        )
    return began
