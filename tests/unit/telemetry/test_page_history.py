"""The samples behind the charts are bounded, and a gap stays a gap."""

from __future__ import annotations

from quorum_wal.telemetry.page.chart import HEIGHT, SERIES_MAX, WIDTH, chart
from quorum_wal.telemetry.page.history import NAMES_MAX, History


def test_it_forgets_the_oldest_samples_and_the_last_names() -> None:
    history = History(samples_max=3)
    for at in range(10):
        history.add(float(at), {f"name {n}": float(at) for n in range(NAMES_MAX + 5)})
    assert history.points("name 0") == ((2.0, 7.0), (1.0, 8.0), (0.0, 9.0))
    assert len(history.names("name")) == NAMES_MAX


def test_a_name_that_was_not_sampled_is_a_gap() -> None:
    history = History()
    for at, values in enumerate(({"a": 1.0}, {}, {"a": 3.0}, {"a": 4.0})):
        history.add(2.0 * at, values)
    assert history.points("a") == ((6.0, 1.0), (4.0, None), (2.0, 3.0), (0.0, 4.0))
    assert history.rates("a") == ((4.0, None), (2.0, None), (0.0, 0.5))
    drawn = chart("A", [("", history.points("a"))], str)
    assert drawn is not None
    assert drawn.lines[0].path.count("M") == 2


def test_a_position_that_goes_back_is_no_negative_rate() -> None:
    history = History()
    history.add(0.0, {"a": 9.0})
    history.add(1.0, {"a": 2.0})
    assert history.rates("a") == ((0.0, 0.0),)


def test_a_chart_spans_from_the_oldest_sample_to_now() -> None:
    drawn = chart("A", [("", ((120.0, 0.0), (60.0, 10.0), (0.0, 5.0)))], lambda v: f"{v:.0f} B")
    assert drawn is not None
    assert drawn.lines[0].path == (
        f"M0.0 {HEIGHT:.1f}L{WIDTH / 2:.1f} 0.0L{WIDTH:.1f} {HEIGHT / 2:.1f}"
    )
    assert (drawn.begins, drawn.greatest) == ("2 min ago", "10 B")
    assert drawn.summary == "A, now 5 B; at most 10 B in the last 2 min"


def test_a_chart_of_zeros_lies_at_the_bottom_and_one_of_nothing_is_none() -> None:
    drawn = chart("A", [("", ((2.0, 0.0), (0.0, 0.0)))], str)
    assert drawn is not None
    assert f" {HEIGHT:.1f}" in drawn.lines[0].path
    assert chart("A", [], str) is None
    assert chart("A", [("", ((0.0, None),))], str) is None


def test_more_series_than_can_be_told_apart_are_counted() -> None:
    drawn = chart("A", [(f"{n}", ((0.0, 1.0),)) for n in range(SERIES_MAX + 2)], str)
    assert drawn is not None
    assert len(drawn.lines) == SERIES_MAX
    assert drawn.left_out == 2
