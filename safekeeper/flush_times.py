"""How long flushes took, counted for a histogram.

Plain arrays: the commit path counts without a lock and, compiled, without the interpreter. Two
timelines that count at once may lose a count, which does not matter for a histogram.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left

#: The upper bounds of the buckets; one more bucket has the longer times.
BOUNDS_SECONDS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)


class FlushTimes:
    def __init__(self) -> None:
        self.bounds = memoryview(array("d", BOUNDS_SECONDS))
        #: By bucket; a bucket includes its bound.
        self.counts = memoryview(array("Q", bytes(8 * (len(BOUNDS_SECONDS) + 1))))
        self.sum_us = memoryview(array("Q", [0]))

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS_SECONDS, seconds)] += 1
        self.sum_us[0] += int(seconds * 1e6)
