"""The plan after the permanent loss of a quorum: which log survives, and what may be lost. Pure.

Laws. (F2) The new stamp is above every stamp that a lost member may hold. Only one survivor becomes
the member, because a second one may lack WAL that the first one has removed. (F1) The lost members
must never come back. Only the operator can ensure that, so the operator names every one of them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from quorum_wal.cluster.change_line import ids_text
from quorum_wal.cluster.member_view import MemberState, MemberView, node_id_of
from quorum_wal.cluster.timeline_view import TimelineView
from quorum_wal.consensus.ids import NodeId
from quorum_wal.consensus.membership import Member, Membership, Stamp
from quorum_wal.consensus.membership_page import membership_of_page
from quorum_wal.consensus.quorum import has_quorum
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.walproposer.errors import Refusal

#: More than the number of terms that lost members may have promised since they were last seen.
TERMS_AHEAD = 1 << 20
UUID_BYTES = 16


@dataclass(frozen=True, slots=True)
class ForcePlan:
    """`keeper` becomes the only member by `membership`. `informed` are the other safekeepers that
    are sent it. `lost` are the destroyed members."""

    keeper: MemberView
    membership: Membership
    informed: tuple[MemberView, ...]
    lost: tuple[int, ...]
    end_lsn: Lsn
    commit_lsn: Lsn

    @property
    def warning(self) -> str:
        """The warning to show before the operator confirms."""
        return (
            f"Kept: the log of {self.keeper} up to {self.end_lsn}. It is known to be committed up "
            f"to {self.commit_lsn}.\n"
            f"Acknowledged commits above {self.commit_lsn} may be missing or replaced. Those above "
            f"{self.end_lsn} are lost, unless the old primary or a standby has them: run sk attach "
            "for that server.\n"
            f"Safekeepers {ids_text(self.lost)} must never come back: together they would form a "
            "second log. Destroy their disks."
        )


def plan_force(view: TimelineView, destroyed: Collection[int], uuid: bytes) -> ForcePlan:
    """`uuid`: 16 random bytes that identify this forced change. Raises Refusal."""
    _check_no_proposer(view)
    usable = [m for m in (*view.members, *view.others) if is_usable(m)]
    ids = [member.safekeeper_id for member in usable]
    if has_quorum(view.membership, ids):
        raise Refusal(
            f"a quorum of the members answers ({ids_text(ids)}): nothing is lost, so no change can "
            "be forced",
            hint="Replace the lost members: sk member replace ID HOST:PORT.",
        )
    _check_named(view, ids, destroyed)
    if not usable:
        raise Refusal(
            "no safekeeper that answers has a usable log",
            hint="sk restore makes a server from a backup and the archive.",
        )
    keeper = max(usable, key=_log_end)
    return ForcePlan(
        keeper=keeper,
        membership=_membership(view, keeper, uuid),
        informed=tuple(member for member in usable if member is not keeper),
        lost=tuple(sorted(destroyed)),
        end_lsn=_lsn(keeper, "flush_lsn"),
        commit_lsn=max(_lsn(member, "commit_lsn") for member in usable),
    )


def uninformed(view: TimelineView) -> list[MemberView]:
    """After an interrupted force: the safekeepers that still have an older membership. Empty unless
    the only member was forced."""
    is_forced = [bool((member.status or {}).get("forced")) for member in view.members]
    if is_forced != [True] or view.membership.is_joint:
        return []
    stamp = view.membership.stamp
    return [
        other
        for other in view.others
        if is_usable(other) and not other.is_followed and _membership_of(other).stamp < stamp
    ]


def is_usable(member: MemberView) -> bool:
    """It answers, and its log is not damaged."""
    is_active = member.state is MemberState.ACTIVE and member.status is not None
    return is_active and not member.damage


def _check_no_proposer(view: TimelineView) -> None:
    for member in (*view.members, *view.others):
        proposer = (member.status or {}).get("proposer")
        if proposer is not None:
            raise Refusal(
                f"a proposer ({proposer['address']}) streams to {member}",
                hint="Stop it first, and anything that would start it again.",
            )
    running = [str(proposer) for proposer in view.proposers if proposer.page is not None]
    if running:
        raise Refusal(
            f"{running[0]} runs for this timeline",
            hint="Stop it first, and anything that would start it again.",
        )


def _check_named(view: TimelineView, usable: Sequence[int], destroyed: Collection[int]) -> None:
    """Checks that exactly the unusable members were named."""
    members = view.membership.all_members
    for wrong in sorted(set(destroyed) - set(members)):
        raise Refusal(f"safekeeper {wrong} is not a member: they are {ids_text(members)}")
    for living in sorted(set(destroyed) & set(usable)):
        raise Refusal(
            f"safekeeper {living} answers, but was named as destroyed",
            hint="It may have the only copy of the log: leave it out of the command.",
        )
    unnamed = [m for m in view.members if m.safekeeper_id not in {*usable, *destroyed}]
    if unnamed:
        first = unnamed[0]
        why = f" ({first.reason})" if first.reason else ""
        state = "damaged" if first.damage else first.state.value
        raise Refusal(
            f"{first} is {state}{why}, and was not named as destroyed",
            hint="Start it, as it may have the missing WAL. If its disk is lost for good, name "
            f"it: sk member force {' '.join(map(str, sorted({*destroyed, first.safekeeper_id})))}",
        )


def _membership(view: TimelineView, keeper: MemberView, uuid: bytes) -> Membership:
    holders = [m for m in (*view.members, *view.others) if m.status is not None]
    memberships = [view.membership, *map(_membership_of, holders)]
    term = max(
        *(each.stamp.author.term for each in memberships),
        *(holder.promised.term for holder in holders),
    )
    stamp = Stamp(
        NodeId(term + TERMS_AHEAD, uuid), max(each.generation for each in memberships) + 1
    )
    listed = keeper.member or Member(keeper.safekeeper_id)
    known = Member(
        listed.id,
        bytes.fromhex(keeper.instance) if keeper.instance else listed.instance,
        listed.host,
        listed.port,
        keeper.site,
    )
    return Membership(stamp, (keeper.safekeeper_id,), (), (known,), is_forced=True)


def _membership_of(member: MemberView) -> Membership:
    assert member.status is not None
    return membership_of_page(member.status["membership"])


def _log_end(member: MemberView) -> tuple[NodeId, Lsn]:
    status = member.status or {}
    return node_id_of(status.get("last_log_node_id")), _lsn(member, "flush_lsn")


def _lsn(member: MemberView, name: str) -> Lsn:
    return Lsn.parse((member.status or {})[name])
