"""The web page of a pageserver: what its status says, as a table, charts and a picture.

Whether it is well is what `/healthz` says. Whether commits proceed is not a pageserver's to know.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from quorum_wal.telemetry.page.chart import Chart, chart
from quorum_wal.telemetry.page.history import History
from quorum_wal.telemetry.page.page_view import Cell, Headline, PageView, Setting, Table, WebPage
from quorum_wal.telemetry.page.picture import Link, Node, Picture
from quorum_wal.telemetry.page.tone import Tone
from quorum_wal.telemetry.recent_events import RECENT_EVENTS
from quorum_wal.telemetry.size import bytes_text

EVENTS_SHOWN = 25
ROWS_MAX = 50
SAMPLED_MAX = 8
NOTHING = "-"

Status = Mapping[str, Any]


class PageserverPage:
    """`view` for any thread, `sample` for one."""

    def __init__(self, status: Callable[[], Status], health: Callable[[], str]) -> None:
        self._status = status
        self._health = health
        self._history = History()

    @property
    def web_page(self) -> WebPage:
        return WebPage(self.view, self.sample)

    def sample(self) -> None:
        values: dict[str, float] = {}
        for name, timeline in list(self._status()["timelines"].items())[:SAMPLED_MAX]:
            if "lag_bytes" in timeline:
                values[f"lag {name}"] = timeline["lag_bytes"]
                values[f"replayed {name}"] = timeline["replayed_wal_bytes"]
        self._history.add(time.monotonic(), values)

    def view(self, _: str) -> PageView:
        status, problem = self._status(), self._health()
        return PageView(
            service="Pageserver",
            name=f"{status['node_id']} ({status['http']})",
            headline=_headline(status, problem),
            read_at=datetime.now(UTC),
            picture=_picture(status, problem),
            charts=_charts(self._history),
            tables=(_timelines(status["timelines"]),),
            events=tuple(RECENT_EVENTS.newest(EVENTS_SHOWN)),
            settings=tuple(_settings(status)),
        )


def _headline(status: Status, problem: str) -> Headline:
    if problem:
        return Headline("PROBLEM", problem, Tone.BAD)
    if status["emergency"]:
        return Headline("EMERGENCY", str(status["emergency"]), Tone.WARN)
    count = len(status["timelines"])
    if not count:
        return Headline("OK", "no timeline is attached to it", Tone.IDLE)
    waiting = [each["first_cut"] for each in status["timelines"].values() if "first_cut" in each]
    if waiting:
        return Headline("OK", f"no table can be restored yet: {waiting[0]}", Tone.IDLE)
    return Headline("OK", f"{count} timeline{'s' if count > 1 else ''}: pages are made", Tone.OK)


def _picture(status: Status, problem: str) -> Picture:
    service = str(status["generation_service"])
    is_known = service == "ok"
    tone = Tone.BAD if problem else Tone.OK
    lags = [t["lag_bytes"] for t in status["timelines"].values() if "lag_bytes" in t]
    lag = f"{bytes_text(max(lags))} behind" if lags else "receives no WAL"
    count = f"{len(status['timelines'])} timelines"
    nodes = (
        (Node("safekeepers", "safekeepers", lag, Tone.PLAIN),),
        (Node("here", f"pageserver {status['node_id']}", count, tone),),
        (
            Node("store", "object store", "cuts and layers", Tone.PLAIN, status["archive"]),
            Node("generations", "generation service", "answers" if is_known else service,
                 Tone.OK if is_known else Tone.WARN),
        ),
    )  # fmt: skip
    links = (
        Link("safekeepers", "here", tone, "WAL"),
        Link("here", "store", tone, "pages"),
        Link("here", "generations", Tone.PLAIN if is_known else Tone.WARN, "numbers"),
    )
    return Picture(nodes, links)


def _timelines(timelines: Mapping[str, Status]) -> Table:
    columns = ("timeline", "state", "received", "newest cut", "lag", "cuts", "layers")
    rows = [_row(name, status) for name, status in timelines.items()]
    return Table("Timelines", columns, tuple(rows[:ROWS_MAX]), max(0, len(rows) - ROWS_MAX))


def _row(name: str, status: Status) -> tuple[Cell, ...]:
    state = ", ".join(str(status[key]) for key in ("phase", "mode", "ingest") if key in status)
    if status["problem"]:
        state = f"{state}: {status['problem']}"
    return (
        Cell(name),
        Cell(state, Tone.BAD if status["problem"] else Tone.OK),
        Cell(status.get("received_lsn", NOTHING)),
        Cell(status.get("cut_lsn", NOTHING)),
        Cell(bytes_text(status["lag_bytes"]) if "lag_bytes" in status else NOTHING),
        Cell(str(status["cuts"])),
        Cell(f"{status['layers']}, {bytes_text(status['layer_bytes'])}"),
    )


def _charts(history: History) -> tuple[Chart, ...]:
    def named(prefix: str) -> list[tuple[str, str]]:
        return [(name, name.rpartition("/")[2][:8]) for name in history.names(prefix)]

    lags = [(text, history.points(name)) for name, text in named("lag ")]
    rates = [(text, history.rates(name)) for name, text in named("replayed ")]
    charts = (
        chart("WAL behind the newest cut", lags, bytes_text),
        chart("WAL replayed", rates, lambda value: f"{bytes_text(value)}/s"),
    )
    return tuple(each for each in charts if each is not None)


def _settings(status: Status) -> list[Setting]:
    validated = status["validated_seconds_ago"]
    known = {
        "version": status["version"],
        "Python": platform.python_version(),
        "node": str(status["node_id"]),
        "generation of the node": str(status["node_generation"] or ""),
        "object store": status["archive"],
        "validated": f"{validated:.0f} s ago" if validated is not None else "never",
        "objects deleted": str(status["deleted_objects"]),
        "deleted timelines": ", ".join(status["deleted_timelines"]),
        "unusable files": "; ".join(f"{f}: {r}" for f, r in status["unusable_files"].items()),
    }
    return [Setting(name, value) for name, value in known.items() if value]
