"""Which backups may go. Pure.

A restore to a moment begins with the newest backup before it. So the backups of the last days
alone are not enough: to reach the begin of that time, the newest one before is needed as well. The
WAL follows the oldest backup that is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from backup.backup_record import Backup


def kept_by_number(backups: Sequence[Backup], number: int) -> list[Backup]:
    """The newest `number`; those with damaged pages do not count, and go with their time.

    `backups` are oldest first, as in the result.
    """
    assert number > 0
    sound = [backup for backup in backups if not backup.checksum_failures]
    return _from(backups, sound[-number:])


def kept_by_age(backups: Sequence[Backup], days: float, now: datetime) -> list[Backup]:
    """Those that make every moment of the last `days` reachable; the newest sound one at least."""
    begin = now - timedelta(days=days)
    sound = [backup for backup in backups if not backup.checksum_failures]
    before = [backup for backup in sound if backup.stopped_at <= begin]
    return _from(backups, before[-1:] or sound)


def _from(backups: Sequence[Backup], kept: Sequence[Backup]) -> list[Backup]:
    """All from the oldest of those to be kept on."""
    if not kept:
        return list(backups)
    return [backup for backup in backups if backup.started_at >= kept[0].started_at]
