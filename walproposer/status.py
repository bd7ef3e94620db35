"""The proposer's status: the JSON of its status page.

The thread of the status page reads it while the event loop goes on. So what belongs together is
read together, and what the event loop may remove is not expected to be there.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from quorum_wal.consensus.ids import NodeId
from quorum_wal.consensus.membership import Membership
from quorum_wal.consensus.membership_page import member_page
from quorum_wal.consensus.quorum import quorum_size
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.walproposer.safekeeper_client import SafekeeperAddress
from quorum_wal.walproposer.stream.commit_path import commit_path
from quorum_wal.walproposer.stream.events import ChangeView
from quorum_wal.walproposer.stream.incarnation import Incarnation
from quorum_wal.walproposer.stream.leader import Leader
from quorum_wal.walproposer.stream.progress import PeerState, Progress
from quorum_wal.walproposer.stream.proposer import Proposer, State
from quorum_wal.walproposer.stream.quorum_watch import SILENT_SECONDS_MAX

#: What a proposer does before it has an incarnation, and between two of them.
STARTING = "starting"
WAITING_FOR_LOCK = "waiting_for_lock"
WAITING_FOR_PRIMARY = "waiting_for_primary"
WAITING_FOR_PROMOTION = "waiting_for_promotion"
#: A proposer that waits for its turn is healthy: a supervisor must not restart it.
HEALTHY_WAITS = (WAITING_FOR_LOCK, WAITING_FOR_PROMOTION)

STATE_NAMES = {
    State.COLLECTING: "connecting",
    State.CAMPAIGNING: "campaigning",
    State.CHECKING: "recovering",
    State.LEADING: "streaming",
    State.STOPPED: "stopped",
}
#: Every value of `state` on the status page.
STATES = (STARTING, WAITING_FOR_PRIMARY, *HEALTHY_WAITS, *STATE_NAMES.values())


def incarnation_status(incarnation: Incarnation) -> dict[str, Any]:
    """The status of one incarnation; LSNs are in Postgres' format."""
    core, upstream, watch = incarnation.core, incarnation.upstream, incarnation.quorum_watch
    leader = core.leader
    received_lsn = leader.window.end_lsn if leader is not None else 0
    return {
        "state": STATE_NAMES[core.state],
        "node_id": _node_id(core.node_id),
        "tenant_id": core.candidacy.timeline.tenant_id.hex(),
        "timeline_id": core.candidacy.timeline.timeline_id.hex(),
        "primary": {
            "dsn": str(incarnation.config.primary),
            "slot": incarnation.config.primary.slot,
            "application_name": incarnation.config.primary.application_name,
            "system_id": str(core.candidacy.server.system_id),
            "pg_version": core.candidacy.server.pg_version,
            "tli": upstream.primary.tli_history.tli if upstream is not None else None,
            "flush_lsn": format_lsn(upstream.primary_end_lsn if upstream is not None else 0),
            "connected": upstream is not None and upstream.copy is not None,
            "silent_seconds": _rounded(incarnation.primary_silent_seconds),
        },
        "stalled_seconds": round(incarnation.stalled_seconds, 1),
        "steady_path": commit_path(incarnation),
        "term_start_lsn": format_lsn(leader.term.term_start_lsn if leader is not None else 0),
        "received_lsn": format_lsn(received_lsn),
        "commit_lsn": format_lsn(core.commit_lsn),
        "unconfirmed_bytes": max(0, received_lsn - core.commit_lsn) if core.commit_lsn else 0,
        "unconfirmed_seconds": round(watch.unconfirmed_seconds, 1),
        "commit_bytes_per_second": round(watch.commit_bytes_per_second),
        "window_bytes": leader.window.size_bytes if leader is not None else 0,
        "quorum": {**_quorum(core), "ok": watch.ok, "since": watch.since.isoformat()},
        "safekeepers": [peer_status(incarnation, each) for each in open_peers(incarnation)],
        "membership": members_status(incarnation),
    }


class OpenPeer(NamedTuple):
    """A place and its address, read together: the event loop may forget the address meanwhile."""

    progress: Progress
    address: SafekeeperAddress


def open_peers(incarnation: Incarnation) -> list[OpenPeer]:
    """Without the places of forgotten addresses. Any thread may call it."""
    addresses = incarnation.peers.addresses
    found = [(progress, addresses.get(progress.peer)) for progress in incarnation.core.peers]
    return [OpenPeer(progress, address) for progress, address in found if address is not None]


