"""Which members take the log from another member, as the operator wants it. Pure.

It only says who may be whose source; `stream/chains.py` begins and ends the chains by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from consensus.membership import Membership


@dataclass(frozen=True, slots=True)
class ChainRule:
    """`via`: by the id of a member, that of its source. `by_sites`: besides, a member at another
    site than `site`, which is the proposer's, has the first one at its own that streams."""

    via: Mapping[int, int] = field(default_factory=dict)
    site: str = ""
    by_sites: bool = False

    def sources_of(self, member_id: int, membership: Membership) -> tuple[int, ...]:
        """Who may be the source, best first; who finds itself there is to stream directly."""
        if member_id in self.via:
            return (self.via[member_id],)
        site = membership.member(member_id).site
        if not self.by_sites or not site or site == self.site:
            return ()
        return tuple(i for i in membership.all_members if membership.member(i).site == site)

    def problems(self, membership: Membership) -> list[str]:
        """What of it means nothing for these members: perhaps a word was mistyped."""
        members = {*membership.all_members}
        problems = [
            f"safekeeper {i} of --via {member_id}={source_id} is no member"
            for member_id, source_id in self.via.items()
            for i in (member_id, source_id)
            if i not in members
        ]
        sites = sorted({site for i in members if (site := membership.member(i).site)})
        if self.by_sites and self.site not in sites:
            there = ", ".join(sites) or "none"
            problems.append(f'no member stands at site "{self.site}"; the sites are: {there}')
        return problems


NO_CHAINS = ChainRule()
