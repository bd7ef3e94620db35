"""The metrics of a pageserver: what its status page shows, by timeline."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

#: name -> (what it is, the key of a timeline's status)
GAUGES = {
    "sk_pageserver_lag_bytes": ("WAL received behind the newest cut", "lag_bytes"),
    "sk_pageserver_cuts": ("Cuts that can be restored", "cuts"),
    "sk_pageserver_layers": ("Parts of layers that the index names", "layers"),
    "sk_pageserver_layer_bytes": ("Their bytes in the store", "layer_bytes"),
    "sk_pageserver_frame_bytes": ("Bytes of frames, before they are packed", "frame_bytes"),
    "sk_pageserver_dead_share": ("Dead pages up to the horizon, of all there", "dead_share"),
}
COUNTERS = {
    "sk_pageserver_epochs": ("Epochs replayed by this process", "epochs"),
    "sk_pageserver_replayed_wal_bytes": ("WAL in them", "replayed_wal_bytes"),
    "sk_pageserver_replayed_pages": ("Pages that they changed", "replayed_pages"),
    "sk_pageserver_base_pages_read": ("Pages read for them out of older layers", "base_pages_read"),
    "sk_pageserver_replay_seconds": ("Time that they took", "replay_seconds"),
    "sk_pageserver_merges": ("Times that old layers were merged by this process", "merges"),
    "sk_pageserver_merge_read_bytes": ("Bytes of layers that were merged", "merge_read_bytes"),
    "sk_pageserver_merge_written_bytes": ("Bytes of their successors", "merge_written_bytes"),
    "sk_pageserver_merge_seconds": ("Time that the merges took", "merge_seconds"),
}
OWN_GAUGES = {
    "sk_pageserver_emergency": "1 while it was started without the generation service",
    "sk_pageserver_deletion_lists": "Lists of objects that are to be deleted",
    "sk_pageserver_stale_attachments": "Attachments that are stale",
    "sk_pageserver_unwell_timelines": "Timelines whose status names a problem",
    "sk_pageserver_validated_seconds_ago": "Since the generation service has said who is valid",
    "sk_pageserver_unusable_files": "Certificates and tokens that changed and are not in force",
}

Family = GaugeMetricFamily | CounterMetricFamily


class PageserverCollector(Collector):
    """Of what `status` says when it is asked."""

    def __init__(self, status: Callable[[], dict[str, Any]]) -> None:
        self._status = status

    @property
    def registry(self) -> CollectorRegistry:
        """One of its own."""
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
    """Of a server's pages."""
    yield CounterMetricFamily(
        "sk_pageserver_checked_pages", "Pages of the server that were checked", value=page["pages"]
    )
    yield GaugeMetricFamily(
        "sk_pageserver_damaged_pages", "Those that are damaged", value=len(page["damaged"])
    )
    if page["seconds_ago"] is not None:
        yield GaugeMetricFamily(
            "sk_pageserver_check_seconds_ago",
            "Since the last round of checks has ended",
            value=page["seconds_ago"],
        )


def _by_timeline(family: Family, key: str, timelines: dict[str, dict[str, Any]]) -> Family:
    for timeline, page in timelines.items():
        if key in page:
            family.add_metric([timeline], page[key])
    return family
