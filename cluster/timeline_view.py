"""What everybody said, put together: each timeline with its members and its proposers. Pure.

The answers come one per safekeeper; people think in timelines. A member of a timeline that did not
answer, or no longer has it, is a row here like the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any

from consensus.ids import NodeId, TimelineId
from consensus.membership import Membership
from pgwal.lsn import Lsn
from walproposer.timelines.discovery import (
    Discovery,
    ProposerReport,
    SafekeeperReport,
    proposer_pages,
)
from walproposer.timelines.timeline_creation import folder_name

Status = Mapping[str, Any]  # a JSON object of a status page

LEFT_BEHIND = "left behind"  # what a proposer calls it (walproposer/stream/progress.py)
NOWHERE = "0/0"  # a position that is not known


class MemberState(Enum):
    """The first four are a safekeeper's own words (safekeeper/timeline.py)."""

    CREATING = "creating"
    ACTIVE = "active"
    STOPPED = "stopped"
    DAMAGED = "damaged"
    LOST_DATA = "lost its data"
    UNREACHABLE = "unreachable"
    NOT_GIVEN = "not given"  # its address is not among those asked


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberView:
    """One member of one timeline. `status` is the timeline's on it, `peer` what the leading
    proposer says of it; None when nobody says anything."""

    safekeeper_id: int
    state: MemberState
    address: str = ""
    reason: str = ""
    #: What to do about one that answers and refuses.
    hint: str = ""
    status: Status | None = None
    peer: Status | None = None
    disk: Mapping[str, int] | None = None

    @property
    def is_followed(self) -> bool:
        """The leading proposer counts on it."""
        return self.peer is not None and bool(self.peer.get("connected"))

    @property
    def promised(self) -> NodeId:
        return node_id_of(self.status.get("promised")) if self.status else NodeId.ZERO

    def __str__(self) -> str:
        place = f" ({self.address})" if self.address else ""
        return f"safekeeper {self.safekeeper_id}{place}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposerView:
    """A proposer of this timeline. `streams_to` are the ids of the members that accept its WAL, and
    for how many seconds each has heard nothing; `page` is None, with an `error`, when its status
    page does not answer."""

    http: str
    node_id: NodeId
    streams_to: Mapping[int, float]
    page: Status | None
    error: str
    read_at: datetime

    @property
    def state(self) -> str:
        return str(self.page["state"]) if self.page is not None else "not answering"

    def __str__(self) -> str:
        number = f" {brief_node_id(self.node_id)}" if self.node_id != NodeId.ZERO else ""
        return f"proposer{number} ({self.http})"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineView:
    """`proposers`: the one with the greatest NodeId first."""

    timeline: TimelineId
    membership: Membership
    system_id: str
    pg_version: int
    members: tuple[MemberView, ...]
    proposers: tuple[ProposerView, ...]

    @property
    def leader(self) -> ProposerView | None:
        return self.proposers[0] if self.proposers else None

    @property
    def promised(self) -> NodeId:
        """The greatest promise that a member has given."""
        return max(member.promised for member in self.members)


def timeline_views(discovery: Discovery) -> list[TimelineView]:
    """Every timeline that some safekeeper has, in order of their names."""
    names = {t for report in discovery.safekeepers for t in report.timelines}
    return [_timeline_view(timeline, discovery) for timeline in sorted(names)]


def members_left_behind(view: TimelineView) -> list[MemberView]:
    """Those that lack WAL which no other member has any more, on disk or in an archive."""
    return [member for member in view.members if _is_left_behind(view, member)]


def _is_left_behind(view: TimelineView, member: MemberView) -> bool:
    peer = member.peer or {}
    if member.is_followed or peer.get("state") == LEFT_BEHIND:
        return not member.is_followed
    if member.state not in (MemberState.ACTIVE, MemberState.UNREACHABLE):
        return False
    others = [
        other.status
        for other in view.members
        if other is not member and other.state is MemberState.ACTIVE and other.status
    ]
    needs_from = (member.status or peer).get("flush_lsn", NOWHERE)
    if needs_from == NOWHERE:  # known to nobody who answers: then it is the one that they miss
        return bool(others) and all(o["retention"]["member_left_behind"] for o in others)
    return bool(others) and all(
        o["archive"] is None and Lsn.parse(needs_from) < Lsn.parse(o["local_start_lsn"])
        for o in others
    )


def unopened_timelines(discovery: Discovery) -> dict[str, list[SafekeeperReport]]:
    """The folders of timelines that no safekeeper can open but some have, each with those."""
    known = {folder_name(t) for report in discovery.safekeepers for t in report.timelines}
    found: dict[str, list[SafekeeperReport]] = {}
    for report in discovery.safekeepers:
        for folder in report.damaged:
            if folder not in known:
                found.setdefault(folder, []).append(report)
    return found


def node_id_of(status: Status | None) -> NodeId:
    """From its JSON."""
    if not status:
        return NodeId.ZERO
    return NodeId(status["term"], bytes.fromhex(status["uuid"]))


def brief_node_id(node_id: NodeId) -> str:
    """The term, and enough of the uuid to tell two apart."""
    return f"{node_id.term}/{node_id.proposer_uuid.hex()[:8]}"


