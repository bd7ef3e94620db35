"""The verdict on a timeline: do commits proceed, and if all is not well, what is to be done? Pure.

    OK            commits proceed, every member follows
    DEGRADED      commits proceed, but one more loss may stop them
    BLOCKED       a proposer leads, but too few members follow: commits wait
    ELECTION      a proposer campaigns: commits wait until it has won
    NO PRIMARY    the proposer waits for the primary
    NO PROPOSER   nobody is there to confirm commits
    FENCED        the proposer that is there was deposed, and no other has won
    UNFINISHED    the timeline was not created on all members yet

Each is one line: what is so, why, and what mends it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from cli.cluster_view import (
    MemberState,
    MemberView,
    ProposerView,
    TimelineView,
    brief_node_id,
)
from consensus.ids import NodeId
from consensus.quorum import has_quorum, quorum_size

REASON_CHARACTERS_MAX = 300


class Condition(Enum):
    OK = "OK"
    DEGRADED = "DEGRADED"
    BLOCKED = "BLOCKED"
    ELECTION = "ELECTION"
    NO_PRIMARY = "NO PRIMARY"
    NO_PROPOSER = "NO PROPOSER"
    FENCED = "FENCED"
    UNFINISHED = "UNFINISHED"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`text` is one sentence or a few, without the condition's name."""

    condition: Condition
    text: str

    @property
    def commits_proceed(self) -> bool:
        return self.condition in (Condition.OK, Condition.DEGRADED)

    def __str__(self) -> str:
        return f"{self.condition.value}: {self.text}"


def judge(view: TimelineView) -> Verdict:
    """The one line on this timeline."""
    leader = view.leader
    if all(member.state is not MemberState.ACTIVE for member in view.members) and any(
        member.state is MemberState.CREATING for member in view.members
    ):
        return Verdict(
            Condition.UNFINISHED,
            "the timeline was not created on all members: run sk attach on its primary again, "
            "or sk timeline delete",
        )
    if leader is None:
        return _without_proposer(view)
    if leader.page is None:
        return _with_silent_proposer(view, leader)
    if leader.page["state"] in ("waiting_for_primary", "starting"):
        return _without_primary(leader)
    if leader.page["state"] != "streaming":
        return _campaigning(view, leader)
    return _with_leader(view, leader)


# ---- one condition each


def _with_leader(view: TimelineView, leader: ProposerView) -> Verdict:
    page = leader.page
    assert page is not None
    problems = _problems(view, leader)
    followers = sum(member.is_followed for member in view.members)
    members = f"{followers} of {len(view.members)} safekeepers"
    if page["quorum"]["ok"]:
        if problems:
            text = f"commits proceed with {members}; {'; '.join(problems)}"
            return Verdict(Condition.DEGRADED, text + _deposed_others(view, leader))
        text = f"commits proceed, {members}"
        return Verdict(Condition.OK, text + _deposed_others(view, leader))
    if view.promised > leader.node_id:
        return Verdict(
            Condition.FENCED,
            f"{leader} was deposed by {brief_node_id(view.promised)}, which does not stream: "
            "run sk attach for the primary that is to go on",
        )
    needed = quorum_size(len(view.membership.members))
    since = _clock(page["quorum"].get("since"))
    text = f"commits wait{since}: {members} follow, {needed} are needed"
    return Verdict(Condition.BLOCKED, "; ".join((text, *problems)))


def _with_silent_proposer(view: TimelineView, leader: ProposerView) -> Verdict:
    """Its status page does not answer; what the safekeepers say must do."""
    if has_quorum(view.membership, leader.streams_to):
        return Verdict(
            Condition.DEGRADED,
            f"{leader} streams to {len(leader.streams_to)} of {len(view.members)} safekeepers, "
            f"but cannot be asked: {_short(leader.error)}",
        )
    problems = "".join(f"; {problem}" for problem in _problems(view, leader))
    return Verdict(
        Condition.BLOCKED,
        f"{leader} streams to {len(leader.streams_to)} of {len(view.members)} safekeepers only, "
        f"and cannot be asked: {_short(leader.error)}{problems}",
    )


