"""The backup that reaches a target, and targets that do not exist."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from quorum_wal.backup.backup_record import Backup, format_backup_id
from quorum_wal.backup.errors import BackupError
from quorum_wal.backup.retention import kept_by_age, kept_by_number
from quorum_wal.backup.target import (
    AtLsn,
    AtTime,
    AtXid,
    Latest,
    LogEnd,
    Target,
    TransactionEnd,
    choose_backup,
    recovery_target,
)

DAY_0 = datetime(2026, 11, 1, tzinfo=UTC)
END = LogEnd(10_000, TransactionEnd(999, DAY_0 + timedelta(days=9), 10_000), 9_960)


def backup(day: int) -> Backup:
    """Taken on this day within an hour, from LSN 1000 * day on, over 100 bytes."""
    started_at, start_lsn = DAY_0 + timedelta(days=day), 1000 * day
    return Backup(
        backup_id=format_backup_id(started_at, start_lsn),
        label="",
        system_id=1,
        pg_version=150000,
        start_lsn=start_lsn,
        start_tli=1,
        stop_lsn=start_lsn + 100,
        stop_tli=1,
        started_at=started_at,
        stopped_at=started_at + timedelta(hours=1),
        from_standby=False,
        archives=(),
    )


BACKUPS = [backup(1), backup(4), backup(7)]


@pytest.mark.parametrize(
    ("target", "day"),
    [
        (Latest(), 7),
        (AtLsn(9_960), 7),
        (AtLsn(7_100), 7),
        (AtLsn(7_099), 4),  # in the middle of the third backup: not consistent yet
        (AtLsn(1_100), 1),
        (AtTime(DAY_0 + timedelta(days=8)), 7),
        (AtTime(DAY_0 + timedelta(days=7, minutes=30)), 4),
        (AtTime(DAY_0 + timedelta(days=7, hours=1)), 7),
        (AtTime(DAY_0 + timedelta(days=1, hours=1)), 1),
    ],
    ids=str,
)
def test_the_newest_backup_before_the_target(target: Target, day: int) -> None:
    assert choose_backup(BACKUPS, target, END) == backup(day)


def test_a_transaction_needs_a_backup_before_its_end() -> None:
    found = TransactionEnd(700, DAY_0, 7_100)
    assert choose_backup(BACKUPS, AtXid(700), END, found) == backup(4)
    found = replace(found, end_lsn=7_101)
    assert choose_backup(BACKUPS, AtXid(700), END, found) == backup(7)


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        (AtLsn(9_961), "target 0/26E9 is not before the end of the log: 0/2710, last commit"),
        (AtLsn(1_099), "no backup leads to 0/44B: the oldest ends at 0/44C"),
        (AtTime(DAY_0), "no backup leads to 2026-11-01 00:00:00+00:00: the oldest ends at"),
        (AtTime(DAY_0 + timedelta(days=9)), "is not before the end of the log"),
        (AtXid(5), "the log has no end of transaction 5"),
    ],
    ids=str,
)
def test_what_does_not_exist_is_refused(target: Target, sentence: str) -> None:
    with pytest.raises(BackupError, match="2026-11-10") as refused:
        choose_backup(BACKUPS, target, END)
    assert sentence in str(refused.value)
    assert refused.value.hint


def test_a_log_without_commits_has_no_time() -> None:
    with pytest.raises(BackupError, match="last commit before the oldest backup"):
        choose_backup(BACKUPS, AtTime(DAY_0 + timedelta(days=8)), LogEnd(10_000, None, 9_960))


def test_a_time_before_all_backups_is_not_reported_as_after_the_log() -> None:
    """Also if the last commit of the log is unknown, as in the archive of a running server."""
    with pytest.raises(BackupError, match="no backup leads to"):
        choose_backup(BACKUPS, AtTime(DAY_0), LogEnd(10_000, None, 9_960))


def test_unusable_backups_are_skipped() -> None:
    damaged = replace(backup(7), checksum_failures=("page 3",))
    assert choose_backup([*BACKUPS[:2], damaged], Latest(), END) == backup(4)
    assert choose_backup(BACKUPS, Latest(), LogEnd(7_099, None, 7_000)) == backup(4)
    with pytest.raises(BackupError, match="there is no backup; 1 have damaged pages"):
        choose_backup([damaged], Latest(), END)


def test_targets_as_settings_of_postgres() -> None:
    assert recovery_target(Latest()) == {}
    assert recovery_target(AtLsn(0x1_0000_0028)) == {
        "recovery_target_lsn": "1/28",
        "recovery_target_inclusive": "off",
    }
    assert recovery_target(AtTime(DAY_0)) == {
        "recovery_target_time": "2026-11-01 00:00:00+00:00",
        "recovery_target_inclusive": "on",
    }
    assert recovery_target(AtXid(5))["recovery_target_xid"] == "5"


# ---- retention


@pytest.mark.parametrize(
    ("number", "days"), [(1, [7]), (2, [4, 7]), (3, [1, 4, 7]), (9, [1, 4, 7])]
)
def test_the_newest_are_kept(number: int, days: list[int]) -> None:
    assert kept_by_number(BACKUPS, number) == [backup(day) for day in days]


def test_damaged_backups_are_not_counted() -> None:
    damaged = replace(backup(7), checksum_failures=("page 3",))
    assert kept_by_number([*BACKUPS[:2], damaged], 1) == [backup(4), damaged]
    assert kept_by_number([damaged], 1) == [damaged]


@pytest.mark.parametrize(
    ("days", "kept"),
    [
        (0.5, [7]),  # the last half day needs the backup before it
        (4, [4, 7]),  # from day 6 on, which needs the backup of day 4
        (5.95, [4, 7]),
        (6, [1, 4, 7]),  # the backup of day 4 was not finished yet
        (30, [1, 4, 7]),
    ],
)
def test_every_moment_of_the_last_days_stays_reachable(days: float, kept: list[int]) -> None:
    now = DAY_0 + timedelta(days=10)
    assert kept_by_age(BACKUPS, days, now) == [backup(day) for day in kept]
