"""The names of our metrics as Prometheus sees them, from the collectors themselves."""

from __future__ import annotations

import re
from collections.abc import Iterable

from quorum_wal.generations.metrics import GenerationCollector, RequestCounts
from quorum_wal.pageserver.metrics import PageserverCollector
from quorum_wal.safekeeper import metrics as safekeeper
from quorum_wal.telemetry import certificate_metrics
from quorum_wal.walproposer import metrics as proposer

#: A pageserver's status without timelines, with all that has metrics.
PAGES_STATUS = {
    "timelines": {},
    "emergency": "",
    "deletion_queue": {"lists": 0},
    "validated_seconds_ago": 0.0,
    "unusable_files": {},
    "deleted_objects": 0,
    "checks": {"pages": 0, "damaged": [], "seconds_ago": 0.0},
}
PROMETHEUS_OWN = frozenset({"up", "ALERTS"})
#: Functions and words of PromQL are followed by a parenthesis, or are operators.
_NAME = re.compile(r"\b(sk_[a-z_]+|up|ALERTS)\b(?!\s*\()")


def _counter(names: Iterable[str]) -> set[str]:
    return {f"{name}_total" for name in names}


def exposed() -> set[str]:
    """All of them."""
    names = {
        certificate_metrics.GAUGE,
        *proposer.GAUGES,
        *proposer.STATE_GAUGES,
        *proposer.PROTECTION,
        *proposer.SAFEKEEPER_GAUGES,
        *proposer.QSYNC_GAUGES,
        proposer.QSYNC_OWNER,
        *safekeeper.TIMELINE_GAUGES,
        *safekeeper.STATE_GAUGES,
        *safekeeper.PROCESS_GAUGES,
        *safekeeper.ROLE_GAUGES,
        *_counter(proposer.COUNTERS),
        *_counter(proposer.QSYNC_COUNTERS),
        *_counter(safekeeper.COUNTERS),
        *(
            f"{name}_{part}"
            for name in safekeeper.HISTOGRAMS
            for part in ("bucket", "sum", "count")
        ),
    }
    collectors = (
        PageserverCollector(lambda: PAGES_STATUS),
        GenerationCollector(RequestCounts(), lambda: {}),
    )
    families = [family for collector in collectors for family in collector.collect()]
    return names | {f.name + ("_total" if f.type == "counter" else "") for f in families}


def named_in(expr: str) -> set[str]:
    """The metrics that an expression names, less those of Prometheus itself."""
    return set(_NAME.findall(expr)) - PROMETHEUS_OWN
