"""The members: a stamped set of safekeepers, joint during a change.

Laws (ConfigSafety, Monotone): equal stamps mean equal memberships. On a safekeeper and in a
proposer the stamp never decreases.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from msgspec import Struct

from quorum_wal.consensus.errors import ConsensusError
from quorum_wal.consensus.ids import NodeId

MEMBERS_MAX = 9
INSTANCE_BYTES = 8
UNKNOWN_INSTANCE = bytes(INSTANCE_BYTES)
TEXT_BYTES_MAX = 255  # of a host, of a site


class MembershipError(ConsensusError):
    """An impossible set of members (invalid_parameter_value)."""

    sqlstate = "22023"


class Stamp(Struct, frozen=True, order=True, gc=False):
    """The author of a membership, and the number of changes; ordered as a pair (condition M1)."""

    author: NodeId
    generation: int

    #: The stamp of a new timeline.
    FIRST: ClassVar[Stamp]

    def __str__(self) -> str:
        return f"{self.author}/{self.generation}"


Stamp.FIRST = Stamp(NodeId.ZERO, 1)


@dataclass(frozen=True, slots=True, order=True)
class Member:
    """One safekeeper of a membership. Id and instance identify it; the address is a hint.

    `instance` is the 8 random bytes of its data directory: another instance under this id is
    another disk. Zeros, an empty host and port 0 mean unknown (in a timeline of an older release).
    """

    id: int
    instance: bytes = UNKNOWN_INSTANCE
    host: str = ""
    port: int = 0
    #: The operator's name for its place; "" if none was given.
    site: str = ""

    def __post_init__(self) -> None:
        if self.id < 1:
            raise MembershipError(f"member ids must be above 0, got {self.id}")
        if len(self.instance) != INSTANCE_BYTES:
            raise MembershipError(f"instance of {len(self.instance)} bytes, not {INSTANCE_BYTES}")
        if len(self.host.encode()) > TEXT_BYTES_MAX or not 0 <= self.port <= 0xFFFF:
            raise MembershipError(f"invalid address of member {self.id}: {self.address[:80]}")
        if len(self.site.encode()) > TEXT_BYTES_MAX:
            raise MembershipError(f"site of member {self.id} is longer than {TEXT_BYTES_MAX} bytes")

    @property
    def address(self) -> str:
        """`host:port`, `[v6]:port`; "" if unknown."""
        if not self.host:
            return ""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def is_instance(self, instance: bytes) -> bool:
        """Whether `instance` may be this member's; an unknown one matches any (condition A1)."""
        return self.instance in (UNKNOWN_INSTANCE, instance)


@dataclass(frozen=True, slots=True)
class Membership:
    """`new_members` is empty except in a joint membership. Ids ascend.

    `roster` identifies the members, by ascending id; of a member that is not in it only the id is
    known. `is_forced`: an operator once made one safekeeper the only member, so acknowledged
    commits may be missing in the log. Every later membership keeps this mark.
    """

    stamp: Stamp
    members: tuple[int, ...]
    new_members: tuple[int, ...] = ()
    roster: tuple[Member, ...] = ()
    is_forced: bool = False

    def __post_init__(self) -> None:
        if not 1 <= len(self.members) <= MEMBERS_MAX or len(self.new_members) > MEMBERS_MAX:
            count = max(len(self.members), len(self.new_members))
            raise MembershipError(f"expected 1 to {MEMBERS_MAX} members, got {count}")
        for group in (self.members, self.new_members):
            if list(group) != sorted(set(group)) or any(i < 1 for i in group):
                raise MembershipError(f"member ids must be distinct, ascending, above 0: {group}")
        named = [member.id for member in self.roster]
        if named != sorted(set(named)) or not {*named} <= {*self.members, *self.new_members}:
            raise MembershipError(
                f"roster of {tuple(named)} in a membership of {self.all_members}: ids must be "
                "distinct, ascending, and in a set"
            )

    @property
    def generation(self) -> int:
        return self.stamp.generation

    @property
    def is_joint(self) -> bool:
        return bool(self.new_members)

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The sets that must each give a quorum: one, or two in a joint membership."""
        return (self.members, self.new_members) if self.new_members else (self.members,)

    @property
    def all_members(self) -> tuple[int, ...]:
        """All safekeepers that store this log."""
        return tuple(sorted({*self.members, *self.new_members}))

    def member(self, member_id: int) -> Member:
        """The member; only its id, if nothing else is known."""
        for member in self.roster:
            if member.id == member_id:
                return member
        return Member(member_id)

    def stamped(self, stamp: Stamp) -> Membership:
        """The same sets and addresses under another stamp."""
        return replace(self, stamp=stamp)

    def joint_with(self, stamp: Stamp, new: tuple[Member, ...]) -> Membership:
        """Enters a change: the present members, and `new` (ascending ids)."""
        roster = {m.id: m for m in self.roster if m.id in self.members} | {m.id: m for m in new}
        return replace(
            self,
            stamp=stamp,
            new_members=tuple(m.id for m in new),
            roster=tuple(roster[i] for i in sorted(roster)),
        )

    def left_to(self, stamp: Stamp, members: tuple[int, ...]) -> Membership:
        """Leaves a joint membership, to one of its sets."""
        assert members in self.groups
        roster = tuple(m for m in self.roster if m.id in members)
        return replace(self, stamp=stamp, members=members, new_members=(), roster=roster)

    def listed_as(self, stamp: Stamp, roster: tuple[Member, ...]) -> Membership:
        """Equal sets, other addresses or labels (rule 10)."""
        return replace(self, stamp=stamp, roster=roster)
