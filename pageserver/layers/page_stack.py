"""`PageStack`: pages of a cut, out of the layers up to it and the base below them.

    layer 3   [p2*]           newest first: the first that has a page has it as it is
    layer 2   | limit 5 |     what is at or above a limit is gone in all that is below
    layer 1   [p2][p7]
    base      [p0][p1][p2]..

Law: a page that no layer has since its fork was last as short, or made anew, is all zeros.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from pageserver.layers.fork import PAGE_BYTES, Fork
from pageserver.layers.layer_file import LayerPart, Limits
from pageserver.layers.page_run import Run
from pageserver.layers.touches import Numbers

ZERO_PAGE = bytes(PAGE_BYTES)
#: Of a page that no layer has: it is in the base, if there; it is gone there, and all zeros.
IN_BASE, ZEROED = -1, -2
Owners: TypeAlias = "npt.NDArray[np.int32]"


class PageBase(Protocol):
    """What is below all layers: a base backup."""

    def read(self, fork: Fork, blocks: Numbers) -> Iterator[Run]:
        """Of these, sorted, those that it has, in that order. Raises PageserverError."""


class Layer:
    """Parts of one epoch, in order."""

    def __init__(self, parts: Sequence[LayerPart]) -> None:
        self.parts = tuple(parts)
        self.limits: Limits = parts[0].limits

    @property
    def page_count(self) -> int:
        return sum(part.page_count for part in self.parts)

    @property
    def forks(self) -> frozenset[Fork]:
        """Of its pages."""
        return frozenset(fork for part in self.parts for fork in part.forks)

    def blocks(self, fork: Fork) -> Numbers:
        """Those of its pages that are here, sorted."""
        return np.concatenate([part.blocks(fork) for part in self.parts])

    def read(self, fork: Fork, blocks: Numbers) -> Iterator[Run]:
        """Of these, sorted, those that are here."""
        for part in self.parts:
            yield from part.read(fork, blocks)


class LayerStack:
    """The layers of a cut without their base, `layers` oldest first."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._layers = tuple(layers)

    def owners(self, fork: Fork, first: int, count: int) -> Owners:
        """For each of `count` blocks from `first` on who has it as it is at the cut: the number of
        a layer, IN_BASE or ZEROED."""
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
        """Of a layer, these blocks, sorted, which it has. Raises PageserverError."""
        return self._layers[number].read(fork, blocks)


class PageStack:
    """`layers` oldest first."""

    def __init__(self, base: PageBase, layers: Sequence[Layer]) -> None:
        self._base = base
        self._layers = tuple(layers)

    def read(self, fork: Fork, blocks: Numbers) -> Iterator[Run]:
        """These pages, in no order; one that is in no layer and not in the base is left out: it is
        all zeros. Raises PageserverError."""
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
    """That page; zeros when the source has none. Raises PageserverError."""
    for _, page in source.read(fork, np.array([block], np.uint32)):
        return bytes(page)
    return ZERO_PAGE
