"""Which sites may be lost without stopping commits, from the site labels of the members. Pure.

Commits go on after the loss of a site if a quorum of each set is at other sites. A member without a
label is at no site. Members that are down are not counted, so the answer describes the present
state.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from quorum_wal.consensus.membership import Membership
from quorum_wal.consensus.quorum import has_quorum


@dataclass(frozen=True, slots=True)
class SiteLosses:
    """Names of sites. Pairs consist of two sites that may each be lost alone."""

    survived: tuple[str, ...]
    not_survived: tuple[str, ...]
    survived_pairs: tuple[tuple[str, str], ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "survived": list(self.survived),
            "not_survived": list(self.not_survived),
            "survived_pairs": [list(pair) for pair in self.survived_pairs],
        }

    def __str__(self) -> str:
        parts = []
        if self.survived:
            each = "any one site" if not self.not_survived else "site " + _or(self.survived)
            parts.append(f"the loss of {each} is survived")
        if self.not_survived:
            parts.append(f"that of site {_or(self.not_survived)} is not")
        if self.survived_pairs:
            pairs = ", ".join(f"{one} and {other}" for one, other in self.survived_pairs)
            parts.append(f"pairs that may be lost: {pairs}")
        return "sites: " + "; ".join(parts)


def site_losses(
    membership: Membership, sites: Mapping[int, str], down: Collection[int] = ()
) -> SiteLosses | None:
    """`sites` by member id, "" for no label. Returns None if no member has a label."""
    up = [member for member in membership.all_members if member not in down]
    names = sorted({site for site in (sites.get(m, "") for m in membership.all_members) if site})
    if not names:
        return None

    def survives(*lost: str) -> bool:
        return has_quorum(membership, [m for m in up if sites.get(m, "") not in lost])

    survived = tuple(name for name in names if survives(name))
    return SiteLosses(
        survived,
        tuple(name for name in names if name not in survived),
        tuple(pair for pair in combinations(survived, 2) if survives(*pair)),
    )


def _or(names: tuple[str, ...]) -> str:
    return " or ".join(names)
