"""`Layout`: the members of each site, and what follows from that. Pure.

docs/topologies.md describes these three layouts. Delays are one way, and greater than those of most
networks of that kind, so that they exceed this machine's noise.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from benchmarks.site_cluster import Placement
from benchmarks.sites import Delays
from quorum_wal.consensus.quorum import quorum_size


@dataclass(frozen=True, slots=True)
class Layout:
    name: str
    sites: tuple[str, ...]
    delays: Delays
    placement: Placement

    @property
    def other_sites(self) -> tuple[str, ...]:
        """All sites but the primary's."""
        return tuple(site for site in self.sites if site != self.placement.primary)

    @property
    def nearest_site(self) -> str:
        """The other site that is nearest to the primary."""
        return min(self.other_sites, key=self._round_trip_ms)

    def survives(self, *lost: str) -> bool:
        """Whether the members at the remaining sites are a quorum."""
        left = [site for site in self.placement.members if site not in lost]
        return len(left) >= quorum_size(len(self.placement.members))

    def commit_round_trip_ms(self, down: Collection[int] = ()) -> float:
        """The round trip to the last member that a commit waits for, while `down` do not answer."""
        members = enumerate(self.placement.members, 1)
        times = sorted(self._round_trip_ms(site) for id, site in members if id not in down)
        return times[quorum_size(len(self.placement.members)) - 1]

    def members_at(self, site: str) -> tuple[int, ...]:
        """The ids of the members at this site."""
        return tuple(id for id, place in enumerate(self.placement.members, 1) if place == site)

    @property
    def chained(self) -> tuple[int, ...]:
        """With --via-sites: all members but the first of each other site."""
        return tuple(id for site in self.other_sites for id in self.members_at(site)[1:])

    def _round_trip_ms(self, site: str) -> float:
        """The round trip from the primary's site."""
        one, other = self.placement.primary, site
        if one == other:
            return 0.0
        pair = (one, other) if (one, other) in self.delays else (other, one)
        return 2 * self.delays[pair]


THREE_ZONES = Layout(
    name="three zones",
    sites=("a", "b", "c"),
    delays={("a", "b"): 5.0, ("a", "c"): 8.0, ("b", "c"): 6.0},
    placement=Placement(members=("a", "b", "c"), primary="a", standby="b"),
)
TWO_SITES = Layout(
    name="two sites and a witness",
    sites=("a", "b", "witness"),
    delays={("a", "b"): 10.0, ("a", "witness"): 15.0, ("b", "witness"): 15.0},
    placement=Placement(members=("a", "a", "b", "b", "witness"), primary="a", standby="b"),
)
FAR_COPY = Layout(
    name="a site and a far copy",
    sites=("near", "far"),
    delays={("near", "far"): 40.0},
    placement=Placement(
        members=("near", "near", "near", "far", "far"), primary="near", standby="far"
    ),
)
LAYOUTS = (THREE_ZONES, TWO_SITES, FAR_COPY)
