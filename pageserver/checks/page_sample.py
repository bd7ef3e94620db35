"""Chooses the pages that a check reads: all, or a uniform random sample of all files. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping
from itertools import accumulate
from random import Random

import numpy as np

from quorum_wal.pageserver.layers.fork import Fork
from quorum_wal.pageserver.layers.touches import Numbers


def choose_pages(
    lengths: Mapping[Fork, int], count: int | None, rng: Random
) -> dict[Fork, Numbers]:
    """Ordered by fork and block. `count` None chooses all pages."""
    forks = sorted(fork for fork, length in lengths.items() if length)
    ends = list(accumulate(lengths[fork] for fork in forks))
    total = ends[-1] if ends else 0
    if count is None or count >= total:
        return {fork: np.arange(lengths[fork], dtype=np.uint32) for fork in forks}
    chosen: dict[Fork, list[int]] = defaultdict(list)
    for number in sorted(rng.sample(range(total), count)):
        at = bisect_right(ends, number)
        chosen[forks[at]].append(number - ends[at] + lengths[forks[at]])
    return {fork: np.array(blocks, np.uint32) for fork, blocks in chosen.items()}
