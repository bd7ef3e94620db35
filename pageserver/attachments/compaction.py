"""Decides when old layers are merged, which limits the size that a timeline keeps. Pure.

    cuts        |  c1  |  c2  |  c3  |  c4  |  c5  |
                                  ^ horizon
    layers      [  1  ][  2  ][  3  ][  4  ][  5  ]        more than half of 1, 2, 3 is dead:
    afterwards  [         3'        ][  4  ][  5  ]        3' has each page as of c3

A page is dead if a newer layer up to the horizon contains it, or if its fork at the horizon is
dropped or shorter. Law: layers that end above the horizon are not changed. All layers that end at
or below it are merged together, as of the horizon's cut. So the layers below the horizon never have
more than twice the size of their live pages, except for growth since the last survey.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from quorum_wal.pageserver.attachments.attachment_events import (
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
from quorum_wal.pageserver.objects.page_index import Cut, LayerRef, PageIndex
from quorum_wal.pageserver.objects.page_keys import LayerName, StoredName

#: Share of dead pages in the layers up to the horizon. A greater share starts a merge.
DEAD_SHARE_MAX = 0.5
#: Number of layers up to the horizon, because each page read may search all of them. A greater
#: number starts a merge, even if no page is dead.
OLD_LAYERS_MAX = 1000


class MergePhase(Enum):
    SURVEYING = "surveying"  # counting dead pages
    MERGING = "merging"  # writing and uploading the parts of the new layer
    ENDING = "ending"  # all parts are written, not all are uploaded


@dataclass(slots=True)
class Merge:
    """A merge of `layers`, which may be given up. `number` is assigned by the shell. `parts` are
    the parts of the new layer that have a name."""

    number: int
    cut: Cut
    layers: tuple[LayerRef, ...]
    phase: MergePhase = MergePhase.SURVEYING
    parts: list[LayerRef] = field(default_factory=list)
    missing: set[LayerName] = field(default_factory=set)

    @property
    def is_complete(self) -> bool:
        return self.phase is MergePhase.ENDING and not self.missing

    @property
    def names(self) -> frozenset[LayerName]:
        """Names of the parts written so far."""
        return frozenset(part.name for part in self.parts)


def mergeable(index: PageIndex) -> tuple[LayerRef, ...]:
    """All layers at or below the horizon; empty if they all belong to one cut."""
    old = tuple(layer for layer in index.layers if layer.end_lsn <= index.horizon_lsn)
    return old if len({layer.end_lsn for layer in old}) > 1 else ()


def planned_merge(index: PageIndex, number: int) -> Merge | None:
    """Returns None if there are no layers to merge."""
    layers = mergeable(index)
    at_horizon = [cut for cut in index.cuts if cut.end_lsn == index.horizon_lsn]
    return Merge(number, at_horizon[0], layers) if layers and at_horizon else None


def is_worth_merging(merge: Merge, live_pages: int, all_pages: int) -> bool:
    """`live_pages` is the number of pages that the merge would keep."""
    if len({layer.end_lsn for layer in merge.layers}) > OLD_LAYERS_MAX:
        return True
    return all_pages - live_pages > DEAD_SHARE_MAX * all_pages


CompactionEvent: TypeAlias = CompactDue | LayersSurveyed | PartMerged | LayersMerged | MergeFailed
#: (end LSN, part, size in bytes) -> a reference with a name not used before
NamePart: TypeAlias = "Callable[[int, int, int], LayerRef]"


class Compaction:
    """The merges of one attachment, one at a time."""

    def __init__(self) -> None:
        self.merge: Merge | None = None
        #: The layers of the last survey. The same layers are not surveyed twice.
        self._surveyed: tuple[LayerRef, ...] = ()

    @property
    def names(self) -> frozenset[LayerName]:
        """Names of parts that are being uploaded, or that wait for other parts."""
        return self.merge.names if self.merge is not None else frozenset()

    def step(self, event: CompactionEvent, index: PageIndex, name_part: NamePart) -> list[Action]:
        """`index` is the planned contents of the next index."""
        if isinstance(event, CompactDue):
            return self._plan(planned_merge(index, event.number))
        merge = self.merge
        if merge is None or merge.number != event.number:
            return []  # a late event of a merge that was given up
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

    def take_complete(self) -> Merge | None:
        """Removes and returns the merge if all its parts are in the store, else returns None."""
        merge = self.merge
        if merge is None or not merge.is_complete:
            return None
        self.merge = None
        return merge
