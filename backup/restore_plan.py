"""Finds the backup and the log for a recovery target. Checks everything, and writes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from quorum_wal.backup.archived_wal import ArchivedWalSource
from quorum_wal.backup.backup_record import Backup
from quorum_wal.backup.errors import BackupError
from quorum_wal.backup.replayable_log import ReplayableLog
from quorum_wal.backup.target import (
    AtLsn,
    AtXid,
    Latest,
    LogEnd,
    Target,
    TransactionEnd,
    check_exists,
    check_of_log,
    choose_backup,
    is_before,
    is_of_log,
)
from quorum_wal.backup.wal_source import WalSource
from quorum_wal.objectstore.archive import TimelineArchive
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.pgwal.lsn import LSN_MAX, format_lsn


@dataclass(frozen=True, slots=True)
class LiveLog:
    """The log on the safekeepers that answer: [begin_lsn, commit_lsn) of `history`."""

    source: WalSource
    begin_lsn: int
    commit_lsn: int
    history: TimelineHistory


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """Unpack `backup` and replay the log up to `target`; `end` is the end of the log."""

    backup: Backup
    target: Target
    end: LogEnd


class RestorePlanner:
    """Every method raises BackupError, ObjectStoreError, WalError."""

    def __init__(self, archive: TimelineArchive, live: LiveLog | None = None) -> None:
        self._archive = archive
        self._live = live
        self._history = archive.newest_history()
        if live is not None and live.history.tli > self._history.tli:
            self._history = live.history

    def plan(
        self, backups: Sequence[Backup], target: Target, wanted: Backup | None = None
    ) -> RestorePlan:
        """`wanted` is the backup to begin with. None: the newest that can reach the target."""
        if wanted is not None:
            check_of_log(wanted, self._history)
        backups = [backup for backup in backups if is_of_log(backup, self._history)]
        sound = [b for b in backups if not b.checksum_failures or b == wanted]
        end = self._end(sound)
        found = self._find(sound, target)
        if wanted is None:
            backup = choose_backup(backups, target, end, found)
        else:
            backup = wanted
            if not is_before(backup, target, found):
                raise BackupError(
                    f"backup {backup.backup_id} is not before {target}: it is consistent only from "
                    f"{format_lsn(backup.stop_lsn)} on"
                )
            check_exists(target, end, found)
        self._check_whole(backup, target, end, found)
        if isinstance(target, Latest):
            self._check_nothing_beyond(backup, end)
        return RestorePlan(backup, target, end)

    def log_of(self, backup: Backup) -> ReplayableLog:
        """The log that can be replayed on a backup without a gap."""
        seg_size = self._archive.facts.wal_seg_size
        begin_lsn = backup.start_lsn - backup.start_lsn % seg_size
        end_lsn = self._archive.archived_lsn(self._history, begin_lsn)
        sources: list[WalSource] = [ArchivedWalSource(lambda: self._archive)]
        live = self._live
        if live is not None and live.begin_lsn <= end_lsn:
            end_lsn = max(end_lsn, live.commit_lsn)
        if live is not None:
            sources.append(live.source)
        return ReplayableLog(self._archive.facts.server, sources, self._history, begin_lsn, end_lsn)

    def _end(self, backups: Sequence[Backup]) -> LogEnd:
        """The end of the log of the newest backup that can be restored. On an idle server the last
        commit may be older than the newest backup."""
        end: LogEnd | None = None
        for backup in reversed(backups):
            log = self.log_of(backup)
            if log.end_lsn < backup.stop_lsn or (end is not None and log.end_lsn < end.lsn):
                continue
            end = log.end()
            if end.last_commit is not None:
                return end
        if end is None and backups:
            oldest = backups[0]
            raise BackupError(
                f"the log does not reach {format_lsn(oldest.stop_lsn)}, the stop LSN of backup "
                f"{oldest.backup_id}",
                hint="sk archive status shows how far the archive is. Name the safekeepers, "
                "which may have more WAL.",
            )
        return end or LogEnd(0, None, 0)

    def _check_nothing_beyond(self, backup: Backup, end: LogEnd) -> None:
        """`latest` must be the end of all WAL, not the end of the WAL before a gap."""
        archived = [
            wal.end_lsn
            for tli in {*(entry.tli for entry in self._history.entries), self._history.tli}
            for wal in self._archive.wal(tli, end.lsn // self._archive.facts.wal_seg_size - 1)
            if self._history.tli_at(wal.end_lsn - 1) == tli
        ]
        live_lsn = 0 if self._live is None else self._live.commit_lsn
        beyond_lsn = max([live_lsn, *archived])
        # Read the end again: a running cluster goes on archiving.
        if self.log_of(backup).end_lsn < beyond_lsn:
            raise BackupError(
                f"there is WAL up to {format_lsn(beyond_lsn)}, but WAL after {format_lsn(end.lsn)} "
                "is missing",
                hint="sk archive verify shows the gap. To restore all WAL before it: --target-lsn "
                f"{format_lsn(end.last_record_lsn)}.",
            )

    def _find(self, backups: Sequence[Backup], target: Target) -> TransactionEnd | None:
        if not isinstance(target, AtXid):
            return None
        searched_from_lsn = LSN_MAX
        for backup in reversed(backups):
            log = self.log_of(backup)
            log = replace(log, end_lsn=min(log.end_lsn, searched_from_lsn))
            found = log.find_xid(target.xid, backup.stop_lsn)
            if found is not None:
                return found
            searched_from_lsn = backup.stop_lsn
        return None

    def _check_whole(
        self, backup: Backup, target: Target, end: LogEnd, found: TransactionEnd | None
    ) -> None:
        log = self.log_of(backup)
        needed_lsn = found.end_lsn if found is not None else end.lsn
        if isinstance(target, AtLsn) and log.end_lsn < needed_lsn:
            check_exists(target, log.end())
            needed_lsn = target.lsn
        if log.end_lsn < needed_lsn:
            raise BackupError(
                f"after backup {backup.backup_id} the log is complete only up to "
                f"{format_lsn(log.end_lsn)}, but {format_lsn(needed_lsn)} is needed",
                hint="sk archive verify shows what is missing.",
            )
