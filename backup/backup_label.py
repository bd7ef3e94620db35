"""`backup_label`: the file that tells a server where the recovery of a backup begins. Pure.

    START WAL LOCATION: 0/5000028 (file 000000010000000000000005)
    CHECKPOINT LOCATION: 0/5000060
    BACKUP METHOD: streamed
    BACKUP FROM: standby
    START TIME: 2026-11-21 10:15:00 UTC
    LABEL: nightly
    START TIMELINE: 1

Of a standby: its control file says where it is consistent (minRecoveryPoint). Source: Postgres
`build_backup_content` in `access/transam/xlogbackup.c`, `read_backup_label` in `xlogrecovery.c`.
"""

from __future__ import annotations

from datetime import UTC, datetime

from pgwal.lsn import format_lsn
from pgwal.segment import format_segment_name


def standby_label(
    redo_lsn: int,
    checkpoint_lsn: int,
    tli: int,
    started_at: datetime,
    label: str,
    wal_seg_size: int,
) -> bytes:
    """`redo_lsn` and `checkpoint_lsn` are of the checkpoint that the recovery begins at. A label of
    several lines would be read as more than a label."""
    name = format_segment_name(tli, redo_lsn // wal_seg_size, wal_seg_size)
    lines = (
        f"START WAL LOCATION: {format_lsn(redo_lsn)} (file {name})",
        f"CHECKPOINT LOCATION: {format_lsn(checkpoint_lsn)}",
        "BACKUP METHOD: streamed",
        "BACKUP FROM: standby",
        f"START TIME: {started_at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC",
        f"LABEL: {' '.join(label.split())}",
        f"START TIMELINE: {tli}",
    )
    return "".join(f"{line}\n" for line in lines).encode()
