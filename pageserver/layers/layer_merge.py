"""Several layers as one, as of the cut that the newest of them ends at.

    layer 3   [p2*]              fork by fork, in their order, block by block: of each page that is
    layer 2   | limit 5 |        alive the newest image
    layer 1   [p2][p7]           -> [p2*], limit 5

Laws. A page is alive when no newer layer has it, no newer layer's limit is at or below it, and its
fork is longer at that cut. What is gone of the base stays gone: limits are kept, but those that no
page of the base lies at or above. Nothing here says what is worth merging (`compaction.py`).

Memory: of each page of the layers 4 bytes (their footers), one run of pages, and what
`SideBySide` keeps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from pageserver.layers.fork import PAGE_BYTES, Fork
from pageserver.layers.layer_file import Limits
from pageserver.layers.page_run import RUN_BLOCKS_MAX, PageRun, Run
from pageserver.layers.touches import Database, Numbers


class MergedLayer(Protocol):
    """As much of a layer as is needed here."""

    @property
    def limits(self) -> Limits: ...

    @property
    def forks(self) -> Iterable[Fork]:
        """Of its pages."""

    def blocks(self, fork: Fork) -> Numbers:
        """Those of its pages that are here, sorted."""

    def read(self, fork: Fork, blocks: Numbers) -> Iterator[Run]:
        """Of these, sorted, those that are here."""


@dataclass(frozen=True, slots=True)
class LivePages:
    """Of a fork: `blocks`, sorted; of each, the number of the layer that has it last."""

    fork: Fork
    blocks: Numbers
    layers: Numbers


def live_pages(layers: Sequence[MergedLayer], lengths: Mapping[Fork, int]) -> Iterator[LivePages]:
    """Fork by fork, in their order. `layers` oldest first; `lengths` in pages, of the forks at the
    cut that the last one ends at."""
    having: defaultdict[Fork, list[int]] = defaultdict(list)
    limits: defaultdict[Fork, dict[int, int]] = defaultdict(dict)
    fresh: defaultdict[Database, dict[int, int]] = defaultdict(dict)
    for number, layer in enumerate(layers):
        for fork in layer.forks:
            having[fork].append(number)
        for fork, limit in layer.limits.blocks.items():
            limits[fork][number] = limit
        for database in layer.limits.databases:
            fresh[database][number] = 0
    for fork in sorted(having):
        own = {**limits[fork], **fresh[Database(fork.tablespace, fork.database)]}
        found = _live(layers, fork, having[fork], own, lengths.get(fork, 0))
        if len(found.blocks):
            yield found


def _live(
    layers: Sequence[MergedLayer],
    fork: Fork,
    having: Sequence[int],
    limits: Mapping[int, int],
    length: int,
) -> LivePages:
    """`having` and `limits` are by the numbers of layers. Newest first, so that the first of each
    block is the one that counts."""
    blocks: list[Numbers] = []
    owners: list[Numbers] = []
    has = set(having)
    for number in sorted(has | limits.keys(), reverse=True):
        if number in has:
            own = layers[number].blocks(fork)
            own = own[own < length]
            blocks.append(own)
            owners.append(np.full(len(own), number, np.uint32))
        length = min(length, limits.get(number, length))
    alive, first = np.unique(np.concatenate(blocks), return_index=True)
    return LivePages(fork, alive, np.concatenate(owners)[first])


def merged_pages(layers: Sequence[MergedLayer], lengths: Mapping[Fork, int]) -> Iterator[PageRun]:
    """For `write_layer`. Raises PageserverError."""
    for live in live_pages(layers, lengths):
        for at in range(0, len(live.blocks), RUN_BLOCKS_MAX):
            blocks = live.blocks[at : at + RUN_BLOCKS_MAX]
            owners = live.layers[at : at + RUN_BLOCKS_MAX]
            pages = np.empty((len(blocks), PAGE_BYTES), np.uint8)
            filled = 0
            for owner in np.unique(owners).tolist():
                for found, data in layers[owner].read(live.fork, blocks[owners == owner]):
                    places = np.searchsorted(blocks, found)
                    pages[places] = np.frombuffer(data, np.uint8).reshape(-1, PAGE_BYTES)
                    filled += len(found)
            assert filled == len(blocks), "a layer has the pages that it says it has"
            yield PageRun(live.fork, blocks, pages.reshape(-1).data)


def merged_limits(layers: Sequence[MergedLayer], base: Mapping[Fork, int]) -> Limits:
    """What is gone of the base, in which the forks have these lengths."""
    databases = frozenset[Database]().union(*(layer.limits.databases for layer in layers))
    blocks: dict[Fork, int] = {}
    for layer in layers:
        for fork, limit in layer.limits.blocks.items():
            blocks[fork] = min(limit, blocks.get(fork, limit))
    there = {Database(fork.tablespace, fork.database) for fork in base}
    return Limits(
        {fork: limit for fork, limit in blocks.items() if base.get(fork, 0) > limit},
        databases & there,
    )
