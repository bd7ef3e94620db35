"""`LayerMerger`: surveys and merges layers in the store for one attachment. This may take hours.

    layers in the store -> live pages -> a part on the local disk -> handed over -> the next part

Law: it reads from the store and writes to its folder only; the caller uploads the parts. It stops
when the merge is cancelled: between two parts of a survey, or between two runs of pages.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import IO

from quorum_wal.pageserver.cuts.cut_pages import fetch_frame
from quorum_wal.pageserver.cuts.page_objects import PageObjects
from quorum_wal.pageserver.errors import PageserverError
from quorum_wal.pageserver.layers.fork_table import ForkTable
from quorum_wal.pageserver.layers.layer_file import PART_BYTES, Epoch, write_layer
from quorum_wal.pageserver.layers.layer_merge import live_pages, merged_limits, merged_pages
from quorum_wal.pageserver.layers.page_run import PageRun
from quorum_wal.pageserver.layers.page_stack import Layer
from quorum_wal.pageserver.layers.read_ahead import ReadAhead
from quorum_wal.pageserver.objects.page_index import Cut, LayerRef, PageIndex


class MergeCancelled(PageserverError):
    """The merge was cancelled."""


@dataclass(frozen=True, slots=True)
class MergeOrder:
    """Merge `layers` as of `cut`; `index` names its frame."""

    index: PageIndex
    cut: Cut
    layers: tuple[LayerRef, ...]


@dataclass(frozen=True, slots=True)
class LayerSurvey:
    """The number of pages of all layers, and of those that a merge would keep."""

    live_pages: int
    all_pages: int


class LayerMerger:
    """Works in `folder`. The worker thread calls `is_wanted`. Every method raises PageserverError:
    MergeCancelled, LayerDamaged; ObjectStoreError, OSError."""

    def __init__(
        self,
        objects: PageObjects,
        folder: Path,
        is_wanted: Callable[[], bool],
        *,
        part_bytes: int = PART_BYTES,
    ) -> None:
        self._objects = objects
        self._folder = folder
        self._is_wanted = is_wanted
        self._part_bytes = part_bytes

    def survey(self, order: MergeOrder) -> LayerSurvey:
        """Reads footers only."""
        lengths = self._lengths(order)
        layers = self._open(order.layers, None)
        live = sum(len(each.blocks) for each in live_pages(layers, lengths))
        return LayerSurvey(live, sum(layer.page_count for layer in layers))

    def merge(self, order: MergeOrder, base: ForkTable, hand_over: Callable[[Path], None]) -> None:
        """Hands over each part when it is complete, in order. `base`: the fork lengths in the base
        backup below all layers."""
        lengths = self._lengths(order)
        count = len({layer.end_lsn for layer in order.layers})
        layers = self._open(order.layers, ReadAhead(count))
        paths: list[Path] = []

        def open_part(number: int) -> IO[bytes]:
            if paths:
                hand_over(paths[-1])
            paths.append(self._folder / f"part-{number}")
            return paths[-1].open("wb")

        first = layers[0].parts[0].epoch
        epoch = Epoch(first.system_id, first.redo_lsn, order.cut.end_lsn)
        pages = self._while_wanted(merged_pages(layers, lengths))
        limits = merged_limits(layers, base)
        write_layer(epoch, limits, pages, open_part, part_bytes=self._part_bytes)
        hand_over(paths[-1])

    def _lengths(self, order: MergeOrder) -> ForkTable:
        """The lengths of all forks at the cut. Empties the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        path = self._folder / "frame.tar"
        try:
            return fetch_frame(self._objects, order.index, order.cut, path).forks
        finally:
            path.unlink(missing_ok=True)

    def _open(self, refs: Sequence[LayerRef], read_ahead: ReadAhead | None) -> list[Layer]:
        """Oldest first."""
        ordered = sorted(refs, key=lambda ref: (ref.end_lsn, ref.part))
        layers = []
        for _, parts in groupby(ordered, key=lambda ref: ref.end_lsn):
            opened = []
            for ref in parts:
                self._check_wanted()
                opened.append(self._objects.open_layer(ref, read_ahead))
            layers.append(Layer(opened))
        return layers

    def _while_wanted(self, pages: Iterator[PageRun]) -> Iterator[PageRun]:
        for run in pages:
            self._check_wanted()
            yield run

    def _check_wanted(self) -> None:
        if not self._is_wanted():
            raise MergeCancelled("the merge was cancelled")