def _timeline_view(timeline: TimelineId, discovery: Discovery) -> TimelineView:
    holders = [r for r in discovery.safekeepers if timeline in r.timelines]
    statuses = {r.safekeeper_id: r.timelines[timeline] for r in holders}
    newest = max(statuses.values(), key=lambda status: status["membership"]["generation"])
    membership = Membership(
        newest["membership"]["generation"],
        tuple(newest["membership"]["members"]),
        tuple(newest["membership"]["new_members"]),
    )
    proposers = _proposers(timeline, statuses, discovery.proposers)
    return TimelineView(
        timeline=timeline,
        membership=membership,
        system_id=newest["system_id"],
        pg_version=newest["pg_version"],
        members=_members(timeline, membership, discovery.safekeepers, proposers),
        proposers=proposers,
    )


# ---- proposers


def _proposers(
    timeline: TimelineId,
    statuses: Mapping[int, Status],
    reports: Mapping[str, ProposerReport],
) -> tuple[ProposerView, ...]:
    """Those that stream now, whether or not they answer; of the others those that answer."""
    streams_to: dict[str, dict[int, float]] = {}
    node_ids: dict[str, NodeId] = {}
    for safekeeper_id, status in statuses.items():
        for named, http in proposer_pages(status):
            streams_to.setdefault(http, {})
            if "node_id" in named:
                streams_to[http][safekeeper_id] = float(named.get("silent_seconds", 0.0))
                node_ids[http] = max(node_ids.get(http, NodeId.ZERO), node_id_of(named["node_id"]))
    views = [
        _proposer_view(timeline, reports[http], members, node_ids.get(http, NodeId.ZERO))
        for http, members in streams_to.items()
        if http in reports
    ]
    present = [view for view in views if view.streams_to or view.page is not None]
    return tuple(sorted(present, key=lambda view: view.node_id, reverse=True))


def _proposer_view(
    timeline: TimelineId,
    report: ProposerReport,
    streams_to: Mapping[int, float],
    node_id: NodeId,
) -> ProposerView:
    """Another timeline's proposer may have taken the address over: it does not count."""
    page, error = report.page, report.error
    if page is not None and page.get("timeline_id") != timeline.timeline_id.hex():
        page, error = None, f"status page {report.http} is that of another proposer"
    if page is not None:
        node_id = max(node_id, node_id_of(page.get("node_id")))
    return ProposerView(
        http=report.http,
        node_id=node_id,
        streams_to=streams_to,
        page=page,
        error=error,
        read_at=report.read_at,
    )


# ---- members


def _members(
    timeline: TimelineId,
    membership: Membership,
    reports: Sequence[SafekeeperReport],
    proposers: Sequence[ProposerView],
) -> tuple[MemberView, ...]:
    page = proposers[0].page if proposers else None
    peers: list[Status] = list(page.get("safekeepers", ())) if page is not None else []
    by_id = {report.safekeeper_id: report for report in reports if report.reachable}
    candidates = _candidates(membership, by_id, reports, peers)
    is_created = any(
        report.timelines[timeline]["state"] != MemberState.CREATING.value
        for report in by_id.values()
        if timeline in report.timelines
    )
    return tuple(
        _answering_member(timeline, by_id[member], peers, is_created)
        if member in by_id
        else _silent_member(member, candidates[member], peers)
        for member in membership.all_members
    )


def _answering_member(
    timeline: TimelineId, report: SafekeeperReport, peers: Iterable[Status], is_created: bool
) -> MemberView:
    folder = folder_name(timeline)
    status = report.timelines.get(timeline)
    if status is not None:
        state, reason = MemberState(status["state"]), status["stopped_reason"] or ""
    elif folder in report.damaged:
        state, reason = MemberState.DAMAGED, report.damaged[folder]
    elif is_created:
        state, reason = MemberState.LOST_DATA, "it has no such timeline"
    else:
        state, reason = MemberState.CREATING, "the creation has not come here"
    return MemberView(
        safekeeper_id=report.safekeeper_id,
        state=state,
        address=report.address,
        reason=reason,
        status=status,
        peer=_peer(peers, report.safekeeper_id, report.address),
        disk=report.disk,
    )


def _silent_member(
    member: int, candidates: Sequence[SafekeeperReport], peers: Iterable[Status]
) -> MemberView:
    """`candidates`: the addresses that may be its own."""
    address = " or ".join(report.address for report in candidates)
    return MemberView(
        safekeeper_id=member,
        state=MemberState.UNREACHABLE if candidates else MemberState.NOT_GIVEN,
        address=address,
        reason="; ".join(report.error for report in candidates)
        or "none of the safekeepers asked is this member",
        hint=next((report.hint for report in candidates if report.hint), ""),
        peer=_peer(peers, member, address),
    )


def _candidates(
    membership: Membership,
    answering: Mapping[int, SafekeeperReport],
    reports: Sequence[SafekeeperReport],
    peers: Iterable[Status],
) -> dict[int, list[SafekeeperReport]]:
    """Which silent address may be which missing member: as the proposer remembers it, else any."""
    silent = {report.address: report for report in reports if not report.reachable}
    missing = [member for member in membership.all_members if member not in answering]
    remembered = {
        peer["id"]: [silent.pop(peer["address"])]
        for peer in peers
        if peer.get("id") in missing and peer.get("address") in silent
    }
    return {member: remembered.get(member, list(silent.values())) for member in missing}


def _peer(peers: Iterable[Status], safekeeper_id: int, address: str) -> Status | None:
    for peer in peers:
        known_id = peer.get("id")
        if known_id == safekeeper_id or (known_id is None and peer.get("address") == address):
            return peer
    return None
