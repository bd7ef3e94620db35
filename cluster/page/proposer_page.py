"""The web page of a proposer. It shows the proposer's own status, and asks the members for theirs.

    status()               every 2 s                  --> charts, events    (the HTTP thread)
    inspect_safekeepers()  while a browser shows it   --> members, readers  (a thread of its own)
    view()                 both, and the verdict      --> the page

Law: nothing here runs on the thread that commits go through, and the primary is not asked.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from quorum_wal.cluster.page.cluster_picture import cluster_picture
from quorum_wal.cluster.page.cluster_watch import Asked, ClusterWatch
from quorum_wal.cluster.page.state_changes import state_changes
from quorum_wal.cluster.page.timeline_page import (
    EVENTS_SHOWN,
    headline_of,
    page_link,
    tables_of,
    unknown,
    version_text,
)
from quorum_wal.cluster.timeline_view import TimelineView, timeline_views
from quorum_wal.cluster.verdict import judge
from quorum_wal.consensus.errors import MessageError
from quorum_wal.consensus.ids import NodeId, TimelineId
from quorum_wal.telemetry.page.chart import Chart, chart
from quorum_wal.telemetry.page.history import History
from quorum_wal.telemetry.page.page_view import Headline, PageView, Setting, WebPage
from quorum_wal.telemetry.recent_events import RECENT_EVENTS
from quorum_wal.telemetry.size import bytes_text
from quorum_wal.walproposer.service import WalProposer
from quorum_wal.walproposer.timelines.discovery import (
    Discovery,
    ProposerReport,
    SafekeeperReport,
    inspect_safekeepers,
    proposer_pages,
)

NOT_ASKED = "its page is not asked by this one"
LAG = "lag of "


class ProposerPage:
    """`view` for any thread, `sample` for one."""

    def __init__(self, proposer: WalProposer) -> None:
        self._proposer = proposer
        self._history = History()
        self._last: Mapping[str, Any] = {}
        self._watch = ClusterWatch(lambda: inspect_safekeepers(proposer.known_safekeepers()))

    @property
    def web_page(self) -> WebPage:
        return WebPage(self.view, self.sample)

    def sample(self) -> None:
        status = self._proposer.status()
        self._history.add(time.monotonic(), sampled(status))
        for event in state_changes(self._last, status, datetime.now(UTC)):
            RECENT_EVENTS.add(event)
        self._last = status

    def view(self, _: str) -> PageView:
        """Of the one timeline that it is for."""
        status, now = self._proposer.status(), datetime.now(UTC)
        asked = self._watch.latest()
        reports = asked.reports if asked is not None else ()
        http = self._proposer.config.http
        found = own_view(discovery_of(reports, status, http, now), status)
        pages = {r.safekeeper_id: _page_of(r) for r in reports if r.reachable}
        return PageView(
            service="Proposer",
            name=http,
            headline=_headline(found, status, asked),
            read_at=now,
            picture=cluster_picture(found) if found is not None else None,
            charts=_charts(self._history),
            tables=tables_of(found, pages) if found is not None else (),
            events=tuple(RECENT_EVENTS.newest(EVENTS_SHOWN)),
            settings=tuple(_settings(self._proposer, status, found)),
            note=_note(asked),
        )


# ---- the timeline


def discovery_of(
    reports: Sequence[SafekeeperReport], status: Mapping[str, Any], http: str, now: datetime
) -> Discovery:
    """The reports of the safekeepers, with this proposer's status as the page at `http`. Of other
    proposers it has only what the safekeepers report: their pages are not read."""
    named = [
        (named, where)
        for report in reports
        for timeline in report.timelines.values()
        for named, where in proposer_pages(timeline)
    ]
    own = {where for named, where in named if _is_own(named, where, status, http)} or {http}
    proposers = {where: ProposerReport(where, None, NOT_ASKED, now) for _, where in named}
    proposers |= {where: ProposerReport(where, status, "", now) for where in sorted(own)[:1]}
    return Discovery(tuple(reports), proposers)


def _is_own(named: Mapping[str, Any], where: str, status: Mapping[str, Any], http: str) -> bool:
    node_id = named.get("node_id")
    return where == http or (node_id is not None and node_id == status.get("node_id"))


def own_view(discovery: Discovery, status: Mapping[str, Any]) -> TimelineView | None:
    """None while no safekeeper has reported the timeline."""
    try:
        own = TimelineId.parse(f"{status.get('tenant_id')}/{status.get('timeline_id')}")
    except MessageError:
        return None  # it has not found its timeline yet
    reports = tuple(_about(own, report) for report in discovery.safekeepers)
    views = timeline_views(replace(discovery, safekeepers=reports))
    return next((view for view in views if view.timeline == own), None)


def _about(timeline: TimelineId, report: SafekeeperReport) -> SafekeeperReport:
    """Without other timelines: there may be thousands, and each view of the page takes time of the
    interpreter that commits need."""
    return replace(
        report,
        timelines={t: status for t, status in report.timelines.items() if t == timeline},
        left={t: status for t, status in report.left.items() if t == timeline},
    )


def _headline(
    view: TimelineView | None, status: Mapping[str, Any], asked: Asked | None
) -> Headline:
    state = str(status["state"]).replace("_", " ")
    leader = view.leader if view is not None else None
    if view is not None and leader is not None and leader.page is None:
        heard_by = f"{len(leader.streams_to)} of {len(view.members)} safekeepers"
        return unknown(f"this proposer is {state}; {leader} streams to {heard_by}: see its page")
    if view is not None:
        return headline_of(judge(view))
    if asked is None:
        return unknown(f"this proposer is {state}; no safekeeper has answered yet")
    if asked.error:
        return unknown(f"this proposer is {state}; the safekeepers cannot be asked: {asked.error}")
    problems = "; ".join(f"safekeeper {r.address}: {r.error}" for r in asked.reports if r.error)
    reason = f"no safekeeper answers; {problems}" if problems else "no safekeeper has its timeline"
    return unknown(f"this proposer is {state}; {reason}")


def _note(asked: Asked | None) -> str:
    if asked is None:
        return "the safekeepers have not answered yet"
    return f"safekeepers asked {max(0.0, time.monotonic() - asked.at):.0f} s ago"


def _page_of(report: SafekeeperReport) -> str:
    return page_link(report.http, report.address.rpartition(":")[0].strip("[]"))


# ---- charts


def sampled(status: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a status page that are drawn."""
    if "commit_lsn" not in status:
        return {}
    values = {
        "rate": float(status["commit_bytes_per_second"]),
        "unconfirmed": float(status["unconfirmed_bytes"]),
    }
    for peer in status["safekeepers"]:
        if peer["connected"]:
            values[f"{LAG}{peer['id']}"] = float(peer["lag_bytes"])
    if (status.get("qsync") or {}).get("owner"):
        values["limbo"] = float(status["qsync"]["len"])
    return values


