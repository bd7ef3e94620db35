"""Where a recovery shall end, whether that exists, and which backup leads there. Pure.

    backup      start_lsn ... stop_lsn       consistent from the stop LSN on
    log         begin_lsn ................................ end_lsn, and the time of its last commit
    target                          here ^

Laws. A target that is not reached must be refused before anything is written: Postgres would end
its recovery with an error, hours later. A position is reached by what is below it: the record that
begins at the target is not replayed, so `pg_current_wal_lsn()` of a moment names that moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from backup.backup_record import Backup
from backup.errors import BackupError
from pgwal.history import TimelineHistory
from pgwal.lsn import format_lsn

SHOW = "sk backup list shows what there is."


@dataclass(frozen=True, slots=True)
class Latest:
    """Everything there is."""

    def __str__(self) -> str:
        return "latest"


@dataclass(frozen=True, slots=True)
class AtLsn:
    """What was written below a position."""

    lsn: int

    def __str__(self) -> str:
        return format_lsn(self.lsn)


@dataclass(frozen=True, slots=True)
class AtTime:
    """What was committed until then, that very moment included."""

    time: datetime

    def __str__(self) -> str:
        return format_time(self.time)


@dataclass(frozen=True, slots=True)
class AtXid:
    """What was committed until this transaction, itself included."""

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
    """How far WAL can be replayed: the end of its last whole record, and where that begins;
    `last_commit` None: none was found there."""

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
    """The newest backup from which the target can be reached; `backups` are oldest first, `found`
    is the transaction of AtXid. Raises BackupError and says what exists."""
    sound = [backup for backup in backups if not backup.checksum_failures]
    if not sound:
        damaged = f"; {len(backups)} have damaged pages" if backups else ""
        raise BackupError(f"there is no backup{damaged}", hint="Take one: sk backup create.")
    before = [backup for backup in sound if is_before(backup, target, found)]
    if before:  # else the log's end, which may not be known to the last commit, is not to blame
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
    """Whether it is consistent before the target is reached, if that exists."""
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
        case AtLsn(lsn) if lsn > end.last_record_lsn:  # recovery stops when one begins behind it
            raise _beyond(target, end)
        case AtTime(time) if end.last_commit is None or time >= end.last_commit.time:
            raise _beyond(target, end)
        case AtXid() if found is None:
            raise BackupError(
                f"the log has no end of {target} behind the oldest backup; it ends at {end}",
                hint="A transaction that only read has no number.",
            )


def is_of_log(backup: Backup, history: TimelineHistory) -> bool:
    """False when its server was deposed before the quorum had all that is in the backup: its pages
    tell of WAL that is not part of the log, whatever the log's end is."""
    # A standby may stop just where timelines switch, and name either.
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
            hint="A failover has left that server behind. Delete the backup, take another one.",
        )


def recovery_target(target: Target) -> dict[str, str]:
    """As Postgres is told."""
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
    """As Postgres reads and prints it."""
    return time.isoformat(" ")


def _beyond(target: Target, end: LogEnd) -> BackupError:
    return BackupError(
        f"the target {target} is not before the end of what exists: {end}",
        hint="For all of it: --target latest.",
    )
