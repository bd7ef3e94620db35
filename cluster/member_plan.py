"""What a command on the members comes to: not begun, under way, or done; and to which set. Pure.

    present membership + command -> MemberPlan -> checks -> a request to the leader

The same command again after a crash is the same plan: its set is reckoned from the set that the
members had before, which a joint membership still names.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from consensus.membership import MEMBERS_MAX, UNKNOWN_INSTANCE, Member, Membership, Stamp
from consensus.quorum import quorum_size
from walproposer.errors import Refusal

#: How the commands below are named in hints.
NEW_ID_HINT = (
    "Start it on an empty data directory with an --id that no member has, or had, and name its "
    "address: sk member replace {id} HOST:PORT."
)

NOBODY: Mapping[int, str] = {}


class Stage(Enum):
    NOT_BEGUN = "not begun"
    UNDER_WAY = "under way"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class MemberPlan:
    """`wanted`: the members it ends with, by ascending id. `stage` is that of `present`: whether a
    quorum has that on disk, the plan does not know."""

    present: Membership
    wanted: tuple[Member, ...]
    stage: Stage

    @property
    def wanted_ids(self) -> tuple[int, ...]:
        return tuple(member.id for member in self.wanted)

    @property
    def joining(self) -> tuple[Member, ...]:
        """Those that no set has yet, or the new one alone."""
        return tuple(m for m in self.wanted if m.id not in self.present.members)

    @property
    def leaving(self) -> tuple[int, ...]:
        return tuple(i for i in self.present.members if i not in self.wanted_ids)

    @property
    def is_only_addresses(self) -> bool:
        return not self.joining and not self.leaving


def plan_add(present: Membership, newcomers: Sequence[Member]) -> MemberPlan:
    """Raises Refusal."""
    members = _members(present)
    for newcomer in newcomers:
        known = members.get(newcomer.id)
        if known is None:
            members[newcomer.id] = newcomer
        elif newcomer.id in present.members:
            _check_same_disk(known, newcomer)
        elif not known.is_instance(newcomer.instance):
            raise Refusal(
                f"the safekeepers at {known.address} and {newcomer.address} have the same id "
                f"{newcomer.id}",
                hint="Start one of them on an empty data directory with an --id that no member "
                "has, or had.",
            )
    return _plan(present, members)


def plan_remove(present: Membership, ids: Sequence[int]) -> MemberPlan:
    """Raises Refusal."""
    members = {i: member for i, member in _members(present).items() if i not in ids}
    if not members:
        raise Refusal(
            "a log needs a member, and this would remove the last one",
            hint="sk timeline delete deletes a log for good; sk member replace puts another "
            "safekeeper in its place.",
        )
    return _plan(present, members)


def plan_replace(present: Membership, leaver: int, newcomer: Member) -> MemberPlan:
    """Raises Refusal."""
    members = _members(present)
    known = members.get(newcomer.id)
    if known is not None:
        _check_same_disk(known, newcomer)
        if leaver == newcomer.id:
            raise Refusal(
                f"safekeeper {newcomer.id} cannot replace itself",
                hint=f"When it has moved: sk member move {leaver} {newcomer.address}.",
            )
        if leaver in members:
            raise Refusal(
                f"safekeeper {newcomer.id} ({newcomer.address}) is a member already",
                hint=f"Name the address of a new one, or remove the other one: sk member remove "
                f"{leaver}.",
            )
        if present.generation == Stamp.FIRST.generation:
            raise _no_member(present, leaver)  # nobody was ever replaced here
        return _plan(present, members)
    if leaver not in members:
        raise _no_member(present, leaver)
    del members[leaver]
    members[newcomer.id] = newcomer
    return _plan(present, members)


def plan_move(present: Membership, moved: Member) -> MemberPlan:
    """To the address that it has in `moved`. Raises Refusal."""
    members = _members(present)
    if moved.id not in members:
        raise _no_member(present, moved.id)
    _check_same_disk(members[moved.id], moved)
    members[moved.id] = replace(moved, site=moved.site or members[moved.id].site)
    return _plan(present, members)


def _members(present: Membership) -> dict[int, Member]:
    """Of the set that a change begins with."""
    return {i: present.member(i) for i in present.members}


def _plan(present: Membership, members: dict[int, Member]) -> MemberPlan:
    wanted = tuple(members[i] for i in sorted(members))
    ids = tuple(member.id for member in wanted)
    if len(ids) > MEMBERS_MAX:
        raise Refusal(
            f"these would be {len(ids)} members, and a log has at most {MEMBERS_MAX}",
            hint="More members make commits slower, not safer: remove some first.",
        )
    if present.is_joint:
        if ids != present.new_members:
            raise Refusal(
                f"another change is under way: from members {_ids(present.members)} to "
                f"{_ids(present.new_members)}",
                hint="Wait for its end, which sk member list shows, or end it: sk member cancel.",
            )
        for member in wanted:
            _check_same_disk(present.member(member.id), member)
        return MemberPlan(present, wanted, Stage.UNDER_WAY)
    is_done = ids == present.members and all(_is_known(present, member) for member in wanted)
    return MemberPlan(present, wanted, Stage.DONE if is_done else Stage.NOT_BEGUN)


def _is_known(present: Membership, member: Member) -> bool:
    """A label that nobody gave says nothing."""
    known = present.member(member.id)
    is_labelled_so = member.site in ("", known.site)
    return (known.host, known.port) == (member.host, member.port) and is_labelled_so


def _check_same_disk(known: Member, found: Member) -> None:
    """Another instance under a member's id is another disk (A1). Raises Refusal."""
    if known.is_instance(found.instance):
        return
    raise Refusal(
        f"the safekeeper at {found.address} has the id of member {known.id}, but another data "
        f"directory (instance {found.instance.hex()}, the member's is {known.instance.hex()}): "
        "the promises that it gave are forgotten there",
        hint=NEW_ID_HINT.format(id=known.id),
    )