def _charts(history: History) -> tuple[Chart, ...]:
    lags = [
        (f"safekeeper {name.removeprefix(LAG)}", history.points(name))
        for name in history.names(LAG)
    ]
    charts = (
        chart("Committed WAL", [("", history.points("rate"))], lambda v: f"{bytes_text(v)}/s"),
        chart("WAL that waits for the quorum", [("", history.points("unconfirmed"))], bytes_text),
        chart("Lag of the members", lags, bytes_text),
        chart("Prepared by qsync", [("", history.points("limbo"))], lambda v: f"{v:.0f}"),
    )
    return tuple(each for each in charts if each is not None)


# ---- settings


def _settings(
    proposer: WalProposer, status: Mapping[str, Any], view: TimelineView | None
) -> list[Setting]:
    config, primary = proposer.config, status["primary"]
    node_id = status.get("node_id")
    quorum = status["quorum"]
    known = {
        "version": version("quorum-wal"),
        "Python": platform.python_version(),
        "Postgres": version_text(primary["pg_version"]) if primary.get("pg_version") else "",
        "primary": primary["dsn"],
        "slot": config.primary.slot,
        "application_name": config.primary.application_name,
        "system identifier": str(primary.get("system_id", "")),
        "Postgres timeline": str(primary.get("tli") or ""),
        "timeline": str(view.timeline) if view is not None else "",
        "generation of the members": str(view.membership.generation) if view is not None else "",
        "a commit needs": f"{quorum['needed']} of {quorum['members']} members"
        if quorum.get("members")
        else "",
        "term": f"{node_id['term']}, {NodeId(node_id['term'], bytes.fromhex(node_id['uuid']))}"
        if node_id
        else "",
        "safekeepers": ", ".join(str(a) for a in proposer.known_safekeepers()),
        "lock": (status.get("lock") or {}).get("url") or "",
        "steady path": status.get("steady_path", ""),
    }
    return [Setting(name, value) for name, value in known.items() if value]
