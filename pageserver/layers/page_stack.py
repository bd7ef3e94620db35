"""`PageStack`: the pages of a cut, read from the layers up to it and the base below them.

    layer 3   [p2*]           newest first: the first layer that contains a page has its image
    layer 2   | limit 5 |     pages at or above a limit are removed from all older layers
    layer 1   [p2][p7]
    base      [p0][p1][p2]..

Law: a page is all zeros if its fork was truncated below it or created again, and no layer since
then contains it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from quorum_wal.pageserver.layers.fork import PAGE_BYTES, Fork
from quorum_wal.pageserver.layers.layer_file import LayerPart, Limits
from quorum_wal.pageserver.layers.page_run import Run
from quorum_wal.pageserver.layers.touches import Numbers

ZERO_PAGE = bytes(PAGE_BYTES)
#: A page that is in no layer: either in the base, if it has it, or removed and all zeros.
IN_BASE, ZEROED = -1, -2
Owners: TypeAlias = "npt.NDArray[np.int32]"


class PageBase(Protocol):
    """Pages below all layers: a base backup."""

    def read(self, fork: Fork, blocks: Numbers) -> Iterator[Run]:
        """Yields those of the sorted `blocks` that it has, in order. Raises PageserverError."""


class Layer:
    """The parts of one layer, in order."""

    def __init__(self, parts: Sequence[LayerPart]) -> None:
        self.parts = tuple(parts)
        self.limits: Limits = parts[0].limits

    @property
    def page_count(self) -> int:
        return sum(part.page_count for part in self.parts)

    @property
    def forks(self) -> frozenset[Fork]:
        """The forks of its pages."""
        return frozenset(fork for part in self.parts for fork in part.forks)

    def blocks(self, fork: Fork) -> Numbers:
        """The blocks of this fork that the layer contains, sorted."""
        return np.concatenate([part.blocks(fork) for part in self.parts])

    def read(self, fork: Fork, blocks: Numbers) -> Iterator[Run]:
        """Yields those of the sorted `blocks` that the layer contains."""
        for part in self.parts:
            yield from part.read(fork, blocks)


class LayerStack:
    """The layers of a cut without their base, ordered oldest first."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._layers = tuple(layers)

    def owners(self, fork: Fork, first: int, count: int) -> Owners:
        """The source of each of `count` blocks from `first` on: the number of a layer, IN_BASE or
        ZEROED."""
        owners = np.full(count, IN_BASE, np.int32)
        for number, layer in enumerate(self._layers):
            limit = layer.limits.of(fork)
            if limit is not None:
                owners[max(limit - first, 0) :] = ZEROED
            blocks = layer.blocks(fork)
            begin, end = np.searchsorted(blocks, (first, first + count)).tolist()
            owners[blocks[begin:end].astype(np.int64) - first] = number
        return owners

    def read(self, number: int, fork: Fork, blocks: Numbers) -> Iterator[Run]:
        """Reads sorted blocks that the layer contains. Raises PageserverError."""
        return self._layers[number].read(fork, blocks)


class PageStack:
    """`layers` are ordered oldest first."""

    def __init__(self, base: PageBase, layers: Sequence[Layer]) -> None:
        self._base = base
        self._layers = tuple(layers)

    def read(self, fork: Fork, blocks: Numbers) -> Iterator[Run]:
        """Yields these pages in no particular order. A page that is in no layer and not in the base
        is omitted: it is all zeros. Raises PageserverError."""
        wanted = np.asarray(blocks, np.uint32)
        for layer in reversed(self._layers):
            if not len(wanted):
                return
            here = np.isin(wanted, layer.blocks(fork), assume_unique=True)
            yield from layer.read(fork, wanted[here])
            wanted = wanted[~here]
            limit = layer.limits.of(fork)
            if limit is not None:
                wanted = wanted[wanted < limit]
        if len(wanted):
            yield from self._base.read(fork, wanted)


def read_one(source: PageBase, fork: Fork, block: int) -> bytes:
    """The page, or zeros if the source does not have it. Raises PageserverError."""
    for _, page in source.read(fork, np.array([block], np.uint32)):
        return bytes(page)
    return ZERO_PAGE
