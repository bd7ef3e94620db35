"""The web page of a safekeeper: its timelines, its readers, its archive, its proposer.

A safekeeper knows the addresses of the other members, and does not connect to them. Only the
proposer knows whether commits proceed. So the page reads the proposer's /status, without a token.
If that succeeds, the page shows the verdict of `sk status`; otherwise it shows UNKNOWN.

Law: the page requests a proposer's /status only from the host that the proposer connected from.
Otherwise any client of the WAL port could make this service send requests to any address.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from threading import Lock
from typing import Any

from quorum_wal.cluster.page.cluster_picture import cluster_picture
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
from quorum_wal.consensus.ids import TimelineId, parse_id
from quorum_wal.consensus.membership_page import membership_of_page
from quorum_wal.telemetry.loopback import is_loopback
from quorum_wal.telemetry.page.chart import Chart, chart
from quorum_wal.telemetry.page.history import History
from quorum_wal.telemetry.page.page_view import Choice, Headline, PageView, Setting, WebPage
from quorum_wal.telemetry.page.tone import Tone
from quorum_wal.telemetry.recent_events import RECENT_EVENTS
from quorum_wal.telemetry.size import bytes_text
from quorum_wal.walproposer.errors import WalProposerError
from quorum_wal.walproposer.timelines.discovery import (
    Discovery,
    ProposerReport,
    SafekeeperReport,
    read_proposer,
)
from quorum_wal.walproposer.timelines.status_page import PageAccess, PageAddress

CHOICES_MAX = 50
#: Of timelines, each with some numbers.
SAMPLED_MAX = 8
ASK_SECONDS = 2.0
STATUS_SHARE = 0.1
NOT_ASKED = "this page does not ask it"

Status = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Source:
    """What a safekeeper gives: `status` is the JSON of /status, `positions` numbers of at most so
    many timelines, by their names, and cheap; `archive` is where it archives to, or ""."""

    status: Callable[[], Status]
    positions: Callable[[int], Mapping[str, Mapping[str, float]]]
    archive: str = ""


class KeptStatus:
    """Keeps a status for a while: the longer it took to make, the longer. So the pages of a
    safekeeper with many timelines take at most STATUS_SHARE of the time. Thread-safe."""

    def __init__(self, ask: Callable[[], Status], clock: Callable[[], float]) -> None:
        self._ask = ask
        self._clock = clock
        self._lock = Lock()
        self._known: Status = {}
        self._good_until = 0.0

    def get(self) -> Status:
        with self._lock:
            begun = self._clock()
            if not self._known or begun >= self._good_until:
                self._known = self._ask()
                ended = self._clock()
                self._good_until = ended + (ended - begun) / STATUS_SHARE
            return self._known


class SafekeeperPage:
    """`view` for any thread, `sample` for one."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._status = KeptStatus(source.status, time.monotonic)
        self._history = History()
        self._proposers = ProposerPages()

    @property
    def web_page(self) -> WebPage:
        return WebPage(self.view, self.sample)

    def sample(self) -> None:
        positions = self._source.positions(SAMPLED_MAX)
        values = {f"{t} {k}": v for t, numbers in positions.items() for k, v in numbers.items()}
        self._history.add(time.monotonic(), values)

    def view(self, asked_for: str) -> PageView:
        """Of the timeline asked for, TENANT/TIMELINE; of the first that is awake, for ""."""
        status, now = self._status.get(), datetime.now(UTC)
        timelines = {timeline_of(each): each for each in status["timelines"]}
        chosen = _chosen(timelines, asked_for)
        found = None
        if chosen is not None:
            reports = self._proposers.of(timelines[chosen], now)
            found = checked_view(status, chosen, timelines[chosen], reports)
        choices = _choices(timelines, chosen)
        return PageView(
            service="Safekeeper",
            name=f"{status['safekeeper_id']} ({status['listen']})",
            headline=_headline(status, asked_for, chosen, found),
            read_at=now,
            picture=cluster_picture(found) if found is not None else None,
            charts=_charts(self._history, str(chosen)) if chosen is not None else (),
            tables=tables_of(found, {}) if found is not None else (),
            events=tuple(RECENT_EVENTS.newest(EVENTS_SHOWN)),
            settings=tuple(_settings(self._source, status, found)),
            choices=choices[:CHOICES_MAX],
            choices_left_out=max(0, len(choices) - CHOICES_MAX),
        )


