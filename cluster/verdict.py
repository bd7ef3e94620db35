"""The verdict on a timeline: whether commits proceed, and what to do if there is a problem. Pure.

    OK            commits proceed, every member follows
    DEGRADED      commits proceed, but one more loss may stop them, or let them return without a
                  quorum
    UNPROTECTED   commits return without the quorum
    BLOCKED       a proposer leads, but too few members follow, or none makes progress: commits wait
    ELECTION      a proposer campaigns: commits wait until it has won
    NO PRIMARY    the proposer waits for the primary
    NO PROPOSER   no proposer is connected: commits wait
    HUNG          the proposer or the primary is connected, but makes no progress: commits wait
    FENCED        the connected proposer was deposed, and no other has won
    CONTESTED     several servers are primaries, and it is undecided which one continues the log
    UNFINISHED    the timeline has not been created on all members yet

Each verdict is one line: the state, the reason, and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from quorum_wal.cluster.member_view import MemberState, MemberView, Status
from quorum_wal.cluster.server_view import Role, ServerView
from quorum_wal.cluster.timeline_view import (
    ProposerView,
    TimelineView,
    brief_node_id,
    members_left_behind,
)
from quorum_wal.consensus.ids import NodeId
from quorum_wal.consensus.quorum import has_quorum, quorum_size
from quorum_wal.walproposer.stream.quorum_watch import SILENT_SECONDS_MAX
from quorum_wal.walproposer.timelines.status_page import TOKEN_MISSING

REASON_CHARACTERS_MAX = 300

#: Without a quorum no member can be replaced, so the verdict does not offer that.
LOST_FOR_GOOD = (
    "if the disks of a quorum are lost for good: docs/members.md#a-quorum-is-lost-for-good"
)
#: What a member in one of these states may still have. One that refuses to answer has a hint.
UNKNOWN_STATES = (MemberState.NOT_GIVEN, MemberState.CREATING)


class Condition(Enum):
    OK = "OK"
    DEGRADED = "DEGRADED"
    UNPROTECTED = "UNPROTECTED"
    BLOCKED = "BLOCKED"
    ELECTION = "ELECTION"
    NO_PRIMARY = "NO PRIMARY"
    NO_PROPOSER = "NO PROPOSER"
    HUNG = "HUNG"
    FENCED = "FENCED"
    CONTESTED = "CONTESTED"
    UNFINISHED = "UNFINISHED"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`text` is one sentence or a few, without the condition's name."""

    condition: Condition
    text: str

    @property
    def runbook(self) -> str:
        """The entry of the runbook with the steps; "" if there is nothing to do."""
        return "" if self.condition is Condition.OK else runbook_entry(self.condition.value)

    @property
    def commits_proceed(self) -> bool:
        return self.is_well or self.condition is Condition.UNPROTECTED

    @property
    def is_well(self) -> bool:
        """Commits proceed, and a quorum has them."""
        return self.condition in (Condition.OK, Condition.DEGRADED)

    def __str__(self) -> str:
        return f"{self.condition.value}: {self.text}"


def runbook_entry(heading: str) -> str:
    """The place in docs/runbook.md: the file, and the anchor of the heading."""
    return f"docs/runbook.md#{heading.lower().replace(' ', '-')}"


def judge(view: TimelineView, servers: Sequence[ServerView] = ()) -> Verdict:
    """The verdict on this timeline. `servers` are the servers that were asked, of any system."""
    verdict = _of_timeline(view)
    own = [server for server in servers if str(server.system_id) == view.system_id]
    contenders = [server for server in own if server.role is Role.CONTENDER]
    if contenders:
        verdict = _contested(verdict, contenders)
    primaries = contenders or [server for server in own if server.role is Role.PRIMARY]
    for primary in primaries:
        verdict = _with_primary(verdict, primary)
    page = view.leader.page if view.leader is not None else None
    problems = page.get("commit_problems") if page is not None else None
    if problems and not primaries:
        return _unprotected(verdict, problems)
    return verdict


