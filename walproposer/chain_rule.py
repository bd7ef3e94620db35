"""Which members take the log from another member, as the operator configured it. Pure.

It only names the permitted sources. `stream/chains.py` begins and ends the chains.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from quorum_wal.consensus.membership import Membership


@dataclass(frozen=True, slots=True)
class ChainRule:
    """`via`: the id of a member's source, by the id of the member. `by_sites`: in addition, the
    source of a member at another site than `site`, that of the proposer, is the first member at its
    site that streams."""

    via: Mapping[int, int] = field(default_factory=dict)
    site: str = ""
    by_sites: bool = False

    def sources_of(self, member_id: int, membership: Membership) -> tuple[int, ...]:
        """The permitted sources, best first. If the list has the member itself, it streams
        directly."""
        if member_id in self.via:
            return (self.via[member_id],)
        site = membership.member(member_id).site
        if not self.by_sites or not site or site == self.site:
            return ()
        return tuple(i for i in membership.all_members if membership.member(i).site == site)

    def problems(self, membership: Membership) -> list[str]:
        """The parts of the rule that match no member, perhaps because of a typing error."""
        members = {*membership.all_members}
        problems = [
            f"safekeeper {i} of --via {member_id}={source_id} is not a member"
            for member_id, source_id in self.via.items()
            for i in (member_id, source_id)
            if i not in members
        ]
        sites = sorted({site for i in members if (site := membership.member(i).site)})
        if self.by_sites and self.site not in sites:
            there = ", ".join(sites) or "none"
            problems.append(f'no member is at site "{self.site}"; the sites are: {there}')
        return problems


NO_CHAINS = ChainRule()
