"""What the layouts of docs/topologies.md survive, and which member a commit waits for."""

from __future__ import annotations

from itertools import combinations

import pytest

from benchmarks.layout import FAR_COPY, LAYOUTS, THREE_ZONES, TWO_SITES, Layout


@pytest.mark.parametrize(
    ("layout", "survived"),
    [
        (THREE_ZONES, {("a",), ("b",), ("c",)}),
        (TWO_SITES, {("a",), ("b",), ("witness",)}),
        (FAR_COPY, {("far",)}),
    ],
    ids=lambda value: value.name if isinstance(value, Layout) else "",
)
def test_losses_survived(layout: Layout, survived: set[tuple[str, ...]]) -> None:
    losses = [pair for count in (1, 2) for pair in combinations(layout.sites, count)]
    assert {loss for loss in losses if layout.survives(*loss)} == survived


@pytest.mark.parametrize(
    ("layout", "down", "round_trip_ms"),
    [
        (THREE_ZONES, (), 10),
        (THREE_ZONES, (1,), 16),  # both others are needed
        (THREE_ZONES, (2,), 16),
        (TWO_SITES, (), 20),
        (TWO_SITES, (1,), 20),  # both of b
        (TWO_SITES, (3,), 20),
        (TWO_SITES, (3, 4), 30),  # the witness
        (FAR_COPY, (), 0),
        (FAR_COPY, (1,), 80),
        (FAR_COPY, (4, 5), 0),
    ],
)
def test_the_member_that_a_commit_waits_for(
    layout: Layout, down: tuple[int, ...], round_trip_ms: float
) -> None:
    assert layout.commit_round_trip_ms(down) == round_trip_ms


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_a_standby_is_elsewhere(layout: Layout) -> None:
    assert layout.placement.standby in layout.other_sites
    assert layout.nearest_site in layout.other_sites