def _without_primary(leader: ProposerView) -> Verdict:
    page = leader.page
    assert page is not None
    reason = page["primary"].get("error") or page["primary"]["dsn"]
    return Verdict(
        Condition.NO_PRIMARY,
        f"{leader} waits for the primary: {_short(reason)}; start the primary",
    )


def _campaigning(view: TimelineView, leader: ProposerView) -> Verdict:
    problems = "".join(f"; {problem}" for problem in _problems(view, leader))
    return Verdict(Condition.ELECTION, f"{leader} is {leader.state}, commits wait{problems}")


def _without_proposer(view: TimelineView) -> Verdict:
    problems = "".join(f"; {problem}" for problem in _problems(view, None))
    promised = view.promised
    last = f" (the last election was {brief_node_id(promised)})" if promised.term else ""
    return Verdict(
        Condition.NO_PROPOSER,
        f"no proposer is connected{last}: run sk attach for its primary{problems}",
    )


def _deposed_others(view: TimelineView, leader: ProposerView) -> str:
    """Other proposers that still believe in themselves."""
    others = [p for p in view.proposers if p is not leader and p.node_id < leader.node_id]
    named = [str(other) for other in others if other.node_id != NodeId.ZERO]
    return f"; deposed and to be stopped: {', '.join(named)}" if named else ""


# ---- members


def _problems(view: TimelineView, leader: ProposerView | None) -> list[str]:
    return list(filter(None, (_problem(member, leader) for member in view.members)))


def _problem(member: MemberView, leader: ProposerView | None) -> str:
    """What is wrong with it, and what to do; "" when nothing is."""
    followed = member.is_followed
    match member.state:
        case MemberState.LOST_DATA:
            return f"{member} lost its data: replace it by a new id"
        case MemberState.STOPPED:
            return f"{member} stopped this timeline: {_stopped(member.reason)}"
        case MemberState.DAMAGED:
            return f"{member} is damaged, {_short(member.reason)}: replace it by a new id"
        case MemberState.CREATING:
            return f"{member} waits to be activated: run sk attach again"
        case MemberState.UNREACHABLE if not followed:
            return f"{member} is unreachable{_silent_since(member, leader)}: start it"
        case MemberState.NOT_GIVEN if not followed:
            return f"{member} was not asked: give its address in --safekeepers"
    if leader is None or leader.page is None or leader.page["state"] != "streaming":
        return ""
    peer = member.peer or {}
    if not followed:
        reason = f", {_short(peer['error'])}" if peer.get("error") else ""
        return f"{member} runs, but the proposer is not connected to it{reason}"
    if peer.get("state") == "catching up":
        return f"{member} is catching up, {peer['lag_bytes']} bytes behind"
    return ""


def _stopped(reason: str) -> str:
    remedy = "free some space" if "space" in reason else "mend its disk and restart it"
    return f"{_short(reason)}: {remedy}"


def _silent_since(member: MemberView, leader: ProposerView | None) -> str:
    """When the proposer last heard of it."""
    seconds = member.peer.get("silent_seconds") if member.peer is not None else None
    if seconds is None or leader is None:
        return ""
    return _clock((leader.read_at - timedelta(seconds=seconds)).isoformat())


def _clock(moment: str | None) -> str:
    """` since 2026-01-31 12:30:00 UTC`; nothing for no moment."""
    if not moment:
        return ""
    return f" since {datetime.fromisoformat(moment):%Y-%m-%d %H:%M:%S} UTC"


def _short(reason: str) -> str:
    text = " ".join(reason.split())
    if len(text) <= REASON_CHARACTERS_MAX:
        return text
    return text[: REASON_CHARACTERS_MAX - 3] + "..."
