"""A panel of the dashboard, and the queries that panels are made of.

Law: every expression names only metrics of ours (or Prometheus's own `up` and `ALERTS`), and is
limited by a variable of the dashboard where the metric has the label: TIMELINE for metrics of a
safekeeper's timelines, PAGES for those of a pageserver, PROPOSER for those of a proposer.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

PROPOSER = '{instance=~"$proposer"}'
TIMELINE = '{timeline_id=~"$timeline"}'
#: A pageserver names a timeline by tenant and timeline.
PAGES = '{timeline=~".*$timeline"}'
SERVICE = "{{instance}}"


class Kind(Enum):
    """`type` of a panel in Grafana."""

    GRAPH = "timeseries"
    NUMBER = "stat"


class Unit(Enum):
    """Of the values, as Grafana names it."""

    COUNT = "short"
    BYTES = "bytes"
    BYTES_PER_SECOND = "binBps"
    PER_SECOND = "cps"
    SECONDS = "s"
    SHARE = "percentunit"


@dataclass(frozen=True, slots=True)
class Query:
    """`legend` may name labels: {{instance}}."""

    expr: str
    legend: str = SERVICE


@dataclass(frozen=True, slots=True)
class Panel:
    """`texts`: how a NUMBER shows the values 0 and 1, the bad one first."""

    title: str
    description: str
    unit: Unit
    queries: tuple[Query, ...]
    kind: Kind = Kind.GRAPH
    texts: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Row:
    title: str
    panels: tuple[Panel, ...]


def of_proposer(name: str, legend: str = SERVICE) -> Query:
    return Query(f"sk_proposer_{name}{PROPOSER}", legend)


def of_timeline(name: str, legend: str = SERVICE) -> Query:
    return Query(f"sk_timeline_{name}{TIMELINE}", legend)


def of_pages(name: str, legend: str = SERVICE) -> Query:
    return Query(f"sk_pageserver_{name}{PAGES}", legend)


def rate_of(query: Query, legend: str = "") -> Query:
    return Query(f"rate({query.expr}[$__rate_interval])", legend or query.legend)


def number(title: str, description: str, query: Query, texts: tuple[str, str]) -> Panel:
    return Panel(title, description, Unit.COUNT, (query,), Kind.NUMBER, texts)
