"""Finds the backups that can be removed. Pure.

A restore to a point in time begins with the newest backup before it. So the backups of the last
days are not enough: the beginning of that time needs the newest backup before it. WAL is kept from
the oldest kept backup on.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from quorum_wal.backup.backup_record import Backup


def kept_by_number(backups: Sequence[Backup], number: int) -> list[Backup]:
    """The newest `number` sound backups, and all newer than the oldest of them. A backup with
    damaged pages is not counted.

    `backups` are oldest first, as in the result.
    """
    assert number > 0
    sound = [backup for backup in backups if not backup.checksum_failures]
    return _from(backups, sound[-number:])


def kept_by_age(backups: Sequence[Backup], days: float, now: datetime) -> list[Backup]:
    """The backups that make every moment of the last `days` reachable; at least the newest sound
    one."""
    begin = now - timedelta(days=days)
    sound = [backup for backup in backups if not backup.checksum_failures]
    before = [backup for backup in sound if backup.stopped_at <= begin]
    return _from(backups, before[-1:] or sound)


def _from(backups: Sequence[Backup], kept: Sequence[Backup]) -> list[Backup]:
    """All backups from the oldest of `kept` on."""
    if not kept:
        return list(backups)
    return [backup for backup in backups if backup.started_at >= kept[0].started_at]
