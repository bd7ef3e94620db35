"""The safekeepers that store one timeline: its members, and others that hold or receive it. Pure.

Law: an id alone does not make a member. Another data directory under a member's id lacks the
promises that the member gave, so it is shown as a member that lost its data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from quorum_wal.consensus.ids import NodeId, TimelineId
from quorum_wal.consensus.membership import Member, Membership
from quorum_wal.walproposer.timelines.discovery import SafekeeperReport
from quorum_wal.walproposer.timelines.survey import folder_name

Status = Mapping[str, Any]  # a JSON object of a status page

#: A proposer closes the connection to a safekeeper that has not answered for 5 s. One that does not
#: answer `sk status` either hangs after less: two heartbeats, one each second, and a slow network.
HANGING_SECONDS = 2.5


class MemberState(Enum):
    """The first five are reported by the safekeeper itself (safekeeper/timeline_state.py)."""

    CREATING = "creating"
    ACTIVE = "active"
    STOPPED = "stopped"
    DAMAGED = "damaged"
    LEFT = "left"
    LOST_DATA = "lost its data"
    UNREACHABLE = "unreachable"
    NOT_GIVEN = "not given"  # its address is not in --safekeepers


class Standing(Enum):
    """The role of a safekeeper in the membership."""

    MEMBER = "member"
    JOINING = "joining"  # only in the new set of a joint membership
    LEAVING = "leaving"  # only in the old set
    LEARNER = "learner"  # in no set; the leader streams to it
    OUTSIDE = "outside"  # in no set; it has the log, or had it, and is not counted


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberView:
    """A safekeeper and one timeline. `status`: the timeline's status on the safekeeper. `peer`: its
    entry on the status page of the leading proposer. Both can be None. `member`: its entry in the
    membership."""

    safekeeper_id: int
    state: MemberState
    standing: Standing = Standing.MEMBER
    member: Member | None = None
    #: The instance and the site of the data directory that answers; "" if none answers.
    instance: str = ""
    site: str = ""
    address: str = ""
    reason: str = ""
    #: What to do if it answers but refuses.
    hint: str = ""
    status: Status | None = None
    peer: Status | None = None
    #: The free space on its disk if that is too little; else "".
    short_of_disk: str = ""

    @property
    def is_connected(self) -> bool:
        """The leading proposer is connected to it."""
        return self.peer is not None and bool(self.peer.get("connected"))

    @property
    def is_hanging(self) -> bool:
        """It answers neither us nor the leading proposer, which is still connected to it."""
        silent_seconds = (self.peer or {}).get("silent_seconds") or 0.0
        is_silent = self.state is MemberState.UNREACHABLE and silent_seconds > HANGING_SECONDS
        return self.is_connected and is_silent

    @property
    def is_followed(self) -> bool:
        """The leading proposer is connected to it, and it does not hang."""
        return self.is_connected and not self.is_hanging

    @property
    def via(self) -> int | None:
        """The id of the safekeeper that relays WAL to it; None if the proposer streams to it."""
        return self.peer.get("via") if self.peer is not None else None

    @property
    def is_member(self) -> bool:
        """It is in a set of the membership."""
        return self.standing not in (Standing.LEARNER, Standing.OUTSIDE)

    @property
    def is_alive(self) -> bool:
        """It answers or is followed, and has its data; the data may be damaged."""
        return self.is_followed or self.state is MemberState.ACTIVE

    @property
    def damage(self) -> str:
        """The damage of its log. A damaged member follows a leader, but does not vote."""
        return "; ".join((self.status or {}).get("damage") or ())

    @property
    def has_lost_data(self) -> bool:
        """It has no data, or less than it had acknowledged to the leading proposer, because its
        folder is an older copy."""
        if self.state is MemberState.ACTIVE and self.peer is not None:
            return bool(self.peer.get("state") == MemberState.LOST_DATA.value)
        return self.state is MemberState.LOST_DATA

    @property
    def is_sound(self) -> bool:
        """It is alive, and can vote."""
        return self.is_alive and not self.damage and not self.has_lost_data

    @property
    def promised(self) -> NodeId:
        return node_id_of(self.status.get("promised")) if self.status else NodeId.ZERO

    def __str__(self) -> str:
        place = f" ({self.address})" if self.address else ""
        return f"safekeeper {self.safekeeper_id}{place}"


def node_id_of(status: Status | None) -> NodeId:
    """Parses the JSON form of a node id; NodeId.ZERO for None."""
    if not status:
        return NodeId.ZERO
    return NodeId(status["term"], bytes.fromhex(status["uuid"]))


@dataclass(frozen=True, slots=True)
class MemberSurvey:
    """Finds all safekeepers that store one timeline. `answering`: the reports that came, by id."""

    timeline: TimelineId
    membership: Membership
    reports: Sequence[SafekeeperReport]
    answering: Mapping[int, SafekeeperReport]
    peers: Sequence[Status]

    @classmethod
    def of(
        cls,
        timeline: TimelineId,
        membership: Membership,
        reports: Sequence[SafekeeperReport],
        page: Status | None,
    ) -> MemberSurvey:
        """`page`: the status page of the leading proposer, None if it does not answer."""
        peers = tuple(page.get("safekeepers", ())) if page is not None else ()
        answering: dict[int, SafekeeperReport] = {}
        for report in (each for each in reports if each.reachable):
            listed = membership.member(report.safekeeper_id)
            if report.safekeeper_id not in answering or report.is_listed_as(listed):
                answering[report.safekeeper_id] = report
        return cls(timeline, membership, reports, answering, peers)

    def members(self) -> tuple[MemberView, ...]:
        candidates = self._candidates()
        return tuple(
            self._answering(i, self.answering[i])
            if i in self.answering
            else self._silent(i, candidates[i])
            for i in self.membership.all_members
        )

    def others(self) -> tuple[MemberView, ...]:
        """Safekeepers in no set: learners, those that have left, and others that hold the log."""
        members = self.membership.all_members
        streamed = {p["id"] for p in self.peers if p.get("id") and p.get("connected")}
        holding = {
            i
            for i, report in self.answering.items()
            if self.timeline in report.timelines or self.timeline in report.left
        }
        return tuple(
            self._answering(i, self.answering[i]) if i in self.answering else self._silent(i, ())
            for i in sorted((streamed | holding) - set(members))
        )

    def _standing(self, safekeeper_id: int) -> Standing:
        membership = self.membership
        if safekeeper_id in membership.all_members:
            if not membership.is_joint:
                return Standing.MEMBER
            if safekeeper_id not in membership.members:
                return Standing.JOINING
            is_staying = safekeeper_id in membership.new_members
            return Standing.MEMBER if is_staying else Standing.LEAVING
        is_followed = any(p.get("id") == safekeeper_id and p.get("connected") for p in self.peers)
        return Standing.LEARNER if is_followed else Standing.OUTSIDE

    def _answering(self, safekeeper_id: int, report: SafekeeperReport) -> MemberView:
        state, reason = self._state_on(report)
        status = report.timelines.get(self.timeline) or report.left.get(self.timeline)
        member = self.membership.member(safekeeper_id)
        if not report.is_listed_as(member):
            state, status = MemberState.LOST_DATA, None
            reason = f"it has another data directory than the member, instance {report.instance}"
        return MemberView(
            safekeeper_id=safekeeper_id,
            state=state,
            standing=self._standing(safekeeper_id),
            member=member,
            instance=report.instance,
            site=report.site or member.site,
            address=report.address,
            reason=reason,
            status=status,
            peer=_peer(self.peers, safekeeper_id, report.address),
            short_of_disk=report.disk_text if report.is_short_of_disk else "",
        )

    def _state_on(self, report: SafekeeperReport) -> tuple[MemberState, str]:
        folder, status = folder_name(self.timeline), report.timelines.get(self.timeline)
        if status is not None:
            return MemberState(status["state"]), status["stopped_reason"] or ""
        if self.timeline in report.left:
            return MemberState.LEFT, "it has left, and has no WAL of this timeline"
        if folder in report.damaged:
            return MemberState.DAMAGED, report.damaged[folder]
        if self._is_created:
            return MemberState.LOST_DATA, "it does not have this timeline"
        return MemberState.CREATING, "the timeline is not created here yet"

    @property
    def _is_created(self) -> bool:
        return any(
            report.timelines[self.timeline]["state"] != MemberState.CREATING.value
            for report in self.answering.values()
            if self.timeline in report.timelines
        )

    def _silent(self, member_id: int, candidates: Sequence[SafekeeperReport]) -> MemberView:
        """`candidates`: addresses that do not answer and may be this member."""
        member = self.membership.member(member_id)
        address = " or ".join(report.address for report in candidates) or member.address
        return MemberView(
            safekeeper_id=member_id,
            state=MemberState.UNREACHABLE if candidates else MemberState.NOT_GIVEN,
            standing=self._standing(member_id),
            member=member,
            site=member.site,
            address=address,
            reason="; ".join(report.error for report in candidates)
            or "none of the safekeepers asked is this member",
            hint=next((report.hint for report in candidates if report.hint), ""),
            peer=_peer(self.peers, member_id, address),
        )

    def _candidates(self) -> dict[int, list[SafekeeperReport]]:
        """The silent addresses that may be a missing member: the address in the membership or on
        the proposer's page; otherwise every silent address."""
        silent = {report.address: report for report in self.reports if not report.reachable}
        missing = [m for m in self.membership.all_members if m not in self.answering]
        known = {peer["id"]: str(peer.get("address")) for peer in self.peers if peer.get("id")}
        known |= {m.id: m.address for m in self.membership.roster if m.address}
        found = {
            member: [silent.pop(known[member])] for member in missing if known.get(member) in silent
        }
        return {member: found.get(member, list(silent.values())) for member in missing}


def _peer(peers: Iterable[Status], safekeeper_id: int, address: str) -> Status | None:
    for peer in peers:
        known_id = peer.get("id")
        if known_id == safekeeper_id or (known_id is None and peer.get("address") == address):
            return peer
    return None
