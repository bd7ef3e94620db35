"""`time_chart`: bars over time as SVG in HTML. Pure.

    bytes, at most 1.2 GiB in a bar
    0,0 ────────────── slots,0         the greatest sum
     │    ▄▄ ██ ▄▄                     x: a slot for each unit of time; y: stacked series
    0,100 ─────────── slots,100        zero
    2026-11-21 23:58:00     2026-11-22 00:28:00
    ■ Heap ■ Btree

Law: the SVG has no text and is stretched to the width of the page. The text is HTML around it,
which a browser wraps, so that no label covers another one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from html import escape

#: a series: the value at each time
Series = Mapping[datetime, int]

_HEIGHT = 100
#: the part of a slot that the bar fills
_BAR_WIDTH = 0.9
#: Okabe and Ito's colours, which people with colour blindness can tell apart, and grey
COLOURS = (
    "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b8a800", "#888888",
)  # fmt: skip
_UNITS_SECONDS = (3600, 60, 1)


def time_chart(title: str, series: Mapping[str, Series], text: Callable[[int], str]) -> str:
    """HTML. `series` by name, from the bottom up, at most as many as there are COLOURS; all times
    are whole seconds, minutes or hours. `text` prints a value."""
    assert len(series) <= len(COLOURS)
    times = sorted({time for values in series.values() for time in values})
    if not times:
        return ""
    first, last = times[0], times[-1]
    unit = _unit_seconds(times)
    slots = round((last - first).total_seconds() / unit) + 1
    top = max(sum(values.get(time, 0) for values in series.values()) for time in times)
    bars = []
    for time in times:
        below = 0
        slot = round((time - first).total_seconds() / unit)
        for (name, values), colour in zip(series.items(), COLOURS, strict=False):
            if value := values.get(time, 0):
                below += value
                label = f"{_time_text(time)} {name}: {text(value)}"
                bars.append(_bar(slot, below / top, value / top, colour, label))
    head = f"{title}, at most {text(top)} in a bar"
    return (
        f'<p class="axis">{escape(head)}</p>'
        f'<svg role="img" aria-label="{escape(head)}" viewBox="0 0 {slots} {_HEIGHT}" '
        f'preserveAspectRatio="none">{"".join(bars)}</svg>'
        f'<p class="axis ends"><span>{_time_text(first)}</span>'
        f"<span>{_time_text(last)}</span></p>{_legend(series)}"
    )


def _unit_seconds(times: Sequence[datetime]) -> int:
    """The greatest unit of which all times are multiples."""
    for seconds in _UNITS_SECONDS:
        if all((time.minute * 60 + time.second) % seconds == 0 for time in times):
            return seconds
    raise AssertionError("a time that is not a whole second")


def _bar(slot: int, upper: float, share: float, colour: str, label: str) -> str:
    return (
        f'<rect x="{slot}" y="{_HEIGHT * (1 - upper):.2f}" width="{_BAR_WIDTH}" '
        f'height="{_HEIGHT * share:.2f}" fill="{colour}"><title>{escape(label)}</title></rect>'
    )


def _legend(series: Mapping[str, Series]) -> str:
    if len(series) == 1:
        return ""
    entries = "".join(
        f'<li><span class="swatch" style="background:{colour}"></span>{escape(name)}</li>'
        for name, colour in zip(series, COLOURS, strict=False)
    )
    return f'<ul class="legend">{entries}</ul>'


def _time_text(time: datetime) -> str:
    return time.isoformat(sep=" ", timespec="seconds")
