"""The archiver's progress and state for one timeline, as this safekeeper knows them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import structlog

from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.safekeeper.archive_workers import WORKERS

log = structlog.get_logger()

PARTIAL_INTERVAL_SECONDS = 10.0
BACKLOG_WARNING_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class ArchiveSettings:
    """The operator's settings. `level` is zstd's; None means no compression. `backlog_bytes_max` 0
    means no limit but the disk. `workers_max`: timelines archived at the same time."""

    url: str
    options: dict[str, str]
    level: int | None = 1
    partial_interval_seconds: float = PARTIAL_INTERVAL_SECONDS
    backlog_bytes_max: int = 0
    workers_max: int = WORKERS
    may_begin: bool = False


class ArchiverState(Enum):
    """What this safekeeper does about a timeline's archive."""

    STARTING = "starting"  #: has not read the archive yet
    ARCHIVING = "archiving"  #: this member uploads
    FOLLOWING = "following"  #: another member uploads, this one watches
    RETRYING = "retrying"  #: the store failed; the next attempt follows


@dataclass(slots=True)
class ArchiveProgress:
    """Written by the archiver's thread only, `has_warned` by the housekeeping thread. Others read
    one field at a time."""

    settings: ArchiveSettings
    archived_lsn: int
    state: ArchiverState = ArchiverState.STARTING
    error: str = ""
    retry_seconds: float = 0.0
    uploaded_bytes: int = 0  # of WAL, before compression
    failures_count: int = 0
    has_warned: bool = False
    #: The archive was read. Until then, archived_lsn is where its WAL may begin.
    is_open: bool = False

    def backlog_bytes(self, commit_lsn: int) -> int:
        return max(0, commit_lsn - self.archived_lsn)

    def is_settled(self, commit_lsn: int) -> bool:
        """Everything committed is archived, according to the last look at the store."""
        is_seen = self.state in (ArchiverState.ARCHIVING, ArchiverState.FOLLOWING)
        return is_seen and not self.backlog_bytes(commit_lsn)

    def is_backlog_full(self, commit_lsn: int) -> bool:
        return self.is_limit_reached(self.backlog_bytes(commit_lsn))

    def is_limit_reached(self, wal_bytes: int) -> bool:
        limit = self.settings.backlog_bytes_max
        return bool(limit) and wal_bytes >= limit

    def is_backlog_high(self, commit_lsn: int) -> bool:
        """The backlog has reached the share of its limit at which an operator should act."""
        limit = self.settings.backlog_bytes_max
        return bool(limit) and self.backlog_bytes(commit_lsn) >= BACKLOG_WARNING_SHARE * limit

    def warn_of_backlog(self, timeline: str, commit_lsn: int) -> None:
        """Logs one warning each time the backlog becomes high."""
        is_high = self.is_backlog_high(commit_lsn)
        if is_high and not self.has_warned:
            log.warning("archive backlog is high", timeline=timeline, **self.describe(commit_lsn))
        self.has_warned = is_high

    def describe(self, commit_lsn: int) -> dict[str, Any]:
        return {
            "archived_lsn": format_lsn(self.archived_lsn),
            "backlog_bytes": self.backlog_bytes(commit_lsn),
            "backlog_max_bytes": self.settings.backlog_bytes_max or None,
            "backlog_is_high": self.is_backlog_high(commit_lsn),
            "state": self.state.value,
            "error": self.error or None,
            "retry_seconds": self.retry_seconds if self.error else None,
        }
