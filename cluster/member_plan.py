"""The plan of a command that changes the members: its stage, and the set that it leads to. Pure.

    present membership + command -> MemberPlan -> checks -> a request to the leader

Repeating the command after a crash gives the same plan. The plan starts from the set before the
change, and a joint membership still contains that set.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from quorum_wal.consensus.membership import MEMBERS_MAX, UNKNOWN_INSTANCE, Member, Membership, Stamp
from quorum_wal.consensus.quorum import quorum_size
from quorum_wal.walproposer.errors import Refusal

#: A hint that gives the command for a safekeeper with a new data directory.
NEW_ID_HINT = (
    "Start it on an empty data directory with an --id that no member has, or had, and name its "
    "address: sk member replace {id} HOST:PORT."
)

UNDAMAGED: Mapping[int, str] = {}


class Stage(Enum):
    NOT_BEGUN = "not begun"
    UNDER_WAY = "under way"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class MemberPlan:
    """`wanted`: the members after the change, by ascending id. `stage` is computed from `present`;
    the plan does not know whether a quorum has `present` on disk."""

    present: Membership
    wanted: tuple[Member, ...]
    stage: Stage

    @property
    def wanted_ids(self) -> tuple[int, ...]:
        return tuple(member.id for member in self.wanted)

    @property
    def joining(self) -> tuple[Member, ...]:
        """The wanted members that are not in the present set."""
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
            "a log needs at least one member, and this command would remove the last one",
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
                hint="If it has moved to another address: sk member move "
                f"{leaver} {newcomer.address}",
            )
        if leaver in members:
            raise Refusal(
                f"safekeeper {newcomer.id} ({newcomer.address}) is already a member",
                hint="Name the address of a new safekeeper, or remove the old one: "
                f"sk member remove {leaver}",
            )
        if present.generation == Stamp.FIRST.generation:
            raise _no_member(present, leaver)  # no member of this log was ever replaced
        return _plan(present, members)
    if leaver not in members:
        raise _no_member(present, leaver)
    del members[leaver]
    members[newcomer.id] = newcomer
    return _plan(present, members)


def plan_move(present: Membership, moved: Member) -> MemberPlan:
    """`moved` has the new address. Raises Refusal."""
    members = _members(present)
    if moved.id not in members:
        raise _no_member(present, moved.id)
    _check_same_disk(members[moved.id], moved)
    members[moved.id] = replace(moved, site=moved.site or members[moved.id].site)
    return _plan(present, members)


def _members(present: Membership) -> dict[int, Member]:
    """The members before the change."""
    return {i: present.member(i) for i in present.members}


def _plan(present: Membership, members: dict[int, Member]) -> MemberPlan:
    wanted = tuple(members[i] for i in sorted(members))
    ids = tuple(member.id for member in wanted)
    if len(ids) > MEMBERS_MAX:
        raise Refusal(
            f"the change would lead to {len(ids)} members, but a log has at most {MEMBERS_MAX}",
            hint="More members make commits slower, not safer. Remove members first.",
        )
    if present.is_joint:
        if ids != present.new_members:
            raise Refusal(
                f"another change is under way: from members {_ids(present.members)} to "
                f"{_ids(present.new_members)}",
                hint="Wait for its end (sk member list shows it), or cancel it: sk member cancel.",
            )
        for member in wanted:
            _check_same_disk(present.member(member.id), member)
        return MemberPlan(present, wanted, Stage.UNDER_WAY)
    is_done = ids == present.members and all(_is_known(present, member) for member in wanted)
    return MemberPlan(present, wanted, Stage.DONE if is_done else Stage.NOT_BEGUN)


def _is_known(present: Membership, member: Member) -> bool:
    """Whether the membership has this address and label. A missing label is not compared."""
    known = present.member(member.id)
    is_labelled_so = member.site in ("", known.site)
    return (known.host, known.port) == (member.host, member.port) and is_labelled_so


def _check_same_disk(known: Member, found: Member) -> None:
    """Another instance under a member's id means another disk (A1). Raises Refusal."""
    if known.is_instance(found.instance):
        return
    raise Refusal(
        f"the safekeeper at {found.address} has the id of member {known.id}, but another data "
        f"directory (instance {found.instance.hex()}, the member has {known.instance.hex()}): it "
        "lacks the promises that the member gave",
        hint=NEW_ID_HINT.format(id=known.id),
    )