def _contested(verdict: Verdict, contenders: Sequence[ServerView]) -> Verdict:
    names = ", ".join(server.dsn for server in contenders)
    return Verdict(
        Condition.CONTESTED,
        f"{len(contenders)} servers are primaries that could continue the log: {names}; run sk "
        f"attach for one of them, stop the others; also, {verdict}",
    )


def _unprotected(verdict: Verdict, problems: Sequence[str]) -> Verdict:
    also = "" if verdict.condition is Condition.OK else f"; also, {verdict}"
    return Verdict(
        Condition.UNPROTECTED,
        f"commits return without the quorum: {'; '.join(problems)}{also}",
    )


def _with_primary(verdict: Verdict, primary: ServerView) -> Verdict:
    """Adds the primary's report to the verdict from the safekeepers and the proposer."""
    waits = primary.commit_waits
    if primary.dangers:
        return _unprotected(verdict, primary.dangers)
    if waits.stuck_count and verdict.is_well:
        return Verdict(Condition.BLOCKED, f"{waits}; otherwise {verdict}")
    if waits.stuck_count:
        return Verdict(verdict.condition, f"{verdict.text}; {waits}")
    if primary.risks and verdict.is_well:
        return Verdict(Condition.DEGRADED, "; ".join((verdict.text, *primary.risks)))
    return verdict


def _of_timeline(view: TimelineView) -> Verdict:
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


# ---- one function for each condition


def _with_leader(view: TimelineView, leader: ProposerView) -> Verdict:
    page = leader.page
    assert page is not None
    problems = [*_of_clients(page), *_problems(view, leader)]
    followers = sum(member.is_followed for member in view.members)
    members = f"{followers} of {len(view.members)} safekeepers"
    stall = _stall(leader, page)
    is_quorum_ok = page["quorum"]["ok"] and not _quorum_hangs(view)
    if is_quorum_ok and (page.get("failover") or {}).get("error"):
        return Verdict(Condition.BLOCKED, "; ".join(problems))
    if is_quorum_ok and stall is not None:
        return Verdict(stall.condition, "; ".join((stall.text, *problems)))
    if is_quorum_ok:
        if problems:
            text = f"commits proceed with {members}; {'; '.join(problems)}"
            return Verdict(Condition.DEGRADED, text + _deposed_others(view, leader))
        text = f"commits proceed, {members}"
        return Verdict(Condition.OK, text + _deposed_others(view, leader))
    if view.promised > leader.node_id:
        return Verdict(
            Condition.FENCED,
            f"{leader} was deposed by {brief_node_id(view.promised)}, which does not stream: "
            "run sk attach for the primary that should continue",
        )
    since = "" if page["quorum"]["ok"] else _clock(page["quorum"].get("since"))
    text = f"commits wait{since}: {members} follow, {_needed(view)}"
    return Verdict(Condition.BLOCKED, "; ".join((text, *problems)))


def _quorum_hangs(view: TimelineView) -> bool:
    """The proposer is connected to a quorum, and has not found out yet that too many hang."""
    followed = [member.safekeeper_id for member in view.members if member.is_followed]
    hangs = any(member.is_hanging for member in view.members)
    return hangs and not has_quorum(view.membership, followed)


def _of_clients(page: Status) -> list[str]:
    """Why the primary does not serve its clients although a quorum is connected."""
    error = (page.get("failover") or {}).get("error")
    problems = []
    if error:
        problems.append(f"the failover is not finished, clients cannot connect: {_short(error)}")
    qsync = page.get("qsync") or {}
    if qsync.get("refuses") and page["quorum"]["ok"]:
        action = "run sk qsync list" if qsync.get("owner") else "see the proposer's log"
        problems.append(f"qsync admits no transaction: {_short(qsync['refuses'])}: {action}")
    return problems


