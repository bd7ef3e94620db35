"""A real Prometheus scrapes a real cluster: faults make alerts fire, and the dashboard has data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from altered_setting import altered
from archive_folder import give_back, take_away
from pending_commit import PendingCommit
from prometheus_server import PrometheusServer, Rule, without_variables
from qsync_world import SETTINGS, qsync_arguments
from restored import take_backup
from sk_command import sk

from monitoring.dashboard import dashboard
from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.generations import GenerationProcess
from quorum_wal.pg_fixtures.pageserver import PageserverProcess
from quorum_wal.pg_fixtures.ports import free_port
from quorum_wal.pg_server.errors import DeadlineExceeded

TIMEOUT = 120.0
SERIES_TIMEOUT = 30.0
#: Rules for hours, for a whole disk or for a slow one do not apply to a test.
LEFT_OUT = ("SkDiskFull", "SkDiskFilling", "SkFlushSlow")
FOR = "2s"
BACKLOG_BYTES, SMALL_BACKLOG_BYTES = "268435456", "1048576"
FILL = "SELECT pg_logical_emit_message(true, 'fill', repeat('x', 4 << 20))"
NAMES = "synchronous_standby_names"


def shortened(rule: Rule) -> Rule:
    """The alert fires two seconds after its condition, and at a backlog that a test can make."""
    if rule["alert"] in LEFT_OUT:
        return {**rule, "expr": "vector(0) > 0"}
    expr = rule["expr"].replace(BACKLOG_BYTES, SMALL_BACKLOG_BYTES)
    return {**rule, "expr": expr, **({"for": FOR} if "for" in rule else {})}


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store") / "archive"


@pytest.fixture(scope="module")
def cluster_options(archive: Path) -> dict[str, Any]:
    return {
        "settings": SETTINGS,
        "safekeeper_arguments": [f"--archive={archive}", "--archive-partial-interval=1"],
        "proposer_arguments": qsync_arguments(free_port()),
    }


@pytest.fixture(scope="module")
def generations(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GenerationProcess]:
    folder = tmp_path_factory.mktemp("generations")
    with GenerationProcess(str(folder / "numbers"), log_path=folder / "log") as service:
        yield service


def targets_of(cluster: QuorumCluster, generations: GenerationProcess) -> dict[str, list[str]]:
    return {
        "sk-safekeeper": [safekeeper.http_address for safekeeper in cluster.safekeepers],
        "sk-proposer": [cluster.proposer.http_address],
        "sk-generations": [generations.address],
    }


@pytest.fixture
def prometheus(
    cluster: QuorumCluster, generations: GenerationProcess, tmp_path: Path
) -> Iterator[PrometheusServer]:
    targets = targets_of(cluster, generations)
    with PrometheusServer(tmp_path / "prometheus", targets, shortened) as server:
        server.wait_until(lambda: len(server.query("up == 1")) == 5, TIMEOUT, "five targets")
        server.wait_until(lambda: not server.firing(), TIMEOUT, "no alert to fire")
        yield server


def test_faults_of_a_cluster_make_alerts_fire_and_repairs_end_them(
    cluster: QuorumCluster, prometheus: PrometheusServer, archive: Path
) -> None:
    first, second, _ = cluster.safekeepers
    fired: dict[str, dict[str, str]] = {}

    def expect(*names: str) -> None:
        fired.update(prometheus.wait_firing(set(names), TIMEOUT))

    first.kill()
    expect("SkSafekeeperDown", "SkSafekeeperNotFollowing")
    assert "SkQuorumLost" not in prometheus.firing()
    second.kill()
    pending = PendingCommit(cluster.postgres)
    expect("SkQuorumLost", "SkCommitsWait")
    first.start()
    second.start()
    pending.wait_returned(TIMEOUT)

    cluster.proposer.pause()
    expect("SkProposerSilent", "SkProposerDown")
    cluster.proposer.resume()

    with altered(cluster.postgres, NAMES, ""):
        expect("SkUnprotected")

    cluster.proposer.kill()
    expect("SkNoProposer", "SkProposerDown")
    cluster.proposer.start()
    cluster.proposer.wait_streaming(TIMEOUT)

    cluster.postgres.crash()
    expect("SkNoPrimary", "SkNoProposer")
    cluster.start(TIMEOUT)

    aside = take_away(archive)
    cluster.postgres.execute(FILL)
    expect("SkArchiveBacklog", "SkArchiveFails")
    give_back(archive, aside)

    for name, texts in fired.items():
        for text in texts.values():
            assert "<no value>" not in text, name
            assert "error expanding template" not in text, name
    # It considers the last ten minutes.
    prometheus.wait_ended({*fired} - {"SkArchiveFails"}, TIMEOUT)


#: Of pageservers that merge nothing, and do not check pages of a server; and of services with TLS.
NO_SERIES = {
    "sk_certificate_end_timestamp_seconds - time()",
    'sk_pageserver_dead_share{timeline=~".*.*"}',
    "sk_pageserver_damaged_pages",
    "sk_pageserver_check_seconds_ago",
}


def test_the_queries_of_the_dashboard_return_series(
    cluster: QuorumCluster, generations: GenerationProcess, archive: Path, tmp_path: Path
) -> None:
    take_backup(archive, cluster.postgres)
    attach = ("generations", "attach", "a0" * 16, "--node", 1, "--service", generations.url)
    assert sk(*attach).returncode == 0
    addresses = [safekeeper.address for safekeeper in cluster.safekeepers]
    targets = targets_of(cluster, generations)
    with PageserverProcess(archive, addresses, tmp_path / "pageserver") as pageserver:
        targets["sk-pageserver"] = [pageserver.http_address]
        with PrometheusServer(tmp_path / "prometheus", targets, shortened) as prometheus:
            left = {
                without_variables(target["expr"])
                for panel in dashboard()["panels"]
                for target in panel.get("targets", ())
            }

            def have_series() -> bool:
                left.difference_update({query for query in left if prometheus.query(query)})
                return left <= NO_SERIES

            with suppress(DeadlineExceeded):
                prometheus.wait_until(have_series, SERIES_TIMEOUT, "series")
            assert left == NO_SERIES