# ---- timelines


def timeline_of(status: Status) -> TimelineId:
    return TimelineId(
        parse_id(status["tenant_id"], "tenant id"), parse_id(status["timeline_id"], "timeline id")
    )


def _chosen(timelines: Mapping[TimelineId, Status], asked_for: str) -> TimelineId | None:
    if asked_for:
        try:
            named = TimelineId.parse(asked_for)
        except MessageError:
            return None
        return named if named in timelines else None
    here = [t for t, status in timelines.items() if not status["has_left"]]
    awake = [t for t in here if not timelines[t]["asleep"]]
    return next(iter(awake or here or timelines), None)


def _choices(
    timelines: Mapping[TimelineId, Status], chosen: TimelineId | None
) -> tuple[Choice, ...]:
    """Those in trouble first."""
    tones = {"active": Tone.OK, "creating": Tone.WARN, "left": Tone.IDLE}
    choices = [
        Choice(
            str(timeline),
            f"{timeline} {status['state']}" + (", asleep" if status["asleep"] else ""),
            timeline == chosen,
            tones.get(status["state"], Tone.BAD),
        )
        for timeline, status in sorted(timelines.items())
    ]
    return tuple(sorted(choices, key=lambda choice: choice.tone is not Tone.BAD))


def checked_view(
    status: Status, timeline: TimelineId, own: Status, proposers: Mapping[str, ProposerReport]
) -> TimelineView | None:
    """`own_view`, without the proposers' pages if their content is not valid. It comes from a
    client of the WAL port and is not trusted."""
    try:
        view = own_view(status, timeline, own, proposers)
        if view is not None:
            judge(view)
            cluster_picture(view)
            tables_of(view, {})
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        reason = f"its page is not that of a proposer: {error!r}"
        without = {h: replace(r, page=None, error=reason) for h, r in proposers.items()}
        return own_view(status, timeline, own, without)
    return view


def own_view(
    status: Status, timeline: TimelineId, own: Status, proposers: Mapping[str, ProposerReport]
) -> TimelineView | None:
    """The timeline as this safekeeper and these proposers describe it. The other members come from
    the membership and count as silent. None for a timeline that was deleted."""
    others = [
        SafekeeperReport(member.address, error=NOT_ASKED, safekeeper_id=member.id)
        for member in membership_of_page(own["membership"]).roster
        if member.id != status["safekeeper_id"] and member.address
    ]
    here = SafekeeperReport(
        status["listen"],
        safekeeper_id=status["safekeeper_id"],
        version=status["version"],
        http=status["http"],
        timelines={} if own["has_left"] else {timeline: own},
        left={timeline: own} if own["has_left"] else {},
        damaged=status["damaged"],
        disk=status["disk"],
        scrub=status["scrub"],
        instance=status["instance"],
        site=status["site"],
    )
    views = timeline_views(Discovery((here, *others), proposers))
    return next((view for view in views if view.timeline == timeline), None)


# ---- the proposer's page


@dataclass(frozen=True, slots=True)
class KeptPage:
    """A report, and the moment until which it is shown again."""

    report: ProposerReport
    good_until: float


