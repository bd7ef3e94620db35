"""The order of measurements, and conclusions from them: ratios of pairs, and the control.

round 0    A  B  C  D      every round measures every setup once
round 1    A  D  C  B      rotated, and every second one backwards, so that a setup does not always
round 2    C  D  A  B      follow the same one, or always have the disk first
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar


class Sample(Protocol):
    """The measurement of one setup in one round; its figures are attributes."""

    @property
    def setup(self) -> str: ...

    @property
    def round(self) -> int: ...


T = TypeVar("T")
S = TypeVar("S", bound=Sample)


def interleaved(setups: Sequence[T], rounds: int) -> Iterator[tuple[int, T]]:
    """(round, setup) in the order of measurement."""
    for number in range(rounds):
        turn = number % len(setups)
        order = [*setups[turn:], *setups[:turn]]
        for setup in reversed(order) if number % 2 else order:
            yield number, setup


@dataclass(frozen=True, slots=True)
class Spread:
    """The median is the figure; the least and the greatest value show its accuracy."""

    median: float
    least: float
    greatest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))

    def format(self, decimals: int) -> str:
        """`1.02 [0.97 .. 1.11]`"""
        median, least, greatest = (
            f"{value:.{decimals}f}" for value in (self.median, self.least, self.greatest)
        )
        return f"{median} [{least} .. {greatest}]"


def samples_of(samples: Sequence[S], setup: str) -> list[S]:
    """In the order of rounds."""
    return sorted((s for s in samples if s.setup == setup), key=lambda s: s.round)


def paired_ratios(samples: Sequence[S], figure: str, setup: str, reference: str) -> Spread:
    """The setup's figure / the reference's in the same round. Other figures of two setups must not
    be compared."""
    pairs = zip(samples_of(samples, setup), samples_of(samples, reference), strict=True)
    return Spread.of([getattr(own, figure) / getattr(other, figure) for own, other in pairs])


def paired_differences(
    samples: Sequence[S], figure: str, setup: str, reference: str, of_reference: str = ""
) -> Spread:
    """The setup's figure - the reference's in the same round. `of_reference`: another figure of the
    reference in the same unit."""
    pairs = zip(samples_of(samples, setup), samples_of(samples, reference), strict=True)
    other_figure = of_reference or figure
    return Spread.of([getattr(own, figure) - getattr(other, other_figure) for own, other in pairs])


@dataclass(frozen=True, slots=True)
class Verdict:
    """A target, the measured value, and the value of the control (peer against peer)."""

    claim: str
    measured: Spread
    limit: float
    at_least: bool
    control: Spread | None = None
    unit: str = ""

    @property
    def is_met(self) -> bool:
        median = self.measured.median
        return median >= self.limit if self.at_least else median <= self.limit

    def format(self) -> str:
        """One line: the claim, whether it is met, the measured value, and the control."""
        text = f"{self.claim}: {'met' if self.is_met else 'MISSED'}, "
        text += self.measured.format(2) + self.unit
        return text if self.control is None else f"{text}; control {self.control.format(2)}"
