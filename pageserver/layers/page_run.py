"""`PageRun`: pages of a fork that are handled together: one alone costs more than its bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from pageserver.layers.fork import PAGE_BYTES, SEGMENT_BLOCKS, Fork
from pageserver.layers.touches import Numbers

#: Of one run that is read from a file.
RUN_BLOCKS_MAX = 512

#: Pages of one fork: their blocks, ascending, and their bytes.
Run: TypeAlias = "tuple[Numbers, memoryview]"


@dataclass(frozen=True, slots=True)
class PageRun:
    """`blocks` ascend; `data` has PAGE_BYTES for each."""

    fork: Fork
    blocks: Numbers
    data: memoryview

    def part(self, begin: int, end: int) -> PageRun:
        """Its pages from `begin` on, before `end`."""
        data = self.data[begin * PAGE_BYTES : end * PAGE_BYTES]
        return PageRun(self.fork, self.blocks[begin:end], data)

    def pages(self) -> Iterator[tuple[int, memoryview]]:
        """One by one."""
        for position, block in enumerate(self.blocks.tolist()):
            yield block, self.data[position * PAGE_BYTES : (position + 1) * PAGE_BYTES]


def consecutive(
    blocks: Numbers, blocks_max: int = RUN_BLOCKS_MAX
) -> Iterator[tuple[int, int, int]]:
    """(position, first block, count) of the longest runs without a gap, of one GiB file each."""
    if not len(blocks):
        return
    numbers = blocks.astype(np.int64)
    breaks = (np.diff(numbers) != 1) | (numbers[1:] % SEGMENT_BLOCKS == 0)
    starts = [0, *(np.flatnonzero(breaks) + 1).tolist(), len(numbers)]
    for begin, end in pairwise(starts):
        for at in range(begin, end, blocks_max):
            yield at, int(numbers[at]), min(end - at, blocks_max)
