"""The metrics of a safekeeper, collected from its state when they are asked for.

Only the flush histogram is fed on the append path; everything else costs nothing until a scrape.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from safekeeper.data_directory import DataDirectory
from safekeeper.timeline import TimelineState
from safekeeper.timelines import Timelines

_FLUSH_BUCKETS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)
_LABELS = ("tenant_id", "timeline_id")


def flush_histogram(registry: CollectorRegistry) -> Histogram:
    return Histogram(
        "sk_wal_flush_seconds",
        "Time of one fdatasync of WAL",
        buckets=_FLUSH_BUCKETS,
        registry=registry,
    )


class StateCollector(Collector):
    """The state of all timelines, read at each scrape."""

    def __init__(self, data_directory: DataDirectory, timelines: Timelines) -> None:
        self._data_directory = data_directory
        self._timelines = timelines

    def collect(self) -> Iterable[GaugeMetricFamily]:
        gauges = {
            "flush_lsn": "End of the last whole record that is on disk, in bytes",
            "commit_lsn": "Position confirmed by a quorum, in bytes",
            "truncate_lsn": "Position flushed by all members, in bytes",
            "term": "Term of the promised node id",
            "wal_bytes": "Size of the segments on disk",
            "active": "1 when the timeline can take part, 0 when it is stopped or damaged",
            "proposer_connected": "1 while a proposer streams",
        }
        families = {
            name: GaugeMetricFamily(f"sk_timeline_{name}", text, labels=_LABELS)
            for name, text in gauges.items()
        }
        for timeline in self._timelines.all():
            control, positions = timeline.control, timeline.positions
            labels = [control.timeline.tenant_id.hex(), control.timeline.timeline_id.hex()]
            values = {
                "flush_lsn": positions.flush_lsn,
                "commit_lsn": positions.commit_lsn,
                "truncate_lsn": positions.truncate_lsn,
                "term": control.promised.term,
                "wal_bytes": timeline.store.size_bytes(),
                "active": timeline.state is TimelineState.ACTIVE,
                "proposer_connected": timeline.streaming is not None,
            }
            for name, value in values.items():
                families[name].add_metric(labels, value)
        space = self._data_directory.disk_space()
        damaged = GaugeMetricFamily(
            "sk_timelines_damaged",
            "Timelines whose control file cannot be used",
            value=len(self._timelines.damaged),
        )
        free = GaugeMetricFamily(
            "sk_disk_free_bytes", "Free space of the data directory", value=space.free_bytes
        )
        return [*families.values(), damaged, free]
