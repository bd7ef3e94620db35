"""A panel of the dashboard, and the queries of a panel.

Law: every expression names only metrics of this project, or `up` and `ALERTS` of Prometheus. If a
metric has the label of a variable of the dashboard, the variable limits the expression: TIMELINE
for metrics of a safekeeper's timelines, PAGES for those of a pageserver, PROPOSER for those of a
proposer.
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
    """The `type` of a panel in Grafana."""

    GRAPH = "timeseries"
    NUMBER = "stat"


class Unit(Enum):
    """The unit of the values, by its name in Grafana."""

    COUNT = "short"
    BYTES = "bytes"
    BYTES_PER_SECOND = "binBps"
    PER_SECOND = "cps"
    SECONDS = "s"
    SHARE = "percentunit"


@dataclass(frozen=True, slots=True)
class Query:
    """An expression. `legend` may name labels: {{instance}}."""

    expr: str
    legend: str = SERVICE


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. `texts`: what a NUMBER shows for the values 0 and 1; 0 is the bad one."""

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
