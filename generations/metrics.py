"""The metrics of a generation service. They are kept in memory and need no database query."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from threading import Lock

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

GAUGES = {
    "sk_generations_database_up": "1 if the last transaction succeeded, else 0",
    "sk_generations_unusable_files": "Certificates and tokens that changed and are not in force",
}
COUNTERS = {
    "sk_generations_requests": "Requests by operation and outcome: done, refused, failed",
    "sk_generations_request_seconds": "Time spent on requests, by operation",
    "sk_generations_invalid_nodes": "Validations that found a process not the newest of its node",
    "sk_generations_invalid_tenants": "Validations that found an attachment not valid",
}

Family = GaugeMetricFamily | CounterMetricFamily


class RequestCounts:
    """Thread-safe counters."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.is_database_up = True
        self.requests: Counter[tuple[str, str]] = Counter()
        self.seconds: dict[str, float] = {}
        self.invalid_nodes = 0
        self.invalid_tenants = 0

    def count(self, operation: str, outcome: str, seconds: float) -> None:
        with self._lock:
            self.requests[operation, outcome] += 1
            self.seconds[operation] = self.seconds.get(operation, 0.0) + seconds
            if outcome != "refused":
                self.is_database_up = outcome == "done"

    def count_invalid(self, nodes: int, tenants: int) -> None:
        with self._lock:
            self.invalid_nodes += nodes
            self.invalid_tenants += tenants

    def copy(self) -> tuple[dict[tuple[str, str], int], dict[str, float]]:
        with self._lock:
            return dict(self.requests), dict(self.seconds)


class GenerationCollector(Collector):
    """Computes the metrics at each scrape, including `unusable_files`."""

    def __init__(self, counts: RequestCounts, unusable_files: Callable[[], dict[str, str]]) -> None:
        self._counts = counts
        self._unusable_files = unusable_files

    @property
    def registry(self) -> CollectorRegistry:
        """A new registry that holds this collector only."""
        registry = CollectorRegistry()
        registry.register(self)
        return registry

    def collect(self) -> Iterable[Family]:
        counts = self._counts
        gauges = {
            "sk_generations_database_up": int(counts.is_database_up),
            "sk_generations_unusable_files": len(self._unusable_files()),
        }
        for name, text in GAUGES.items():
            yield GaugeMetricFamily(name, text, value=gauges[name])
        requests, seconds = counts.copy()
        name = "sk_generations_requests"
        by_outcome = CounterMetricFamily(name, COUNTERS[name], labels=["operation", "outcome"])
        for (operation, outcome), count in sorted(requests.items()):
            by_outcome.add_metric([operation, outcome], count)
        yield by_outcome
        name = "sk_generations_request_seconds"
        times = CounterMetricFamily(name, COUNTERS[name], labels=["operation"])
        for operation, total in sorted(seconds.items()):
            times.add_metric([operation], total)
        yield times
        invalid = {
            "sk_generations_invalid_nodes": counts.invalid_nodes,
            "sk_generations_invalid_tenants": counts.invalid_tenants,
        }
        for name, value in invalid.items():
            yield CounterMetricFamily(name, COUNTERS[name], value=value)
