"""Who the members are: a generation-numbered set of safekeeper ids, joint while it changes.

Law (ConfigSafety): an equal generation means an equal configuration.
"""

from __future__ import annotations

from dataclasses import dataclass

from consensus.errors import ConsensusError

MEMBERS_MAX = 9


class MembershipError(ConsensusError):
    """An impossible set of members (invalid_parameter_value)."""

    sqlstate = "22023"


@dataclass(frozen=True, slots=True)
class Membership:
    """`new_members` is empty except in a joint configuration. Ids ascend."""

    generation: int
    members: tuple[int, ...]
    new_members: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= len(self.members) <= MEMBERS_MAX:
            raise MembershipError(f"expected 1 to {MEMBERS_MAX} members, got {len(self.members)}")
        for group in (self.members, self.new_members):
            if list(group) != sorted(set(group)) or any(i < 1 for i in group):
                raise MembershipError(f"member ids must be distinct, ascending, above 0: {group}")

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The sets that each must give a quorum: one, or two in a joint configuration."""
        return (self.members, self.new_members) if self.new_members else (self.members,)

    @property
    def all_members(self) -> tuple[int, ...]:
        """Everybody who stores this log."""
        return tuple(sorted({*self.members, *self.new_members}))
