"""Shared by all rings: the marker of a folder, and a check that no test is skipped unnoticed."""

from __future__ import annotations

import gc
import os
import shutil
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import structlog
from xdist.scheduler import LoadScopeScheduling

from quorum_wal.pg_fixtures import processes
from quorum_wal.pg_fixtures.fork_server import ForkServers
from quorum_wal.pg_fixtures.plugin import XDIST_VARIABLE
from tests.block_groups import spread_folders_of

TESTS = Path(__file__).parent

#: rings whose fixtures take minutes: an engine and its images, logs of servers, a JVM
TOGETHER = ("containers", "contract", "spark")
#: files of them that use no such fixture: the others of tests/spark take one process all of the run
ALONE = frozenset({"tests/spark/test_foreign_packages.py", "tests/spark/test_spark_cluster.py"})
#: rings without shared fixtures
APART = ("simulation",)
#: The two rings that take one process most of the run come first. The tests of the rings that are
#: not here are spread among each other: some wait, and others compute.
FIRST = {"containers": 0, "spark": 0, "contract": 1}
#: How far into the rest the tests go that wait. At its end there are small tests that compute: they
#: fill the processes evenly.
SHARE_OF_WAITING = 0.85
#: Files that take longest, because one process runs all tests of a file, or one test takes long.
#: They are the first ones of their ring: at the end of the run the other processes would have
#: nothing left to do.
LONG = frozenset({
    "test_soak.py", "test_members.py", "test_hostile_members.py", "test_hostile_bytes.py",
    "test_pageserver.py",
    "test_pageserver_failures.py", "test_topologies.py", "test_daisy_chain.py",
    "test_runbook.py", "test_promote_limbo.py", "test_disaster.py",
    "test_archiving.py", "test_patroni.py", "test_prometheus.py", "test_timelines_apart.py",
    "test_qsync_lives.py", "test_rot.py", "test_cli_hung.py", "test_primary_lifecycle.py",
    "test_fuzz.py", "test_power_loss.py", "test_steady_stream.py", "test_steady_loop.py",
    "test_steady_path.py", "test_steady_leader.py", "test_compiled.py",
    "test_archiving_of_many.py", "test_verify.py", "test_arranged_changes.py",
    "test_alert_rules.py", "test_archive_segment_sizes.py",
    "test_simulation.py", "test_files.py", "test_limbo_world.py", "test_pageserver_world.py",
})  # fmt: skip

#: `sk` with changes, and whether it is for commands of the pageserver.
CHANGED_SK = {
    "tests.integration.broken_promotion": False,
    "tests.integration.stepped_sk": True,
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write the golden scripts anew")


class ByFixtures(LoadScopeScheduling):  # type: ignore[misc]
    """Each process gets files; of rings with expensive fixtures whole folders, and of those without
    fixtures single tests."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        ring, _, folder = file.removeprefix("tests/").rpartition("/")[0].partition("/")
        if ring in APART:
            return nodeid
        return f"{ring}/{folder}" if ring in TOGETHER and file not in ALONE else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFixtures:
    return ByFixtures(config, log)


class FailuresAtOnce:
    """Prints one line for a failure when it happens, so that an interrupted run has reported its
    failures."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and reporter is not None:
            lines = report.longreprtext.strip().splitlines()
            said = [line for line in lines if line.startswith("E ")] or lines[-1:]
            reporter.write_line(f"\nFAILED {report.nodeid}: {' '.join(said)[:300]}")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(FailuresAtOnce(config))
    processes.fork_servers = ForkServers(processes.SK)
    for module, of_pages in CHANGED_SK.items():
        processes.fork_servers.add((sys.executable, "-m", module), of_pages=of_pages)


def pytest_unconfigure() -> None:
    if processes.fork_servers is not None:
        processes.fork_servers.close()


@pytest.fixture(scope="session", autouse=True)
def base_folder(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[None]:
    """Each process removes what is left in its folder. pytest would remove the gigabytes of all
    processes with one, at the end."""
    folder = tmp_path_factory.getbasetemp()
    spread_folders_of(folder)
    yield
    if XDIST_VARIABLE in os.environ and not request.session.testsfailed:
        shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def log_settings() -> Iterator[None]:
    """A command that a test runs in this process sets up the logs. Loggers of later tests would
    keep these settings, and `capture_logs` would not see their lines."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@cache
def ring_of(path: Path) -> str:
    """The first folder below tests/, or nothing."""
    folders = path.relative_to(TESTS).parts[:-1] if path.is_relative_to(TESTS) else ()
    return folders[0] if folders else ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each test gets the marker of its ring: the first folder below tests/."""
    counts, before = Counter(ring_of(item.path) for item in items), Counter[str]()
    places: dict[pytest.Item, tuple[int, float]] = {}
    for item in sorted(items, key=lambda item: item.path.name not in LONG):
        ring = ring_of(item.path)
        if ring:
            item.add_marker(ring)
        share = before[ring] / counts[ring] * (SHARE_OF_WAITING if ring == "integration" else 1)
        places[item] = (FIRST.get(ring, len(FIRST)), share)
        before[ring] += 1
    items.sort(key=places.__getitem__)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected stays. To look for garbage among it took a fifth of the
    collection's time, and later 3 % of the unit tests' time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With SK_REQUIRE_ALL=1, as in CI, a missing program fails the test that needs it."""
    report = yield
    if report.skipped and os.environ.get("SK_REQUIRE_ALL") == "1":
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped, and SK_REQUIRE_ALL=1: {reason}"
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line for each missing program, however many tests need it."""
    reports = terminalreporter.stats.get("skipped", [])
    reasons = (r.longrepr[2] if isinstance(r.longrepr, tuple) else r.longrepr for r in reports)
    counts = Counter(str(reason).removeprefix("Skipped: ") for reason in reasons)
    if counts:
        terminalreporter.section("skipped, by what is missing")
    for reason, count in counts.most_common():
        terminalreporter.line(f"{count:5}  {reason}")