def _no_member(present: Membership, safekeeper_id: int) -> Refusal:
    return Refusal(
        f"safekeeper {safekeeper_id} is no member: they are {_ids(present.members)}",
        hint="sk member list shows them.",
    )


# ---- what an operator must know before


def check_quorums(
    plan: MemberPlan, alive: Collection[int], damaged: Mapping[int, str] = NOBODY
) -> None:
    """`alive`: who answers and has its data, newcomers among them. `damaged`: whose log is, and
    how. Such a one confirms commits, and gives no vote: the set that is wanted must do without it,
    as the next proposer could not be elected. Raises Refusal."""
    problem = _quorum_problem(plan.present.members, "present", alive, damaged)
    if problem:
        raise Refusal(
            f"no quorum: {problem}",
            hint=_mending(plan.present.members, damaged)
            or "Start them; sk member force is for disks that are lost for good.",
        )
    voting = [member for member in alive if member not in damaged]
    problem = _quorum_problem(plan.wanted_ids, "wanted", voting, damaged)
    if problem:
        raise Refusal(
            f"commits would wait for ever: {problem}",
            hint=_mending(plan.wanted_ids, damaged)
            or "Start them first, or replace the dead: sk member replace ID HOST:PORT.",
        )


def _quorum_problem(
    ids: Sequence[int], whose: str, able: Collection[int], damaged: Mapping[int, str]
) -> str:
    """ "" when a quorum of them is able."""
    unable = [i for i in ids if i not in able]
    needed = quorum_size(len(ids))
    if len(ids) - len(unable) >= needed:
        return ""
    why = "".join(f"; safekeeper {i} gives no vote: {damaged[i]}" for i in unable if i in damaged)
    return (
        f"only {len(ids) - len(unable)} of the {len(ids)} members {whose} are alive "
        f"({needed} are needed): {_ids(unable)} not{why}"
    )


def _mending(ids: Sequence[int], damaged: Mapping[int, str]) -> str:
    """What helps one of these that is damaged; "" when none is."""
    for member in ids:
        if member in damaged:
            return (
                "A proposer that runs mends it, if another member or the archive has what it "
                f"lacks; else replace it first: sk member replace {member} HOST:PORT."
            )
    return ""


def warnings_of(plan: MemberPlan) -> list[str]:
    """What is lawful, and perhaps not what is wanted."""
    count = len(plan.wanted)
    remarks = []
    if count % 2 == 0 and not plan.is_only_addresses:
        losses = (count - 1) // 2
        remarks.append(
            f"{count} members bear the loss of {losses or 'none'}, as {count - 1} do, and each "
            "commit waits for one more: use an odd number"
        )
    unknown = [m.id for m in plan.wanted if m.instance == UNKNOWN_INSTANCE]
    if unknown:
        remarks.append(
            f"who is at the address of {_ids(unknown)} is not known yet: it does not answer"
        )
    return remarks


def steps_of(plan: MemberPlan) -> list[str]:
    """What the leader will do, in order."""
    before, after = _ids(plan.present.members), _ids(plan.wanted_ids)
    if plan.stage is Stage.DONE:
        return [f"a quorum of {after} writes down that they are the members"]
    if plan.is_only_addresses:
        changed = [m for m in plan.wanted if not _is_known(plan.present, m)]
        moved = ", ".join(f"safekeeper {m.id} is at {_place(m)}" for m in changed)
        return [f"the members are told: {moved}"]
    steps = [
        f"safekeeper {member.id} ({member.address}) gets the log, and counts for nothing until it "
        "has caught up"
        for member in plan.joining
    ]
    steps.append(f"each commit needs a quorum of {before} and one of {after}")
    steps.append(f"the members are {after}")
    steps += [
        f"safekeeper {leaver} is told that it has left, and deletes its WAL"
        for leaver in plan.leaving
    ]
    return steps


def _place(member: Member) -> str:
    return f"{member.address}, site {member.site}" if member.site else member.address


def _ids(ids: Sequence[int]) -> str:
    return ", ".join(map(str, ids)) or "none"
