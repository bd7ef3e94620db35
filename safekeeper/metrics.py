"""The metrics of a safekeeper, collected from its state when they are scraped.

Only the flush histogram is updated on the append path; everything else costs nothing until a
scrape. Law: a scrape is bounded, however many timelines there are. Only the first so many have
their own series: those with problems first, then those awake, then those asleep. All are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from quorum_wal.access.admission import Admission
from quorum_wal.access.refusal_log import RefusalLog
from quorum_wal.access.roles import Role
from quorum_wal.safekeeper.data_directory import DataDirectory
from quorum_wal.safekeeper.flush_times import BOUNDS_SECONDS, FlushTimes
from quorum_wal.safekeeper.scrub import Scrub
from quorum_wal.safekeeper.status import is_in_danger, pageserver_held_bytes
from quorum_wal.safekeeper.timeline import Timeline
from quorum_wal.safekeeper.timeline_state import TimelineState
from quorum_wal.safekeeper.timelines import Timelines
from quorum_wal.safekeeper.wal_removal import log_extent

#: Timelines with series of their own: about twenty each.
SERIES_TIMELINES_MAX = 100
ASLEEP = "asleep"

TIMELINE_GAUGES = {
    "sk_timeline_flush_lsn": "End of the last whole record that is on disk, in bytes",
    "sk_timeline_commit_lsn": "Position confirmed by a quorum, in bytes",
    "sk_timeline_truncate_lsn": "Position flushed by all members, in bytes",
    "sk_timeline_term": "Term of the promised node id",
    "sk_timeline_wal_bytes": "Size of the segments on disk",
    "sk_timeline_active": "1 when the timeline can take part, 0 when it is stopped or damaged",
    "sk_timeline_proposer_connected": "1 while a proposer streams",
    "sk_timeline_proposer_silent_seconds": "Time since the streaming proposer last sent anything",
    "sk_timeline_local_start_lsn": "Position of the oldest WAL kept, in bytes",
    "sk_timeline_replicas": "Replicas that stream now",
    "sk_timeline_slots": "Replication slots",
    "sk_timeline_archived_lsn": "Position up to which the WAL is in the archive, in bytes",
    "sk_timeline_archive_backlog_bytes": "Committed WAL that is not in the archive yet",
    "sk_timeline_archive_failures": "Failed attempts to archive since the start",
    "sk_timeline_holes": "Committed segments that are damaged here, or missing",
    "sk_timeline_lost_lsn": "Position up to which WAL at the log's end is lost, 0 if none is",
    "sk_timeline_slots_lost": "Replication slots that are lost or in danger of being lost",
    "sk_timeline_pageserver_held_bytes": "WAL here that the pageserver has not made durable",
    "sk_timeline_member_left_behind": "1 when a member lacks WAL that was removed here",
}
STATE_GAUGES = {
    "sk_timelines": "Timelines by state: active, asleep, creating, stopped, damaged",
}
PROCESS_GAUGES = {
    "sk_timelines_without_series": "Timelines beyond --metrics-timelines-max",
    "sk_timelines_damaged": "Timelines whose control file cannot be used",
    "sk_unusable_files": "Certificate, user or token files that changed and could not be loaded",
    "sk_disk_free_bytes": "Free space of the data directory",
    "sk_connections": "Connections of users to the WAL port",
    "sk_connections_unauthenticated": "Connections that are not authenticated yet",
}
ROLE_GAUGES = {
    "sk_connections_of_role": "Connections of users, by role",
}
COUNTERS = {
    "sk_scrub_bytes": "WAL that the scrub has checked since the start",
    "sk_scrub_passes": "Complete passes of the scrub over all cold WAL since the start",
    "sk_scrub_damages": "Damaged places that the scrub found since the start",
    "sk_connections_refused": "Connections refused by a limit, or after too many wrong passwords",
    "sk_refusals": "Commands and connections of clients that were refused, for any reason",
    "sk_connections_evicted": "Unauthenticated connections that were closed for newer ones",
}
HISTOGRAMS = {"sk_wal_flush_seconds": "Time of one fdatasync of WAL"}


class FlushCollector(Collector):
    """The histogram of flushes. Our own: the library takes two locks for each count."""

    def __init__(self, times: FlushTimes) -> None:
        self._times = times

    def collect(self) -> Iterable[HistogramMetricFamily]:
        ((name, text),) = HISTOGRAMS.items()
        family = HistogramMetricFamily(name, text)
        bounds = [*map(str, BOUNDS_SECONDS), "+Inf"]
        counts = accumulate(self._times.counts)
        family.add_metric([], list(zip(bounds, counts, strict=True)), self._times.sum_us[0] / 1e6)
        return [family]


class StateCollector(Collector):
    """The state of all timelines, read at each scrape."""

    def __init__(
        self,
        data_directory: DataDirectory,
        timelines: Timelines,
        admission: Admission,
        scrub: Scrub,
        refusals: RefusalLog,
        unusable_files: Callable[[], Mapping[str, str]],
        timelines_max: int = SERIES_TIMELINES_MAX,
    ) -> None:
        self._timelines_max = timelines_max
        self._unusable_files = unusable_files
        self._data_directory = data_directory
        self._timelines = timelines
        self._admission = admission
        self._scrub = scrub
        self._refusals = refusals

    def collect(self) -> Iterable[Metric]:
        families: dict[str, GaugeMetricFamily] = {
            name: GaugeMetricFamily(name, text, labels=("tenant_id", "timeline_id"))
            for name, text in TIMELINE_GAUGES.items()
        }
        # A timeline that was left has no metrics.
        timelines = [t for t in self._timelines.all() if not t.control.has_left]
        shown = sorted(timelines, key=_rank)[: self._timelines_max]
        for timeline in shown:
            name = timeline.control.timeline
            labels = [name.tenant_id.hex(), name.timeline_id.hex()]
            for metric, value in _values(timeline).items():
                families[metric].add_metric(labels, value)
        process = {
            "sk_timelines_without_series": len(timelines) - len(shown),
            "sk_timelines_damaged": len(self._timelines.damaged),
            "sk_unusable_files": len(self._unusable_files()),
            "sk_disk_free_bytes": self._data_directory.disk_space().free_bytes,
            "sk_connections": self._admission.authenticated,
            "sk_connections_unauthenticated": self._admission.unauthenticated,
        }
        for metric, text in PROCESS_GAUGES.items():
            families[metric] = GaugeMetricFamily(metric, text, value=process[metric])
        counts = {
            "sk_scrub_bytes": self._scrub.scrubbed_bytes,
            "sk_scrub_passes": self._scrub.passes_count,
            "sk_scrub_damages": self._scrub.damages_count,
            "sk_connections_refused": self._admission.refused_count,
            "sk_refusals": self._refusals.count,
            "sk_connections_evicted": self._admission.evicted_count,
        }
        of_role = GaugeMetricFamily(*next(iter(ROLE_GAUGES.items())), labels=("role",))
        for role in Role:
            of_role.add_metric([role.value], self._admission.of_role(role))
        counters = (CounterMetricFamily(n, COUNTERS[n], value=v) for n, v in counts.items())
        return [*families.values(), self._states(timelines), of_role, *counters]

    def _states(self, timelines: Iterable[Timeline]) -> GaugeMetricFamily:
        """Counts timelines whose control file cannot be used as damaged, too."""
        counts = Counter(map(_state, timelines))
        counts[TimelineState.DAMAGED.value] += len(self._timelines.damaged)
        family = GaugeMetricFamily(*next(iter(STATE_GAUGES.items())), labels=("state",))
        for state in (*(each.value for each in TimelineState), ASLEEP):
            family.add_metric([state], counts[state])
        return family


def _state(timeline: Timeline) -> str:
    return ASLEEP if timeline.sleep.is_asleep else timeline.state.value


def _rank(timeline: Timeline) -> int:
    """Order in which timelines get series; lower first."""
    is_healthy = timeline.state in (TimelineState.ACTIVE, TimelineState.CREATING)
    if not is_healthy or timeline.holes or timeline.control.lost_lsn:
        return 0
    if log_extent(timeline).is_member_left_behind:
        return 1
    return 3 if timeline.sleep.is_asleep else 2


def _values(timeline: Timeline) -> dict[str, float]:
    positions, archive = timeline.positions, timeline.archive
    archived = (
        {
            "sk_timeline_archived_lsn": archive.archived_lsn,
            "sk_timeline_archive_backlog_bytes": archive.backlog_bytes(positions.commit_lsn),
            "sk_timeline_archive_failures": archive.failures_count,
        }
        if archive is not None
        else {}
    )
    streaming = timeline.streaming
    silent = (
        {"sk_timeline_proposer_silent_seconds": streaming.silent_seconds}
        if streaming is not None
        else {}
    )
    return {
        **archived,
        **silent,
        "sk_timeline_flush_lsn": positions.flush_lsn,
        "sk_timeline_commit_lsn": positions.commit_lsn,
        "sk_timeline_truncate_lsn": positions.truncate_lsn,
        "sk_timeline_term": timeline.control.promised.term,
        "sk_timeline_wal_bytes": timeline.sleep.wal_bytes,
        "sk_timeline_active": timeline.state is TimelineState.ACTIVE,
        "sk_timeline_proposer_connected": streaming is not None,
        "sk_timeline_local_start_lsn": timeline.control.local_start_lsn,
        "sk_timeline_replicas": len(timeline.replicas.all()),
        "sk_timeline_slots": len(timeline.slots.all()),
        "sk_timeline_pageserver_held_bytes": pageserver_held_bytes(timeline),
        "sk_timeline_member_left_behind": log_extent(timeline).is_member_left_behind,
        "sk_timeline_holes": len(timeline.holes.all()),
        "sk_timeline_lost_lsn": timeline.control.lost_lsn,
        "sk_timeline_slots_lost": sum(is_in_danger(timeline, s) for s in timeline.slots.all()),
    }
