"""When old layers become one: what a timeline keeps for ever has a bound. Pure.

    cuts        |  c1  |  c2  |  c3  |  c4  |  c5  |
                                  ^ horizon
    layers      [  1  ][  2  ][  3  ][  4  ][  5  ]        of 1, 2, 3 more than half is dead:
    afterwards  [         3'        ][  4  ][  5  ]        3' has each page as it is at c3

A page is dead when a newer layer up to the horizon has it again, or its fork is gone there, or is
shorter. Law: what ends above the horizon is read as it is, so only what ends at or below it is
merged, all of that together, and as of the horizon's cut. Below the horizon there is so never more
than twice what lives, but for what has come since somebody looked.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from pageserver.page_index import Cut, LayerRef, PageIndex
from pageserver.page_keys import LayerName

#: Of the pages of all layers up to the horizon. More are merged away.
DEAD_SHARE_MAX = 0.5
#: Layers up to the horizon. More are merged, dead or not: each is looked into for a page.
OLD_LAYERS_MAX = 1000


class MergePhase(Enum):
    SURVEYING = "surveying"  # how much of it is dead
    MERGING = "merging"  # the parts of the new layer are made, and uploaded
    ENDING = "ending"  # all are made, not all are uploaded


@dataclass(slots=True)
class Merge:
    """Of these layers, which may come to nothing. `number` is the shell's. `parts` are those of the
    new layer that have a name."""

    number: int
    cut: Cut
    layers: tuple[LayerRef, ...]
    phase: MergePhase = MergePhase.SURVEYING
    parts: list[LayerRef] = field(default_factory=list)
    missing: set[LayerName] = field(default_factory=set)

    @property
    def is_whole(self) -> bool:
        return self.phase is MergePhase.ENDING and not self.missing

    @property
    def names(self) -> frozenset[LayerName]:
        """Of what it has made."""
        return frozenset(part.name for part in self.parts)


def mergeable(index: PageIndex) -> tuple[LayerRef, ...]:
    """The layers at or below the horizon, all of them; none while they are of one cut."""
    old = tuple(layer for layer in index.layers if layer.end_lsn <= index.horizon_lsn)
    return old if len({layer.end_lsn for layer in old}) > 1 else ()


def planned_merge(index: PageIndex, number: int) -> Merge | None:
    """None: there is nothing to merge."""
    layers = mergeable(index)
    at_horizon = [cut for cut in index.cuts if cut.end_lsn == index.horizon_lsn]
    return Merge(number, at_horizon[0], layers) if layers and at_horizon else None


def is_worth_merging(merge: Merge, live_pages: int, all_pages: int) -> bool:
    """`live_pages` of them would be left."""
    if len({layer.end_lsn for layer in merge.layers}) > OLD_LAYERS_MAX:
        return True
    return all_pages - live_pages > DEAD_SHARE_MAX * all_pages
