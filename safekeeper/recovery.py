"""Where a timeline's log ends, found by decoding: rule 7 of the safekeeper.

    control file: commit_lsn, flush_lsn        WAL: whole records up to ...
                  `-- decoding begins here, in that segment --'

Law: an end below the flushed position is damage, not a torn tail. It is recorded durably before a
vote can be requested, and nothing behind it is zeroed.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import structlog

from quorum_wal.pgwal.end_of_wal import EndOfWal
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.safekeeper.control_file import ControlFile
from quorum_wal.safekeeper.errors import SafekeeperError

if TYPE_CHECKING:
    from quorum_wal.safekeeper.timeline import Timeline

log = structlog.get_logger()


class DamagedLog(SafekeeperError):
    """No part of the log is valid (data_corrupted)."""

    sqlstate = "XX001"


def recovered_end(timeline: Timeline, control_file: ControlFile, valid_lsn: int | None) -> int:
    """Returns the end of the last whole record. The bytes beyond are zeroed, those read are synced.

    Decoding begins in the segment of the last known commit_lsn: so the newest part is verified,
    although everything up to there should be valid. From `valid_lsn` on the log is known to be
    damaged; of an unproven log nothing is trusted. Raises StorageError, DamagedLog.
    """
    control = timeline.control
    seg_size = control.server.wal_seg_size
    known_lsn = max(control.commit_lsn, control.local_start_lsn)
    valid_lsn = control.local_start_lsn if control.is_unproven else valid_lsn
    start_lsn = known_lsn - known_lsn % seg_size
    begun = time.monotonic()
    timeline.holes.find(timeline.store, control.local_start_lsn, start_lsn)
    end = timeline.store.recover(start_lsn, control.horizon_lsn, control.local_start_lsn, valid_lsn)
    _remember_loss(control_file, end)
    control = timeline.control
    had_wal = control.horizon_lsn > control.local_start_lsn != control.timeline_start_lsn
    if had_wal and end.end_lsn <= control.local_start_lsn:
        raise DamagedLog(f"there is no valid WAL: {end.reason}")
    log.info(
        "timeline loaded",
        timeline=str(control.timeline),
        flush_lsn=format_lsn(end.end_lsn),
        end_of_wal=end.reason,
        seconds=round(time.monotonic() - begun, 3),
    )
    return int(end.end_lsn)


def _remember_loss(control_file: ControlFile, end: EndOfWal) -> None:
    """Records durably that the log ends below the flushed position. Raises StorageError."""
    control = control_file.state
    found = control.found_to_end(int(end.end_lsn))
    if found != control:
        control_file.persist(found)
        log.error(
            "WAL is damaged",
            timeline=str(control.timeline),
            flushed_lsn=format_lsn(control.horizon_lsn),
            end_lsn=format_lsn(end.end_lsn),
            reason=end.reason,
        )