def _quorum(core: Proposer) -> dict[str, int]:
    """How many are needed, of how many. In a joint membership, for the set that has fewer to
    spare."""
    membership = core.membership
    if membership is None:
        return {"needed": 0, "members": 0, "connected": 0}
    able = {p.safekeeper_id for p in core.peers if p.can_confirm}
    spare = {group: len(able & {*group}) - quorum_size(len(group)) for group in membership.groups}
    group = min(membership.groups, key=lambda each: spare[each])
    return {
        "needed": quorum_size(len(group)),
        "members": len(group),
        "connected": len(able & {*group}),
    }


def members_status(incarnation: Incarnation) -> dict[str, Any] | None:
    """The members, and the change in progress or the last one; None while no member has
    answered."""
    core = incarnation.core
    membership, change = core.membership, core.change
    if membership is None:
        return None
    found = [each.progress for each in open_peers(incarnation)]
    peers = {p.safekeeper_id: p for p in found if p.safekeeper_id is not None}
    ids = [*membership.all_members, *sorted({*peers} - {*membership.all_members})]
    return {
        "timeline": str(core.candidacy.timeline),
        "author": str(membership.stamp.author),
        "generation": membership.generation,
        "is_joint": membership.is_joint,
        "in_force": core.is_in_force,
        "members": [_member_status(core, membership, i, peers.get(i)) for i in ids],
        "change": change_status(change) if change is not None else None,
    }


def _member_status(
    core: Proposer, membership: Membership, number: int, progress: Progress | None
) -> dict[str, Any]:
    """`sets`: the sets that have the member; none for a learner and for one that leaves."""
    sets = {"members": membership.members, "new_members": membership.new_members}
    return {
        **member_page(membership.member(number)),
        "sets": [name for name, ids in sets.items() if number in ids],
        "state": _state(progress) if progress is not None else PeerState.OFFLINE.value,
        "via": _source_id(core.leader, progress),
        "flush_lsn": format_lsn(progress.flush_lsn if progress is not None else 0),
    }


def _source_id(leader: Leader | None, progress: Progress | None) -> int | None:
    """The safekeeper that it takes the WAL from, if that is not the proposer."""
    if leader is None or progress is None:
        return None
    source = leader.chains.source_of(progress)
    return leader.peers[source].safekeeper_id if source is not None else None


def change_status(change: ChangeView) -> dict[str, Any]:
    return {
        "state": change.state.value,
        "wanted": list(change.wanted),
        "waits_for": change.waits_for or None,
        "error": change.error or None,
    }


def _state(progress: Progress) -> str:
    return "lost its data" if progress.has_lost_data else progress.state.value


def peer_status(incarnation: Incarnation, peer: OpenPeer) -> dict[str, Any]:
    """The state of one safekeeper."""
    leader, progress = incarnation.core.leader, peer.progress
    received_lsn = leader.window.record_end_lsn if leader is not None else 0
    lag_bytes = max(0, received_lsn - progress.flush_lsn)
    behind_ms = incarnation.now_ms - progress.caught_up_ms
    return {
        "id": progress.safekeeper_id,
        "address": str(peer.address),
        "state": _state(progress),
        "via": _source_id(leader, progress),
        "connected": progress.can_confirm,
        "flush_lsn": format_lsn(progress.flush_lsn),
        "commit_lsn": format_lsn(progress.commit_lsn),
        "lag_bytes": lag_bytes,
        "lag_seconds": round(behind_ms / 1000, 1) if lag_bytes and progress.caught_up_ms else 0.0,
        "error": incarnation.peers.errors.get(progress.peer) or progress.error or None,
        "silent_seconds": round((incarnation.now_ms - progress.last_heard_ms) / 1000, 1)
        if progress.last_heard_ms
        else None,
    }


def hung_reason(incarnation: Incarnation) -> str:
    """What prevents commits now, or "". It checks progress, not open connections."""
    stalled_seconds = incarnation.stalled_seconds
    if stalled_seconds > SILENT_SECONDS_MAX:
        return f"the event loop has been stalled for {stalled_seconds:.0f} s, commits wait"
    silent_seconds = incarnation.primary_silent_seconds or 0.0
    if silent_seconds > SILENT_SECONDS_MAX:
        return f"the primary has been silent for {silent_seconds:.0f} s"
    unconfirmed_seconds = incarnation.quorum_watch.unconfirmed_seconds
    if unconfirmed_seconds > SILENT_SECONDS_MAX:
        return f"commit_lsn has not advanced for {unconfirmed_seconds:.0f} s, commits wait"
    return ""


def _rounded(seconds: float | None) -> float | None:
    return round(seconds, 1) if seconds is not None else None


def _node_id(node_id: NodeId | None) -> dict[str, Any] | None:
    if node_id is None:
        return None
    return {"term": node_id.term, "uuid": node_id.proposer_uuid.hex()}