def _needed(view: TimelineView) -> str:
    sizes = [f"{quorum_size(len(group))} of {_ids(group)}" for group in view.membership.groups]
    if view.membership.is_joint:
        return f"{' and '.join(sizes)} are needed, because the members are being changed"
    return f"{quorum_size(len(view.membership.members))} are needed"


def _ids(group: Sequence[int]) -> str:
    return ", ".join(map(str, group))


def _stall(leader: ProposerView, page: Status) -> Verdict | None:
    """A quorum is connected: checks that everything that a commit needs makes progress."""
    if page.get("stalled_seconds", 0.0) > SILENT_SECONDS_MAX:
        return Verdict(
            Condition.HUNG,
            f"{leader} has made no progress for {page['stalled_seconds']:.0f} s, commits wait: "
            "restart it",
        )
    silent_seconds = page["primary"].get("silent_seconds") or 0.0
    if silent_seconds > SILENT_SECONDS_MAX:
        return Verdict(
            Condition.HUNG,
            f"the primary ({page['primary']['dsn']}) is connected to {leader}, but silent for "
            f"{silent_seconds:.0f} s: look at the primary",
        )
    if page.get("unconfirmed_seconds", 0.0) > SILENT_SECONDS_MAX:
        return Verdict(
            Condition.BLOCKED,
            f"commits wait: commit_lsn has been {page['commit_lsn']} for "
            f"{page['unconfirmed_seconds']:.0f} s, although a quorum is connected",
        )
    return None


def _with_silent_proposer(view: TimelineView, leader: ProposerView) -> Verdict:
    """Its status page does not answer, so only the reports of the safekeepers are used."""
    problems = "".join(f"; {problem}" for problem in _problems(view, leader))
    heard = {m for m, seconds in leader.streams_to.items() if seconds <= SILENT_SECONDS_MAX}
    if has_quorum(view.membership, heard):
        streams = f"{leader} streams to {len(heard)} of {len(view.members)} safekeepers"
        if TOKEN_MISSING in leader.error:
            return Verdict(
                Condition.DEGRADED,
                f"{streams}; it is unknown whether commits proceed, because {_short(leader.error)}"
                f"{problems}",
            )
        return Verdict(
            Condition.DEGRADED, f"{streams}, but cannot be asked: {_short(leader.error)}{problems}"
        )
    if has_quorum(view.membership, set(leader.streams_to)):
        silent_seconds = min(s for m, s in leader.streams_to.items() if m not in heard)
        return Verdict(
            Condition.HUNG,
            f"{leader} is connected to {len(leader.streams_to)} of {len(view.members)} safekeepers,"
            f" but silent for {silent_seconds:.0f} s, and cannot be asked: {_short(leader.error)}; "
            f"commits wait: restart it{problems}",
        )
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
    able = [m.safekeeper_id for m in view.members if m.state is MemberState.ACTIVE]
    if has_quorum(view.membership, able):
        action = (
            "run sk attach for its primary or, if the primary is lost, sk promote for a standby"
        )
    else:  # a proposer checks this before it connects, so a running one is unknown here
        action = (
            f"only {len(able)} of {len(view.members)} safekeepers can take part, {_needed(view)}: "
            "repair the others, then run sk attach for its primary unless a proposer waits for them"
        )
    return Verdict(Condition.NO_PROPOSER, f"no proposer is connected{last}: {action}{problems}")


def _deposed_others(view: TimelineView, leader: ProposerView) -> str:
    """Other proposers that do not know yet that they were deposed."""
    others = [p for p in view.proposers if p is not leader and p.node_id < leader.node_id]
    named = [str(other) for other in others if other.node_id != NodeId.ZERO]
    return f"; deposed and to be stopped: {', '.join(named)}" if named else ""


# ---- members


