"""The metric of the certificate of a service, which all of its ports use."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from quorum_wal.pgwire.tls import ServerTls
from quorum_wal.telemetry.watched_files import WatchedFiles

GAUGE = "sk_certificate_end_timestamp_seconds"
TEXT = "When the first certificate in the file of --tls-cert ends, in seconds since 1970"


class CertificateCollector(Collector):
    """Of the certificate that is in force."""

    def __init__(self, tls: WatchedFiles[ServerTls]) -> None:
        self._tls = tls

    def collect(self) -> Iterable[GaugeMetricFamily]:
        yield GaugeMetricFamily(GAUGE, TEXT, value=self._tls.current().end_time)
