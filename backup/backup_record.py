"""`backup.json`: the record of a base backup, and the backup's id. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from quorum_wal.backup.errors import BackupError

SECOND_FORMAT = "%Y%m%dT%H%M%S"
# Older ids have no milliseconds.
BACKUP_ID = re.compile(r"([0-9]{8}T[0-9]{6})(\.[0-9]{3})?Z-([0-9A-F]{16})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupArchive:
    """A tar archive of a backup, or its manifest, in parts numbered from 1. `path` is the path of a
    tablespace on the server, or "" for the data directory."""

    name: str
    path: str
    parts: int
    content_bytes: int
    stored_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Backup:
    """`backup.json`. A restore needs the WAL from `start_lsn` on; it is consistent at `stop_lsn`.
    Times are by the server's clock. The server had written the stop LSN before `stopped_at`."""

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
    """Ids sort by start time. Two backups of a standby can have the same start LSN within one
    second, so ids have milliseconds."""
    utc = started_at.astimezone(UTC)
    return f"{utc:{SECOND_FORMAT}}.{utc.microsecond // 1000:03d}Z-{start_lsn:016X}"


def parse_backup_id(backup_id: str) -> tuple[datetime, int]:
    """The start time and the start LSN. Raises BackupError."""
    if parts := BACKUP_ID.fullmatch(backup_id):
        second, fraction, lsn = parts.groups(default=".000")
        try:
            began = datetime.strptime(f"{second}{fraction}", f"{SECOND_FORMAT}.%f")
        except ValueError:
            pass  # such as the 32nd of a month; it is refused below
        else:
            return began.replace(tzinfo=UTC), int(lsn, 16)
    raise BackupError(f'"{backup_id}" is not a backup id', hint="sk backup list shows all backups.")
