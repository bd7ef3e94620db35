"""A console of Rich that prints texts of other services as text: see `telemetry/printable.py`."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from quorum_wal.telemetry.printable import printable


class PlainConsole(Console):
    """Rich removes only some control characters from texts, and leaves escape sequences."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control is None:
                yield Segment(printable(segment.text), segment.style)
            else:
                yield segment
