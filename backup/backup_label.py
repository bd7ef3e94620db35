"""`backup_label`: the file that says where the recovery of a backup begins. Pure.

    START WAL LOCATION: 0/5000028 (file 000000010000000000000005)
    CHECKPOINT LOCATION: 0/5000060
    BACKUP METHOD: streamed
    BACKUP FROM: standby
    START TIME: 2026-11-21 10:15:00 UTC
    LABEL: nightly
    START TIMELINE: 1

In a backup of a standby, the control file says where the server is consistent (minRecoveryPoint).
Source: Postgres `build_backup_content` in `access/transam/xlogbackup.c`, `read_backup_label` in
`xlogrecovery.c`.
"""

from __future__ import annotations

from datetime import UTC, datetime

from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.pgwal.segment import format_segment_name


def standby_label(
    redo_lsn: int,
    checkpoint_lsn: int,
    tli: int,
    started_at: datetime,
    label: str,
    wal_seg_size: int,
) -> bytes:
    """`redo_lsn` and `checkpoint_lsn` belong to the checkpoint at which recovery begins. Newlines
    in `label` become spaces, because the server would read further lines as fields of their own."""
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
