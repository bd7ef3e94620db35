"""The status of a safekeeper as JSON: for its status page and LIST_TIMELINES."""

from __future__ import annotations

from typing import Any

from quorum_wal.consensus.ids import NodeId
from quorum_wal.consensus.membership_page import membership_page
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.safekeeper.retention import (
    WalStatus,
    member_safe_wal_bytes,
    safe_wal_bytes,
    wal_status,
)
from quorum_wal.safekeeper.slots import Slot
from quorum_wal.safekeeper.timeline import Timeline
from quorum_wal.safekeeper.timeline_state import TimelineState
from quorum_wal.safekeeper.wal_removal import horizon_of, log_extent


def node_id_status(node_id: NodeId) -> dict[str, Any]:
    return {"term": node_id.term, "uuid": node_id.proposer_uuid.hex()}


def damage_of(timeline: Timeline) -> list[str]:
    """The damage of the WAL here; with any, this member grants no vote."""
    store, lost_lsn = timeline.store, timeline.control.lost_lsn
    holes = [
        f"segment {timeline.holes.name(store, segno)} at {format_lsn(segno * store.wal_seg_size)} "
        f"is damaged: {reason}"
        for segno, reason in sorted(timeline.holes.all().items())
    ]
    if not lost_lsn:
        return holes
    return [
        *holes,
        f"WAL was flushed up to {format_lsn(lost_lsn)} and then lost, it is valid up to "
        f"{format_lsn(timeline.positions.flush_lsn)}: a proposer that is elected without this "
        "member's vote sends it again",
    ]


def timeline_status(timeline: Timeline) -> dict[str, Any]:
    """One timeline; LSNs as Postgres prints them, sizes in bytes."""
    control, positions, streaming = timeline.control, timeline.positions, timeline.streaming
    history = control.term_history
    return {
        "tenant_id": control.timeline.tenant_id.hex(),
        "timeline_id": control.timeline.timeline_id.hex(),
        "state": timeline.state.value,
        "active": control.active,
        "stopped_reason": timeline.stopped_reason or None,
        "damage": damage_of(timeline),
        "holes": [
            format_lsn(segno * control.server.wal_seg_size)
            for segno in sorted(timeline.holes.all())
        ],
        "system_id": str(control.server.system_id),
        "pg_version": control.server.pg_version,
        "wal_seg_size": control.server.wal_seg_size,
        "tli": control.tli_history.tli,
        "tli_history": control.tli_history.format(),
        "has_left": control.has_left,
        "forced": control.is_forced,
        "membership": membership_page(control.membership),
        "promised": node_id_status(control.promised),
        "last_log_node_id": node_id_status(history.last_log_node_id(positions.flush_lsn)),
        "start_lsn": format_lsn(control.timeline_start_lsn),
        "local_start_lsn": format_lsn(control.local_start_lsn),
        "written_lsn": format_lsn(positions.written_lsn),
        "flush_lsn": format_lsn(positions.flush_lsn),
        "commit_lsn": format_lsn(positions.commit_lsn),
        "truncate_lsn": format_lsn(positions.truncate_lsn),
        "wal_bytes": timeline.sleep.wal_bytes,
        "asleep": timeline.sleep.is_asleep,
        "end_checked": timeline.sleep.is_checked,
        "proposer": {"node_id": node_id_status(control.promised), **streaming.describe()}
        if streaming is not None
        else None,
        **timeline.last_proposers.describe(),
        "replicas": [replica.describe() for replica in timeline.replicas.all()],
        "slots": [slot_status(timeline, slot) for slot in timeline.slots.all()],
        "pageserver": pageserver_status(timeline),
        "retention": retention_status(timeline),
        "archive": timeline.archive.describe(positions.commit_lsn)
        if timeline.archive is not None
        else None,
    }


def timeline_numbers(timeline: Timeline) -> dict[str, float]:
    """Bytes, for charts: `flush` is a position, `tail` what is flushed and not known as committed,
    `backlog` what waits for the archive, `reader` by how much the slowest replica is behind."""
    positions = timeline.positions
    numbers: dict[str, float] = {
        "flush": positions.flush_lsn,
        "tail": max(0, positions.flush_lsn - positions.commit_lsn),
    }
    if timeline.archive is not None:
        numbers["backlog"] = timeline.archive.backlog_bytes(positions.commit_lsn)
    replicas = timeline.replicas.all()
    if replicas:
        sent_lsn = min(replica.sent_lsn for replica in replicas)
        numbers["reader"] = max(0, positions.commit_lsn - sent_lsn)
    return numbers


def retention_status(timeline: Timeline) -> dict[str, Any]:
    """The start of the WAL that is kept, the reason, and the state of members that need it."""
    extent = log_extent(timeline)
    return {
        **horizon_of(timeline).describe(),
        "member_left_behind": extent.is_member_left_behind,
        "member_safe_wal_size": member_safe_wal_bytes(timeline.retention, extent),
    }


def pageserver_status(timeline: Timeline) -> dict[str, Any] | None:
    """The newest pageserver that ever connected; `horizon_lsn` None: nothing is durable there."""
    trim = timeline.slots.trim
    if trim is None:
        return None
    return {
        "suffix": trim.suffix_text,
        "horizon_lsn": format_lsn(trim.horizon_lsn) if trim.horizon_lsn else None,
        "held_bytes": pageserver_held_bytes(timeline),
    }


def pageserver_held_bytes(timeline: Timeline) -> int:
    """WAL here that the pageserver has not made durable as pages; 0 if there is none."""
    trim, extent = timeline.slots.trim, log_extent(timeline)
    if trim is None:
        return 0
    return max(0, extent.commit_lsn - max(trim.horizon_lsn, extent.local_start_lsn))


def damaged_status(folder: str, reason: str) -> dict[str, Any]:
    """A timeline whose control file cannot be used: only its folder's name is known."""
    return {"folder": folder, "state": TimelineState.DAMAGED.value, "stopped_reason": reason}


def is_in_danger(timeline: Timeline, slot: Slot) -> bool:
    """True if its WAL was removed, or may be at any time."""
    return _wal_status(timeline, slot) in (WalStatus.UNRESERVED, WalStatus.LOST)


def _wal_status(timeline: Timeline, slot: Slot) -> WalStatus | None:
    extent = log_extent(timeline)
    return wal_status(timeline.retention, extent, slot.restart_lsn, is_lost=slot.is_lost)


def slot_status(timeline: Timeline, slot: Slot) -> dict[str, Any]:
    """A row of pg_replication_slots."""
    status = _wal_status(timeline, slot)
    return {
        "slot_name": slot.name,
        "temporary": slot.is_temporary,
        "active": slot.holder is not None,
        "restart_lsn": format_lsn(slot.restart_lsn) if slot.restart_lsn else None,
        "wal_status": status.value if status is not None else None,
        "safe_wal_size": safe_wal_bytes(timeline.retention, log_extent(timeline), slot.restart_lsn),
    }
