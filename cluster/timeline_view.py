"""All reports put together: each timeline with its members and its proposers. Pure.

Each safekeeper reports its own timelines; this module sorts the reports by timeline. A member that
did not answer, or no longer has the timeline, is listed like the others. So are safekeepers in no
set: those that the leader streams to, that have left, or that still hold the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from quorum_wal.cluster.member_view import MemberState, MemberSurvey, MemberView, Status, node_id_of
from quorum_wal.cluster.site_losses import SiteLosses, site_losses
from quorum_wal.consensus.ids import NodeId, TimelineId
from quorum_wal.consensus.membership import Membership
from quorum_wal.consensus.membership_page import membership_of_page
from quorum_wal.consensus.quorum import has_quorum
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.walproposer.timelines.discovery import (
    Discovery,
    ProposerReport,
    SafekeeperReport,
    proposer_pages,
)
from quorum_wal.walproposer.timelines.survey import folder_name

LEFT_BEHIND = "left behind"  # a state on the proposer's page (walproposer/stream/progress.py)
NOWHERE = "0/0"  # an unknown position


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposerView:
    """A proposer of this timeline. `streams_to` maps the members that accept its WAL to the seconds
    for which each has received nothing. `page` is None, with an `error`, if the status page does
    not answer."""

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
    """`proposers`: the greatest NodeId first. `others`: the safekeepers in no set."""

    timeline: TimelineId
    membership: Membership
    system_id: str
    pg_version: int
    members: tuple[MemberView, ...]
    proposers: tuple[ProposerView, ...]
    others: tuple[MemberView, ...] = field(default=())

    @property
    def leader(self) -> ProposerView | None:
        return self.proposers[0] if self.proposers else None

    @property
    def promised(self) -> NodeId:
        """The greatest NodeId that a member has promised to."""
        return max(member.promised for member in self.members)

    @property
    def has_answering_member(self) -> bool:
        silent = (MemberState.UNREACHABLE, MemberState.NOT_GIVEN)
        return any(member.state not in silent for member in self.members)

    @property
    def change(self) -> Status | None:
        """The member change that the leader is executing, or its last one."""
        page = self.leader.page if self.leader is not None else None
        return (page.get("membership") or {}).get("change") if page is not None else None

    @property
    def is_complete(self) -> bool:
        """A quorum has this membership on disk, and it is not a joint one. Then safekeepers in no
        set can be informed."""
        return not self.membership.is_joint and has_quorum(self.membership, self.informed_ids)

    @property
    def is_forced(self) -> bool:
        """An operator once forced it. An older release noted that on the keeper only."""
        by_keeper = any((member.status or {}).get("forced") for member in self.members)
        return self.membership.is_forced or by_keeper

    @property
    def informed_ids(self) -> list[int]:
        """The members that report this membership as the one on their disk."""
        return [m.safekeeper_id for m in self.members if self._is_informed(m)]

    @property
    def uninformed_ids(self) -> list[int]:
        """The members that answer and report another membership."""
        answering = [m for m in self.members if m.status is not None]
        return [m.safekeeper_id for m in answering if not self._is_informed(m)]

    def _is_informed(self, member: MemberView) -> bool:
        if member.status is None:
            return False
        return membership_of_page(member.status["membership"]) == self.membership

    @property
    def site_losses(self) -> SiteLosses | None:
        """Which sites may be lost now; None without labels."""
        sites = {member.safekeeper_id: member.site for member in self.members}
        down = [member.safekeeper_id for member in self.members if not member.is_sound]
        return site_losses(self.membership, sites, down)


def timeline_views(discovery: Discovery) -> list[TimelineView]:
    """Every timeline that a safekeeper has, by name."""
    names = {t for report in discovery.safekeepers for t in report.timelines}
    left = {t for report in discovery.safekeepers for t in report.left} - names
    views = [_timeline_view(timeline, discovery) for timeline in sorted(names | left)]
    # If all have left a timeline and its members do not have it, it was deleted.
    return [v for v in views if v.timeline in names or not v.has_answering_member]


def members_left_behind(view: TimelineView) -> list[MemberView]:
    """The members that lack WAL which no other member and no archive has any more."""
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
    if needs_from == NOWHERE:  # unknown to all that answer: it is the member that they miss
        return bool(others) and all(o["retention"]["member_left_behind"] for o in others)
    return bool(others) and all(
        o["archive"] is None and Lsn.parse(needs_from) < Lsn.parse(o["local_start_lsn"])
        for o in others
    )


def unopened_timelines(discovery: Discovery) -> dict[str, list[SafekeeperReport]]:
    """The timelines that some safekeepers have but none can open, by folder name."""
    known = {folder_name(t) for report in discovery.safekeepers for t in report.timelines}
    found: dict[str, list[SafekeeperReport]] = {}
    for report in discovery.safekeepers:
        for folder in report.damaged:
            if folder not in known:
                found.setdefault(folder, []).append(report)
    return found


def brief_node_id(node_id: NodeId) -> str:
    """The term, and enough of the uuid to distinguish two proposers."""
    return f"{node_id.term}/{node_id.proposer_uuid.hex()[:8]}"


def _timeline_view(timeline: TimelineId, discovery: Discovery) -> TimelineView:
    reported = [
        s for r in discovery.safekeepers for s in (r.timelines.get(timeline), r.left.get(timeline))
    ]
    newest = max(filter(None, reported), key=lambda s: membership_of_page(s["membership"]).stamp)
    membership = membership_of_page(newest["membership"])
    statuses = {
        r.safekeeper_id: r.timelines[timeline]
        for r in discovery.safekeepers
        if timeline in r.timelines
    }
    proposers = _proposers(timeline, statuses, discovery.proposers)
    page = proposers[0].page if proposers else None
    survey = MemberSurvey.of(timeline, membership, discovery.safekeepers, page)
    return TimelineView(
        timeline=timeline,
        membership=membership,
        system_id=newest["system_id"],
        pg_version=newest["pg_version"],
        members=survey.members(),
        proposers=proposers,
        others=survey.others(),
    )


# ---- proposers


def _proposers(
    timeline: TimelineId,
    statuses: Mapping[int, Status],
    reports: Mapping[str, ProposerReport],
) -> tuple[ProposerView, ...]:
    """All proposers that stream now, and others whose status page answers. A proposer whose page
    names this timeline counts even if no safekeeper names it: it asks about itself."""
    streams_to: dict[str, dict[int, float]] = {}
    node_ids: dict[str, NodeId] = {}
    for safekeeper_id, status in statuses.items():
        for named, http in proposer_pages(status):
            streams_to.setdefault(http, {})
            if "node_id" in named:
                streams_to[http][safekeeper_id] = float(named.get("silent_seconds", 0.0))
                node_ids[http] = max(node_ids.get(http, NodeId.ZERO), node_id_of(named["node_id"]))
    for http, report in reports.items():
        if report.page is not None and report.page.get("timeline_id") == timeline.timeline_id.hex():
            streams_to.setdefault(http, {})
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
    """The page may belong to a proposer of another timeline that uses the same address now."""
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