class ProposerPages:
    """Reads the page of a proposer at most every ASK_SECONDS, and for at most STATUS_SHARE of the
    time: a proposer that does not answer delays one view of many. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = Lock()
        self._kept: KeptPage | None = None

    def of(self, timeline: Status, now: datetime) -> dict[str, ProposerReport]:
        """Of the proposer that streams to this timeline; by the address of its page."""
        named = timeline["proposer"]
        if named is None or not named["http"]:
            return {}
        reached_host = host_of(named["address"])
        try:
            page = PageAddress.parse(named["http"], reached_host)
        except WalProposerError:
            return {}  # it named no page
        if not may_ask(page.host, reached_host):
            error = f"this safekeeper does not ask a page at another host than {reached_host}"
            return {str(page): ProposerReport(str(page), None, error, now)}
        with self._lock:
            kept, begun = self._kept, self._clock()
            if kept is None or kept.report.http != str(page) or begun >= kept.good_until:
                report = read_proposer(page, PageAccess())
                ended = self._clock()
                pause_seconds = max(ASK_SECONDS, (ended - begun) / STATUS_SHARE)
                kept = self._kept = KeptPage(report, ended + pause_seconds)
            return {str(page): kept.report}


def host_of(address: str) -> str:
    """Of host:port, as a connection names its peer."""
    return address.rpartition(":")[0].strip("[]")


def may_ask(host: str, reached_host: str) -> bool:
    """The law of this file."""
    return host == reached_host or (is_loopback(host) and is_loopback(reached_host))


# ---- the headline


def _headline(
    status: Status, asked_for: str, chosen: TimelineId | None, view: TimelineView | None
) -> Headline:
    if chosen is not None and view is None:
        return unknown(f"this safekeeper has left timeline {chosen}, and its members do not answer")
    if chosen is None or view is None:
        if asked_for:
            return unknown("this safekeeper has no such timeline")
        if status["damaged"]:
            folders = "; ".join(f"{f}: {reason}" for f, reason in status["damaged"].items())
            return Headline("DAMAGED", f"this safekeeper can open no timeline; {folders}", Tone.BAD)
        text = "this safekeeper is empty; run sk attach for a primary"
        return Headline("NO TIMELINE", text, Tone.IDLE)
    if view.leader is not None and view.leader.page is not None:
        return headline_of(judge(view))
    return unknown(_own_part(view))


def _own_part(view: TimelineView) -> str:
    own = next(m for m in (*view.members, *view.others) if m.status is not None)
    state = f"{own} is {own.state.value}" + (f": {own.reason}" if own.reason else "")
    where = "run sk status with all --safekeepers for the verdict"
    if view.leader is None:
        return f"{state}; no proposer is connected to it; {where}"
    return (
        f"{state}; {view.leader} streams to it, but its page cannot be read here: "
        f"{view.leader.error}; open that page, or {where}"
    )


# ---- charts and settings


def _charts(history: History, timeline: str) -> tuple[Chart, ...]:
    flushed = history.rates(f"{timeline} flush")
    charts = (
        chart("WAL flushed", [("", flushed)], lambda v: f"{bytes_text(v)}/s"),
        chart("Not known as committed", [("", history.points(f"{timeline} tail"))], bytes_text),
        chart("Waits for the archive", [("", history.points(f"{timeline} backlog"))], bytes_text),
        chart("Slowest reader", [("", history.points(f"{timeline} reader"))], bytes_text),
    )
    return tuple(each for each in charts if each is not None)


def without_secrets(url: str) -> str:
    """Neither a user and password, nor a query, which may hold keys."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    place, slash, path = rest.partition("?")[0].partition("/")
    return f"{scheme}://{place.rpartition('@')[2]}{slash}{path}"


def _settings(source: Source, status: Status, view: TimelineView | None) -> Sequence[Setting]:
    disk = status["disk"]
    known = {
        "version": status["version"],
        "Python": platform.python_version(),
        "listens on": status["listen"],
        "data directory": status["data_dir"],
        "site": status["site"],
        "instance": status["instance"],
        "disk": f"{bytes_text(disk['free_bytes'])} of {bytes_text(disk['total_bytes'])} are free",
        "archive": without_secrets(source.archive),
        "timelines": str(len(status["timelines"])),
        "timeline": str(view.timeline) if view is not None else "",
        "Postgres": version_text(view.pg_version) if view is not None else "",
        "system identifier": view.system_id if view is not None else "",
        "certificate until": status["certificate_until"] or "",
        "unusable files": "; ".join(f"{f}: {r}" for f, r in status["unusable_files"].items()),
    }
    settings = [Setting(name, value) for name, value in known.items() if value]
    if view is not None and view.leader is not None and view.leader.http:
        http = view.leader.http
        settings.append(Setting("proposer's page", http, page_link(http, "")))
    return settings
