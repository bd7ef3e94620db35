"""`PageRun`: pages of a fork that are processed together, to save the cost of each call."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from quorum_wal.pageserver.layers.fork import PAGE_BYTES, SEGMENT_BLOCKS, Fork
from quorum_wal.pageserver.layers.touches import Numbers

#: Limit for one run read from a file.
RUN_BLOCKS_MAX = 512

#: Blocks of one fork in ascending order, and the bytes of their pages.
Run: TypeAlias = "tuple[Numbers, memoryview]"


@dataclass(frozen=True, slots=True)
class PageRun:
    """`blocks` ascend; `data` has PAGE_BYTES for each."""

    fork: Fork
    blocks: Numbers
    data: memoryview

    def part(self, begin: int, end: int) -> PageRun:
        """Its pages in [begin, end)."""
        data = self.data[begin * PAGE_BYTES : end * PAGE_BYTES]
        return PageRun(self.fork, self.blocks[begin:end], data)

    def pages(self) -> Iterator[tuple[int, memoryview]]:
        """(block, page) of each page."""
        for position, block in enumerate(self.blocks.tolist()):
            yield block, self.data[position * PAGE_BYTES : (position + 1) * PAGE_BYTES]


def consecutive(
    blocks: Numbers, blocks_max: int = RUN_BLOCKS_MAX
) -> Iterator[tuple[int, int, int]]:
    """(position, first block, count) of the longest runs without a gap, each within one segment."""
    if not len(blocks):
        return
    numbers = blocks.astype(np.int64)
    breaks = (np.diff(numbers) != 1) | (numbers[1:] % SEGMENT_BLOCKS == 0)
    starts = [0, *(np.flatnonzero(breaks) + 1).tolist(), len(numbers)]
    for begin, end in pairwise(starts):
        for at in range(begin, end, blocks_max):
            yield at, int(numbers[at]), min(end - at, blocks_max)
