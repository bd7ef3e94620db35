"""Removes WAL that is not needed, and reports why the rest is kept. Off the append path.

It also runs while a full disk stops a timeline: the removal may free enough space. Law: WAL is
removed only after the files on disk show that it is not needed. First the slots are saved, then the
lost ones, then the start of the WAL (in the control file); only then segments are removed.
"""

from __future__ import annotations

from dataclasses import replace

import structlog

from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.safekeeper.errors import SafekeeperError
from quorum_wal.safekeeper.join_rules import check_not_left
from quorum_wal.safekeeper.retention import Horizon, LogExtent, wal_horizon
from quorum_wal.safekeeper.timeline import Timeline
from quorum_wal.safekeeper.trim_rule import OBJECT_IN_USE

log = structlog.get_logger()


def log_extent(timeline: Timeline) -> LogExtent:
    positions, control = timeline.positions, timeline.control
    return LogExtent(
        local_start_lsn=control.local_start_lsn,
        commit_lsn=min(positions.commit_lsn, positions.flush_lsn),
        truncate_lsn=positions.truncate_lsn,
        wal_seg_size=control.server.wal_seg_size,
        archived_lsn=timeline.archive.archived_lsn if timeline.archive is not None else None,
    )


def horizon_of(timeline: Timeline) -> Horizon:
    """The WAL that is kept, and the reason."""
    oldest, trim = timeline.slots.oldest(), timeline.slots.trim
    return wal_horizon(
        timeline.retention,
        log_extent(timeline),
        (oldest.name, oldest.restart_lsn) if oldest is not None else None,
        damaged=timeline.slots.damaged is not None,
        pageserver_lsn=trim.horizon_lsn if trim is not None else None,
    )


def remove_old_wal(timeline: Timeline) -> None:
    """Raises StorageError."""
    if not timeline.is_readable:
        return
    # The horizon is computed before the slots are saved: positions only move up meanwhile.
    horizon = horizon_of(timeline)
    timeline.slots.save()
    if horizon.lsn > timeline.control.local_start_lsn:
        _warn_of_member(timeline, horizon)
        timeline.slots.lose_below(horizon.lsn)
        timeline.advance_local_start(horizon.lsn)
        log.info(
            "WAL removed",
            timeline=str(timeline.control.timeline),
            below=format_lsn(horizon.lsn),
            held_by=horizon.holder,
        )
    timeline.store.remove_below(timeline.control.local_start_lsn)
    if timeline.holes.forget_below(timeline.store, timeline.control.local_start_lsn):
        timeline.holes_changed()


def forget_pageserver(timeline: Timeline) -> None:
    """Releases the WAL that it holds. A pageserver that connects later is registered again,
    whichever it is. Raises SafekeeperError (42704, 55000, 55006, XX001), StorageError."""
    check_not_left(timeline.control)
    if timeline.replicas.has_pageserver():
        raise SafekeeperError(
            "a pageserver streams from this safekeeper",
            hint="Stop it first, or move its tenant: otherwise it is registered again at once.",
            sqlstate=OBJECT_IN_USE,
        )
    timeline.slots.forget_pageserver()


def _warn_of_member(timeline: Timeline, horizon: Horizon) -> None:
    """Logs an error each time a member is left behind."""
    log_here = log_extent(timeline)
    is_left = replace(log_here, local_start_lsn=horizon.lsn).is_member_left_behind
    if is_left and not log_here.is_member_left_behind:
        log.error(
            "member left behind: it held more WAL than --max-member-wal-keep-size",
            timeline=str(timeline.control.timeline),
            needs_from=format_lsn(log_here.truncate_lsn),
            removed_below=format_lsn(horizon.lsn),
        )
