"""Recovery targets: whether a target exists, and which backup can reach it. Pure.

    backup      start_lsn ... stop_lsn       consistent from the stop LSN on
    log         begin_lsn ................................ end_lsn, and the time of its last commit
    target                          here ^

Laws. A target that cannot be reached is refused before anything is written, because Postgres would
end its recovery with an error hours later. A target LSN includes all records that begin below it.
The record that begins at the target is not replayed, so the value of `pg_current_wal_lsn()` names
the moment at which it was read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from quorum_wal.backup.backup_record import Backup
from quorum_wal.backup.errors import BackupError
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.pgwal.lsn import format_lsn

SHOW = "sk backup list shows all backups."


@dataclass(frozen=True, slots=True)
class Latest:
    """The end of the log."""

    def __str__(self) -> str:
        return "latest"


@dataclass(frozen=True, slots=True)
class AtLsn:
    """All WAL below a position."""

    lsn: int

    def __str__(self) -> str:
        return format_lsn(self.lsn)


@dataclass(frozen=True, slots=True)
class AtTime:
    """All commits up to this time, including that time."""

    time: datetime

    def __str__(self) -> str:
        return format_time(self.time)


@dataclass(frozen=True, slots=True)
class AtXid:
    """All commits up to the end of this transaction, including it."""

    xid: int

    def __str__(self) -> str:
        return f"transaction {self.xid}"


Target = Latest | AtLsn | AtTime | AtXid


@dataclass(frozen=True, slots=True)
class TransactionEnd:
    """A COMMIT or ABORT in the log."""

    xid: int
    time: datetime
    end_lsn: int
    is_commit: bool = True


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The end of the last whole record that can be replayed, and the start of that record.
    `last_commit` is None if the log has no commit."""

    lsn: int
    last_commit: TransactionEnd | None
    last_record_lsn: int

    def __str__(self) -> str:
        commit = self.last_commit
        when = format_time(commit.time) if commit else "before the oldest backup"
        return f"{format_lsn(self.lsn)}, last commit {when}"


def choose_backup(
    backups: Sequence[Backup], target: Target, end: LogEnd, found: TransactionEnd | None = None
) -> Backup:
    """The newest backup that can reach the target. `backups` are oldest first; `found` is the
    transaction of AtXid. Raises BackupError, which says what exists."""
    sound = [backup for backup in backups if not backup.checksum_failures]
    if not sound:
        damaged = f"; {len(backups)} have damaged pages" if backups else ""
        raise BackupError(f"there is no backup{damaged}", hint="Take one: sk backup create.")
    before = [backup for backup in sound if is_before(backup, target, found)]
    if before:  # otherwise the error below names the backups, not the end of the log
        check_exists(target, end, found)
    usable = [backup for backup in before if backup.stop_lsn <= end.lsn]
    if not usable:
        oldest = sound[0]
        raise BackupError(
            f"no backup leads to {target}: the oldest ends at {format_lsn(oldest.stop_lsn)}, "
            f"{format_time(oldest.stopped_at)}; the log ends at {end}",
            hint=SHOW,
        )
    return usable[-1]


def is_before(backup: Backup, target: Target, found: TransactionEnd | None = None) -> bool:
    """Whether the backup is consistent before the target, if the target exists."""
    match target:
        case AtLsn(lsn):
            return backup.stop_lsn <= lsn
        case AtTime(time):
            return backup.stopped_at <= time
        case AtXid():
            return found is None or backup.stop_lsn < found.end_lsn
        case Latest():
            return True


def check_exists(target: Target, end: LogEnd, found: TransactionEnd | None = None) -> None:
    """Raises BackupError when the log does not reach the target."""
    match target:
        case AtLsn(lsn) if lsn > end.last_record_lsn:  # recovery stops at a record there
            raise _beyond(target, end)
        case AtTime(time) if end.last_commit is None or time >= end.last_commit.time:
            raise _beyond(target, end)
        case AtXid() if found is None:
            raise BackupError(
                f"the log has no end of {target} after the oldest backup; it ends at {end}",
                hint="A transaction that only reads has no number.",
            )


def is_of_log(backup: Backup, history: TimelineHistory) -> bool:
    """False if the server was deposed before a quorum had all WAL of the backup. The pages of the
    backup then contain changes that are not in the log, wherever the log ends."""
    # A standby may stop exactly where timelines switch, and name either timeline.
    return backup.stop_tli in (
        history.tli_at(backup.stop_lsn - 1),
        history.tli_at(backup.stop_lsn),
    )


def check_of_log(backup: Backup, history: TimelineHistory) -> None:
    """Raises BackupError."""
    if not is_of_log(backup, history):
        raise BackupError(
            f"backup {backup.backup_id} cannot be used: it ends at {format_lsn(backup.stop_lsn)} "
            f"of timeline {backup.stop_tli}, which is not in the log of timeline {history.tli}",
            hint="A failover left that server behind. Delete the backup and take another one.",
        )


def recovery_target(target: Target) -> dict[str, str]:
    """The recovery settings of Postgres for this target."""
    match target:
        case Latest():
            return {}
        case AtLsn(lsn):
            return {"recovery_target_lsn": format_lsn(lsn), "recovery_target_inclusive": "off"}
        case AtTime(time):
            return {"recovery_target_time": format_time(time), "recovery_target_inclusive": "on"}
        case AtXid(xid):
            return {"recovery_target_xid": str(xid), "recovery_target_inclusive": "on"}


def format_time(time: datetime) -> str:
    """The format in which Postgres reads and prints a time."""
    return time.isoformat(" ")


def _beyond(target: Target, end: LogEnd) -> BackupError:
    return BackupError(
        f"the target {target} is not before the end of the log: {end}",
        hint="To restore the whole log: --target latest.",
    )
