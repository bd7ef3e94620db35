"""Charts: lines over the last minutes, as paths of SVG. Pure.

    0,0 ──────────────── WIDTH,0        the greatest value
     │        ╭─╮                       x: the oldest sample ... now
    0,HEIGHT ─────── WIDTH,HEIGHT       zero

The text stands beside the SVG, which is stretched to the room that there is. A short history fills
the width, but less than SPAN_SECONDS_MIN do not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from quorum_wal.telemetry.page.history import Points

WIDTH, HEIGHT = 300, 80
SPAN_SECONDS_MIN = 60.0
SERIES_MAX = 5


@dataclass(frozen=True, slots=True)
class Line:
    """One series. `path` is the d of an SVG path; `number` chooses colour and dashes."""

    name: str
    latest: str
    path: str
    number: int


@dataclass(frozen=True, slots=True)
class Chart:
    """`begins` names the left end; `summary` says in words what the lines show."""

    title: str
    lines: tuple[Line, ...]
    greatest: str
    begins: str
    summary: str
    left_out: int = 0


def chart(
    title: str, series: Sequence[tuple[str, Points]], text: Callable[[float], str]
) -> Chart | None:
    """`text` prints a value. None when nothing was sampled."""
    shown = series[:SERIES_MAX]
    values = [value for _, points in shown for _, value in points if value is not None]
    if not values:
        return None
    top = max(values)
    span_seconds = max(SPAN_SECONDS_MIN, *(ago for _, points in shown for ago, _ in points))
    lines = tuple(
        Line(name, _latest(points, text), _path(points, top, span_seconds), number)
        for number, (name, points) in enumerate(shown)
    )
    now = ", ".join(f"{line.name}: {line.latest}" if line.name else line.latest for line in lines)
    span = f"{span_seconds:.0f} s" if span_seconds < 120 else f"{span_seconds / 60:.0f} min"
    summary = f"{title}, now {now}; at most {text(top)} in the last {span}"
    return Chart(title, lines, text(top), f"{span} ago", summary, len(series) - len(shown))


def _latest(points: Points, text: Callable[[float], str]) -> str:
    value = points[-1][1] if points else None
    return text(value) if value is not None else "unknown"


def _path(points: Points, top: float, span_seconds: float) -> str:
    """A gap where the value was not known."""
    parts, is_open = [], False
    for ago, value in points:
        if value is None:
            is_open = False
            continue
        x = WIDTH * (1 - ago / span_seconds)
        y = HEIGHT * (1 - (value / top if top > 0 else 0.0))
        parts.append(f"{'L' if is_open else 'M'}{x:.1f} {y:.1f}")
        is_open = True
    return "".join(parts)
