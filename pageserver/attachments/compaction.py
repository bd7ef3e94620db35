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

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from pageserver.attachments.attachment_events import (
    Action,
    CompactDue,
    LayersMerged,
    LayersSurveyed,
    MergeFailed,
    MergeLayers,
    PartMerged,
    SurveyLayers,
    Upload,
)
from pageserver.objects.page_index import Cut, LayerRef, PageIndex
from pageserver.objects.page_keys import LayerName, StoredName

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


CompactionEvent: TypeAlias = CompactDue | LayersSurveyed | PartMerged | LayersMerged | MergeFailed
#: (end LSN, part, size in bytes) -> a reference that no other object has
NamePart: TypeAlias = "Callable[[int, int, int], LayerRef]"


class Compaction:
    """Of an attachment: one merge at a time."""

    def __init__(self) -> None:
        self.merge: Merge | None = None
        #: The layers of the last survey: of just these the answer is known.
        self._surveyed: tuple[LayerRef, ...] = ()

    @property
    def names(self) -> frozenset[LayerName]:
        """Of parts that are on their way, or wait for others."""
        return self.merge.names if self.merge is not None else frozenset()

    def step(self, event: CompactionEvent, index: PageIndex, name_part: NamePart) -> list[Action]:
        """`index`: what the next one will say."""
        if isinstance(event, CompactDue):
            return self._plan(planned_merge(index, event.number))
        merge = self.merge
        if merge is None or merge.number != event.number:
            return []  # late: of one that was given up
        match event:
            case LayersSurveyed(number, live_pages, all_pages):
                if is_worth_merging(merge, live_pages, all_pages):
                    merge.phase = MergePhase.MERGING
                    return [MergeLayers(number, merge.cut, merge.layers)]
                self.merge = None
            case PartMerged(number, size_bytes):
                part = len(merge.parts)
                ref = name_part(merge.cut.end_lsn, part, size_bytes)
                merge.parts.append(ref)
                merge.missing.add(ref.name)
                return [Upload(number, part, ref)]
            case LayersMerged():
                merge.phase = MergePhase.ENDING
            case MergeFailed():
                self.merge, self._surveyed = None, ()
        return []

    def _plan(self, merge: Merge | None) -> list[Action]:
        if merge is None or self.merge is not None or merge.layers == self._surveyed:
            return []
        self.merge, self._surveyed = merge, merge.layers
        return [SurveyLayers(merge.number, merge.cut, merge.layers)]

    def uploaded(self, name: StoredName) -> None:
        if self.merge is not None and isinstance(name, LayerName):
            self.merge.missing.discard(name)

    def is_missing(self, name: StoredName) -> bool:
        return self.merge is not None and name in self.merge.missing

    def take_whole(self) -> Merge | None:
        """One whose parts are all in the store; it is not this one's any more."""
        merge = self.merge
        if merge is None or not merge.is_whole:
            return None
        self.merge = None
        return merge