def _problems(view: TimelineView, leader: ProposerView | None) -> list[str]:
    behind = members_left_behind(view)
    sound = [member.safekeeper_id for member in view.members if member.is_sound]
    can_replace = has_quorum(view.membership, sound)
    problems = []
    for member in view.members:
        replaced = _replaced(member) if can_replace else ""
        is_behind = member in behind
        problems.append(
            _left_behind(member, replaced) if is_behind else _problem(member, leader, replaced)
        )
    unknown = [m.safekeeper_id for m in view.members if m.state in UNKNOWN_STATES or m.hint]
    if not has_quorum(view.membership, sound + unknown):
        problems.append(LOST_FOR_GOOD)
    return [problem for problem in problems if problem]


def _left_behind(member: MemberView, replaced: str) -> str:
    return (
        f"{member} is left behind: the others have removed WAL that it lacks "
        f"(--max-member-wal-keep-size), and no archive has it{_then(replaced)}"
    )


def _replaced(member: MemberView) -> str:
    """The command to replace it; the address is that of a new safekeeper."""
    return f"sk member replace {member.safekeeper_id} NEWADDR"


def _then(replaced: str) -> str:
    return f": {replaced}" if replaced else ""


def _or(action: str, replaced: str) -> str:
    return f"{action}, or {replaced}" if replaced else action


def _problem(member: MemberView, leader: ProposerView | None, replaced: str) -> str:
    """The member's problem and what to do about it; "" if it has none. `replaced`: the command to
    replace it; "" without a quorum, which refuses that."""
    followed = member.is_followed
    if member.has_lost_data:
        return f"{member} lost its data{_then(replaced)}"
    match member.state:
        case MemberState.LEFT:
            return f"{member} has left this timeline, but is a member again{_then(replaced)}"
        case MemberState.STOPPED:
            return f"{member} stopped this timeline: {_stopped(member, replaced)}"
        case MemberState.DAMAGED:
            return f"{member} is damaged, {_short(member.reason)}{_then(replaced)}"
        case MemberState.CREATING:
            return f"{member} waits for activation: run sk attach again"
        case MemberState.UNREACHABLE if member.hint and not followed:
            return f"{member} refuses to answer: {_short(member.reason)}; {member.hint}"
        case MemberState.UNREACHABLE if not followed:
            since = _silent_since(member, leader)
            return f"{member} is unreachable{since}: {_or('start it', replaced)}"
        case MemberState.NOT_GIVEN if not followed:
            return f"{member} was not asked: give its address in --safekeepers"
    if member.damage:
        otherwise = f"; if that does not happen: {replaced}" if replaced else ""
        return (
            f"{member} does not vote until a proposer has repaired it: {_short(member.damage)}"
            f"{otherwise}"
        )
    if member.short_of_disk:
        return f"{member} will stop soon, {member.short_of_disk} on its disk: free some space"
    if leader is None or leader.page is None or leader.page["state"] != "streaming":
        return ""
    peer = member.peer or {}
    if not followed:
        reason = f", {_short(peer['error'])}" if peer.get("error") else ""
        return f"{member} runs, but the proposer is not connected to it{reason}"
    if peer.get("state") == "catching up":
        return f"{member} is catching up, {peer['lag_bytes']} bytes behind"
    return ""


def _stopped(member: MemberView, replaced: str) -> str:
    reason = member.reason
    if "space" in reason:
        return f"{_short(reason)}: free some space"
    return f"{_short(reason)}: {_or('repair its disk and restart it', replaced)}"


def _silent_since(member: MemberView, leader: ProposerView | None) -> str:
    """When the proposer last received something from it."""
    seconds = member.peer.get("silent_seconds") if member.peer is not None else None
    if seconds is None or leader is None:
        return ""
    return _clock((leader.read_at - timedelta(seconds=seconds)).isoformat())


def _clock(moment: str | None) -> str:
    """` since 2026-01-31 12:30:00 UTC`; "" for None."""
    if not moment:
        return ""
    return f" since {datetime.fromisoformat(moment):%Y-%m-%d %H:%M:%S} UTC"


def _short(reason: str) -> str:
    text = " ".join(reason.split())
    if len(text) <= REASON_CHARACTERS_MAX:
        return text
    return text[: REASON_CHARACTERS_MAX - 3] + "..."
