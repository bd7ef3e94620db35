"""Merges several layers into one, as of the cut at the end of the newest of them.

    layer 3   [p2*]              for each fork and block, in order: the newest image of each live
    layer 2   | limit 5 |        page
    layer 1   [p2][p7]           -> [p2*], limit 5

Laws. A page is live if no newer layer contains it, no newer layer has a limit at or below it, and
its fork is longer at that cut. Pages of the base that were removed stay removed: limits are kept,
except those above all pages of the base. `compaction.py` decides which layers are merged.

Memory: 4 bytes for each page of the layers (the footers), one run of pages, and the buffers of
`ReadAhead`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from quorum_wal.pageserver.layers.fork import PAGE_BYTES, Fork
from quorum_wal.pageserver.layers.layer_file import Limits
from quorum_wal.pageserver.layers.page_run import RUN_BLOCKS_MAX, PageRun, Run
from quorum_wal.pageserver.layers.touches import Database, Numbers


class MergedLayer(Protocol):
    """The part of a layer's interface that is needed here."""

    @property
    def limits(self) -> Limits: ...

    @property
    def forks(self) -> Iterable[Fork]:
        """The forks of its pages."""

    def blocks(self, fork: Fork) -> Numbers:
        """The blocks of this fork that the layer contains, sorted."""

    def read(self, fork: Fork, blocks: Numbers) -> Iterator[Run]:
        """Yields those of the sorted `blocks` that the layer contains."""


@dataclass(frozen=True, slots=True)
class LivePages:
    """The live `blocks` of a fork, sorted, and for each the number of the layer with its newest
    image."""

    fork: Fork
    blocks: Numbers
    layers: Numbers


def live_pages(layers: Sequence[MergedLayer], lengths: Mapping[Fork, int]) -> Iterator[LivePages]:
    """One item for each fork, in order. `layers` are ordered oldest first. `lengths` are fork
    lengths in pages, at the cut at the end of the last layer."""
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
    """`having` and `limits` contain numbers of layers. Iterates from the newest layer to the
    oldest, so that the first occurrence of each block is the newest."""
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
    """The pages of the merged layer, for `write_layer`. Raises PageserverError."""
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
            assert filled == len(blocks), "a layer contains the pages that its footer lists"
            yield PageRun(live.fork, blocks, pages.reshape(-1).data)


def merged_limits(layers: Sequence[MergedLayer], base: Mapping[Fork, int]) -> Limits:
    """The removed pages of the base, whose fork lengths are `base`."""
    databases = frozenset[Database]().union(*(layer.limits.databases for layer in layers))
    blocks: dict[Fork, int] = {}
    for layer in layers:
        for fork, limit in layer.limits.blocks.items():
            blocks[fork] = min(limit, blocks.get(fork, limit))
    existing = {Database(fork.tablespace, fork.database) for fork in base}
    return Limits(
        {fork: limit for fork, limit in blocks.items() if base.get(fork, 0) > limit},
        databases & existing,
    )
