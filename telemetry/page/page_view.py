"""`PageView`: the content of a page, as plain values. Pure.

    headline    the verdict: one word, one sentence, what to do
    picture     the services and their connections (`picture.py`)
    charts      the last minutes (`chart.py`)
    tables      members, replicas, timelines
    events      what happened last
    settings    configuration and versions

Texts are texts: none of them is HTML.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from quorum_wal.telemetry.page.chart import Chart
from quorum_wal.telemetry.page.picture import Picture
from quorum_wal.telemetry.page.tone import Tone
from quorum_wal.telemetry.recent_events import Event


@dataclass(frozen=True, slots=True)
class Headline:
    """`condition` is a word of `sk status`; `text` goes on after it."""

    condition: str
    text: str
    tone: Tone

    @property
    def sentences(self) -> tuple[str, ...]:
        """The first is the state; each other one names a problem and what to do."""
        parts = [part.strip() for part in self.text.split("; ")]
        return tuple(_as_sentence(part) for part in parts if part)


def _as_sentence(part: str) -> str:
    """With a capital, unless it begins with a command or a name such as commit_lsn."""
    first = part.split()[0]
    is_word = first.isalpha() and first != "sk"
    return part[0].upper() + part[1:] if is_word else part


@dataclass(frozen=True, slots=True)
class Cell:
    """`tone` other than PLAIN gets its sign in front of the text. `link`: the address of the page
    of what the text names, http or https; "" for none."""

    text: str
    tone: Tone = Tone.PLAIN
    link: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """`left_out`: rows that there are besides."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class Setting:
    """`link` as that of a cell."""

    name: str
    value: str
    link: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """A timeline that the page can show instead: `key` in its address."""

    key: str
    text: str
    is_chosen: bool = False
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class PageView:
    """`service` is the kind, `name` which one. `note` says how old a part of it is."""

    service: str
    name: str
    headline: Headline
    read_at: datetime
    picture: Picture | None = None
    charts: tuple[Chart, ...] = ()
    tables: tuple[Table, ...] = ()
    events: tuple[Event, ...] = ()
    settings: tuple[Setting, ...] = ()
    choices: tuple[Choice, ...] = ()
    choices_left_out: int = 0
    note: str = ""


def event_tone(event: Event) -> Tone:
    """By the level of its log line."""
    if not event.is_urgent:
        return Tone.PLAIN
    return Tone.WARN if event.level == "warning" else Tone.BAD


@dataclass(frozen=True, slots=True)
class WebPage:
    """How a service gives its page. `view` is given which timeline is asked for, "" for any, and
    may block for a moment. `sample` is called every few seconds, and may not block."""

    view: Callable[[str], PageView]
    sample: Callable[[], None]
