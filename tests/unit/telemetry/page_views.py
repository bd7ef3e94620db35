"""Views of a page to render, with a text of one's choice wherever a text from outside comes in."""

from __future__ import annotations

from datetime import UTC, datetime

from quorum_wal.telemetry.page.chart import chart
from quorum_wal.telemetry.page.page_view import Cell, Choice, Headline, PageView, Setting, Table
from quorum_wal.telemetry.page.picture import Link, Node, Picture
from quorum_wal.telemetry.page.tone import Tone
from quorum_wal.telemetry.recent_events import Event

NOW = datetime(2026, 1, 31, 12, 0, 30, tzinfo=UTC)


def page_view(text: str = "text") -> PageView:
    """All that a page can have."""
    nodes = (Node("a", text, text, Tone.OK, text), Node("b", text, text, Tone.BAD, text))
    lines = [(text, ((4.0, 1.0), (2.0, None), (0.0, 3.0))), (text, ((0.0, 2.0),))]
    found = chart(text, lines, lambda value: f"{value:.0f} {text}")
    assert found is not None
    return PageView(
        service=text,
        name=text,
        headline=Headline(text, f"{text}; {text}", Tone.WARN),
        read_at=NOW,
        picture=Picture(((nodes[0],), (nodes[1],)), (Link("a", "b", Tone.WARN, text),)),
        charts=(found,),
        tables=(Table(text, (text,), ((Cell(text, Tone.OK, "http://x/?" + text),),), 3),),
        events=(Event(NOW, "error", text, text, 2), Event(NOW, "info", text)),
        settings=(Setting(text, text), Setting(text, text, "http://x/?" + text)),
        choices=(Choice(text, text, True), Choice(text, text, tone=Tone.BAD)),
        choices_left_out=7,
        note=text,
    )
