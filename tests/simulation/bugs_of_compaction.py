"""Planted bugs of pageservers: which layers are merged, how, and when the result is named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from quorum_wal.pageserver.attachments import compaction
from quorum_wal.pageserver.attachments.attachment import Attachment
from quorum_wal.pageserver.attachments.attachment_events import Condemn
from quorum_wal.pageserver.attachments.compaction import Merge, MergePhase
from quorum_wal.pageserver.layers import layer_merge
from quorum_wal.pageserver.layers.fork import Fork
from quorum_wal.pageserver.layers.layer_merge import LivePages
from quorum_wal.pageserver.objects.page_index import PageIndex

from . import pageserver_history
from .pageserver_history import NO_LIMITS
from .planting import Patch, plant_pageserver

# ---- which layers


@plant_pageserver
def layers_above_the_horizon_are_merged(patch: Patch) -> None:
    """All existing layers are merged, at the newest cut."""

    def naive(index: PageIndex, number: int) -> Merge | None:
        many = len({layer.end_lsn for layer in index.layers}) > 1
        return Merge(number, index.cuts[-1], index.layers) if many else None

    patch(compaction, "planned_merge", naive)


@plant_pageserver
def one_layer_is_left_out_of_a_merge(patch: Patch) -> None:
    """The oldest layer was merged before; the others replace it, too."""
    planned = compaction.planned_merge

    def naive(index: PageIndex, number: int) -> Merge | None:
        merge = planned(index, number)
        if merge is not None:
            first_lsn = min(layer.end_lsn for layer in merge.layers)
            above = tuple(layer for layer in merge.layers if layer.end_lsn > first_lsn)
            return Merge(number, merge.cut, above)
        return None

    removed = PageIndex.with_merged

    def with_merged(self: PageIndex, parts: Any, merged: Any) -> PageIndex:
        old = [layer for layer in self.layers if layer.end_lsn <= max(m.end_lsn for m in merged)]
        return removed(self, parts, old)

    patch(compaction, "planned_merge", naive)
    patch(PageIndex, "with_merged", with_merged)


# ---- how


@plant_pageserver
def newest_page_is_dropped_by_a_merge(patch: Patch) -> None:
    """The first image that is found counts."""

    def naive(
        layers: Sequence[Any], fork: Fork, having: Sequence[int], _: Any, length: int
    ) -> LivePages:
        blocks = [own[own < length] for own in (layers[n].blocks(fork) for n in having)]
        owners = [np.full(len(own), n) for n, own in zip(having, blocks, strict=True)]
        alive, first = np.unique(np.concatenate(blocks), return_index=True)
        return LivePages(fork, alive, np.concatenate(owners)[first])

    patch(layer_merge, "_live", naive)


@plant_pageserver
def pages_of_a_dropped_fork_return(patch: Patch) -> None:
    """Its number is used again at the cut, so it is taken for the same fork."""
    live = layer_merge._live

    def naive(
        layers: Sequence[Any], fork: Fork, having: Sequence[int], _: Mapping[int, int], length: int
    ) -> LivePages:
        return live(layers, fork, having, {}, length)

    patch(layer_merge, "_live", naive)


@plant_pageserver
def limits_are_lost_by_a_merge(patch: Patch) -> None:
    """The new layer has all live pages, but dead ones are found in the base."""
    patch(pageserver_history, "merged_limits", lambda *_: NO_LIMITS)


# ---- when


@plant_pageserver
def merged_layers_are_deleted_before_the_index(patch: Patch) -> None:
    """All parts of the new layer are in the store."""
    apply = Attachment._apply_merge

    def naive(self: Attachment) -> None:
        merge = self.compaction.merge
        apply(self)
        if merge is not None and merge.is_complete:
            self._actions.append(Condemn(tuple(layer.name for layer in merge.layers)))

    patch(Attachment, "_apply_merge", naive)


@plant_pageserver
def layer_named_before_its_last_part(patch: Patch) -> None:
    """The finished parts are in the store."""
    is_complete = property(lambda self: bool(self.parts) and not self.missing)
    patch(Merge, "is_complete", is_complete)


@plant_pageserver
def layer_named_before_its_upload(patch: Patch) -> None:
    """There are no more parts; the last ones are being uploaded."""
    patch(Merge, "is_complete", property(lambda self: self.phase is MergePhase.ENDING))


@plant_pageserver
def parts_of_a_merge_are_orphans(patch: Patch) -> None:
    """No index names them, and a merge may take longer than the grace."""
    patch(Merge, "names", property(lambda _: frozenset()))
