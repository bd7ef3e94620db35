"""The metrics of a pageserver, computed from its status page, by timeline."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

#: name -> (help text, key in the status of a timeline)
GAUGES = {
    "sk_pageserver_lag_bytes": ("WAL received after the newest cut", "lag_bytes"),
    "sk_pageserver_cuts": ("Cuts that can be restored", "cuts"),
    "sk_pageserver_layers": ("Layer parts that the index names", "layers"),
    "sk_pageserver_layer_bytes": ("Size of these layer parts in the store", "layer_bytes"),
    "sk_pageserver_frame_bytes": ("Uncompressed size of the frames", "frame_bytes"),
    "sk_pageserver_dead_share": ("Share of dead pages up to the horizon", "dead_share"),
}
COUNTERS = {
    "sk_pageserver_epochs": ("Epochs replayed by this process", "epochs"),
    "sk_pageserver_replayed_wal_bytes": ("WAL replayed in these epochs", "replayed_wal_bytes"),
    "sk_pageserver_replayed_pages": ("Pages changed by these epochs", "replayed_pages"),
    "sk_pageserver_base_pages_read": (
        "Pages read from older layers for these epochs",
        "base_pages_read",
    ),
    "sk_pageserver_replay_seconds": ("Time spent replaying epochs", "replay_seconds"),
    "sk_pageserver_merges": ("Merges of old layers by this process", "merges"),
    "sk_pageserver_merge_read_bytes": ("Size of the layers that were merged", "merge_read_bytes"),
    "sk_pageserver_merge_written_bytes": (
        "Size of the layers that replaced them",
        "merge_written_bytes",
    ),
    "sk_pageserver_merge_seconds": ("Time spent merging layers", "merge_seconds"),
}
OWN_GAUGES = {
    "sk_pageserver_emergency": "1 if the process started without the generation service",
    "sk_pageserver_deletion_lists": "Lists of objects that wait for deletion",
    "sk_pageserver_stale_attachments": "Attachments that are stale",
    "sk_pageserver_unwell_timelines": "Timelines whose status reports a problem",
    "sk_pageserver_validated_seconds_ago": "Time since the last completed validation",
    "sk_pageserver_unusable_files": "Certificates and tokens that changed and are not in force",
}

Family = GaugeMetricFamily | CounterMetricFamily


class PageserverCollector(Collector):
    """Computes the metrics from `status` at each scrape."""

    def __init__(self, status: Callable[[], dict[str, Any]]) -> None:
        self._status = status

    @property
    def registry(self) -> CollectorRegistry:
        """A new registry that holds this collector only."""
        registry = CollectorRegistry()
        registry.register(self)
        return registry

    def collect(self) -> Iterable[Family]:
        page = self._status()
        timelines: dict[str, dict[str, Any]] = page["timelines"]
        own = {
            "sk_pageserver_stale_attachments": sum(
                each["mode"] == "stale" for each in timelines.values()
            ),
            "sk_pageserver_unwell_timelines": sum(
                bool(each["problem"]) for each in timelines.values()
            ),
            "sk_pageserver_emergency": int(bool(page["emergency"])),
            "sk_pageserver_deletion_lists": (page["deletion_queue"] or {}).get("lists"),
            "sk_pageserver_validated_seconds_ago": page["validated_seconds_ago"],
            "sk_pageserver_unusable_files": len(page["unusable_files"]),
        }
        for name, text in OWN_GAUGES.items():
            if own[name] is not None:
                yield GaugeMetricFamily(name, text, value=own[name])
        yield CounterMetricFamily(
            "sk_pageserver_deleted_objects",
            "Objects that this process has deleted",
            value=page["deleted_objects"],
        )
        if page["checks"] is not None:
            yield from _checks(page["checks"])
        for name, (text, key) in GAUGES.items():
            yield _by_timeline(GaugeMetricFamily(name, text, labels=["timeline"]), key, timelines)
        for name, (text, key) in COUNTERS.items():
            yield _by_timeline(CounterMetricFamily(name, text, labels=["timeline"]), key, timelines)


def _checks(page: dict[str, Any]) -> Iterable[Family]:
    """The metrics of the page checks of a server."""
    yield CounterMetricFamily(
        "sk_pageserver_checked_pages", "Pages of the server that were checked", value=page["pages"]
    )
    yield GaugeMetricFamily(
        "sk_pageserver_damaged_pages", "Pages found to be damaged", value=len(page["damaged"])
    )
    if page["seconds_ago"] is not None:
        yield GaugeMetricFamily(
            "sk_pageserver_check_seconds_ago",
            "Time since the last round of checks ended",
            value=page["seconds_ago"],
        )


def _by_timeline(family: Family, key: str, timelines: dict[str, dict[str, Any]]) -> Family:
    for timeline, page in timelines.items():
        if key in page:
            family.add_metric([timeline], page[key])
    return family