def _no_member(present: Membership, safekeeper_id: int) -> Refusal:
    return Refusal(
        f"safekeeper {safekeeper_id} is not a member: they are {_ids(present.members)}",
        hint="sk member list shows the members.",
    )


# ---- checks and warnings before a change


def check_quorums(
    plan: MemberPlan, alive: Collection[int], damaged: Mapping[int, str] = UNDAMAGED
) -> None:
    """`alive`: the safekeepers, also new ones, that answer and have their data. `damaged`: those
    with a damaged log, and the reason. A damaged one confirms commits but does not vote. So the
    wanted set needs a quorum without them, to elect the next proposer. Raises Refusal."""
    problem = _quorum_problem(plan.present.members, "present", alive, damaged)
    if problem:
        raise Refusal(
            f"no quorum: {problem}",
            hint=_repair_hint(plan.present.members, damaged)
            or "Start them. If their disks are lost for good, use sk member force.",
        )
    voting = [member for member in alive if member not in damaged]
    problem = _quorum_problem(plan.wanted_ids, "wanted", voting, damaged)
    if problem:
        raise Refusal(
            f"commits would wait for ever: {problem}",
            hint=_repair_hint(plan.wanted_ids, damaged)
            or "Start them first, or replace them: sk member replace ID HOST:PORT.",
        )


def _quorum_problem(
    ids: Sequence[int], whose: str, able: Collection[int], damaged: Mapping[int, str]
) -> str:
    """ "" if enough of `ids` for a quorum are in `able`."""
    unable = [i for i in ids if i not in able]
    needed = quorum_size(len(ids))
    if len(ids) - len(unable) >= needed:
        return ""
    why = "".join(f"; safekeeper {i} does not vote: {damaged[i]}" for i in unable if i in damaged)
    return (
        f"only {len(ids) - len(unable)} of the {len(ids)} members {whose} are alive "
        f"({needed} are needed); not alive: {_ids(unable)}{why}"
    )


def _repair_hint(ids: Sequence[int], damaged: Mapping[int, str]) -> str:
    """The hint for the first damaged one of `ids`; "" if none is damaged."""
    for member in ids:
        if member in damaged:
            return (
                "A running proposer repairs it, if another member or the archive has the missing "
                f"WAL. Otherwise replace it first: sk member replace {member} HOST:PORT."
            )
    return ""


def warnings_of(plan: MemberPlan) -> list[str]:
    """Warnings about an allowed change that is probably not intended."""
    count = len(plan.wanted)
    remarks = []
    if count % 2 == 0 and not plan.is_only_addresses:
        losses = (count - 1) // 2
        remarks.append(
            f"{count} members tolerate the loss of {losses or 'none'}, no more than {count - 1} "
            "would, but each commit waits for one more: use an odd number"
        )
    unknown = [m.id for m in plan.wanted if m.instance == UNKNOWN_INSTANCE]
    if unknown:
        remarks.append(
            f"the data directory of {_ids(unknown)} is not known yet: it does not answer"
        )
    return remarks


def steps_of(plan: MemberPlan) -> list[str]:
    """The steps of the leader, in order."""
    before, after = _ids(plan.present.members), _ids(plan.wanted_ids)
    if plan.stage is Stage.DONE:
        return [f"a quorum of {after} writes this membership to disk"]
    if plan.is_only_addresses:
        changed = [m for m in plan.wanted if not _is_known(plan.present, m)]
        moved = ", ".join(f"safekeeper {m.id} is at {_place(m)}" for m in changed)
        return [f"the members are informed: {moved}"]
    steps = [
        f"safekeeper {member.id} ({member.address}) receives the log, and is not counted until it "
        "has caught up"
        for member in plan.joining
    ]
    steps.append(f"each commit needs a quorum of {before} and one of {after}")
    steps.append(f"the members are {after}")
    steps += [
        f"safekeeper {leaver} is informed that it has left, and deletes its WAL"
        for leaver in plan.leaving
    ]
    return steps


def _place(member: Member) -> str:
    return f"{member.address}, site {member.site}" if member.site else member.address


def _ids(ids: Sequence[int]) -> str:
    return ", ".join(map(str, ids)) or "none"
