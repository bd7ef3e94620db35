"""The last minutes of a few numbers: a ring of samples. Pure: the caller gives the time.

Law: memory is bounded, by the samples and by the names in each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from itertools import pairwise

SAMPLE_SECONDS = 2.0
SAMPLES_MAX = 600  # 20 minutes
NAMES_MAX = 64

#: (seconds ago, value); None where it was not known.
Points = tuple[tuple[float, float | None], ...]


class History:
    """One thread adds, any may read."""

    def __init__(self, samples_max: int = SAMPLES_MAX) -> None:
        self._samples: deque[tuple[float, Mapping[str, float]]] = deque(maxlen=samples_max)

    def add(self, at: float, values: Mapping[str, float]) -> None:
        """`at` in seconds of a clock that never goes back. Of more than NAMES_MAX the first."""
        kept = dict(list(values.items())[:NAMES_MAX])
        self._samples.append((at, kept))

    def names(self, prefix: str) -> list[str]:
        """Those that begin so, in the order in which they came."""
        found = {name: None for _, values in list(self._samples) for name in values}
        return [name for name in found if name.startswith(prefix)]

    def points(self, name: str) -> Points:
        """The oldest first; the newest sample is 0 seconds ago."""
        samples = list(self._samples)
        if not samples:
            return ()
        now = samples[-1][0]
        return tuple((now - at, values.get(name)) for at, values in samples)

    def rates(self, name: str) -> Points:
        """By how much it grew a second, between one sample and the next."""
        points = self.points(name)
        return tuple(
            (ago, _rate(before, value, before_ago - ago))
            for (before_ago, before), (ago, value) in pairwise(points)
        )


def _rate(before: float | None, value: float | None, seconds: float) -> float | None:
    if before is None or value is None or seconds <= 0:
        return None
    return max(0.0, (value - before) / seconds)
