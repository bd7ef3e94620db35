"""The Debian package and its units, on machines with systemd and Debian's own Postgres."""

from __future__ import annotations

import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import pytest
from container_images import ROOT, Engine, Images, build_systemd
from debian_packages import NEWER_VERSION, VERSION, build_packages
from pending_commit import PendingCommit
from reckoning import TIMEOUT, assert_complete
from systemd_cluster import CLUSTER, UNITS, SystemdCluster, install
from systemd_machine import Machine

from quorum_wal.pg_fixtures.ledger import Ledger
from quorum_wal.pg_fixtures.plugin import skip_if_unavailable
from quorum_wal.pg_fixtures.waiting import wait_until

PROPOSER, SAFEKEEPER = "sk-proposer", "sk-safekeeper"
#: Of a reload, while everything else on the machine of the tests runs, too.
GAP_SECONDS_MAX = 1.0
#: Of `systemctl stop`, long before systemd would kill.
STOP_SECONDS_MAX = 10.0
WATCHDOG_SECONDS = 6
HOOKS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["hooks"]
#: The names of the modules that are compiled.
COMPILED = [
    "quorum_wal." + path.removesuffix(".py").replace("/", ".")
    for path in HOOKS["custom"]["modules"]
]
#: As `systemd-analyze security` counts: 0 is the safest, 100 a service without any protection.
EXPOSURE_MAX = 20
WHEN_ENDED = "InactiveEnterTimestampMonotonic"

_numbers = count(1)


@pytest.fixture(scope="module")
def cluster(
    engine: Engine, images: Images, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SystemdCluster]:
    with skip_if_unavailable():
        packages = build_packages(tmp_path_factory.mktemp("packages"), engine.base)
    image = build_systemd(engine, images.postgres, [packages.package, packages.newer])
    with SystemdCluster(engine.client, image) as cluster:
        yield cluster


@pytest.fixture
def ledger(cluster: SystemdCluster) -> Iterator[Ledger]:
    """Clients that commit for as long as the test runs."""
    dsn = cluster.postgres.dsn()
    with Ledger(dsn, clients=3, table=f"ledger_{next(_numbers)}") as ledger:
        ledger.wait_for_progress(10, TIMEOUT)
        yield ledger
        assert_complete(ledger)


def wait_restarted(machine: Machine, unit: str, pid: int) -> None:
    def restarted() -> bool:
        state = machine.unit(unit)
        return state.pid not in (0, pid) and state.active == "active"

    wait_until(restarted, TIMEOUT, f"{unit} to run again")


# ---- the package


def test_the_installation_starts_and_enables_nothing(cluster: SystemdCluster) -> None:
    states = [cluster.installed[unit] for unit in UNITS]
    assert [(state.active, state.enabled) for state in states] == [("inactive", "disabled")] * 4


def test_the_package_brings_commands_pages_and_completion(cluster: SystemdCluster) -> None:
    machine = cluster.machines[0]
    assert machine.do("sk", "--version").startswith("sk, version ")
    names = machine.do("dpkg", "--listfiles", "quorum-wal").splitlines()
    assert "/usr/share/man/man1/sk-attach.1.gz" in names
    assert "/usr/share/zsh/vendor-completions/_sk" in names
    source = "source /usr/share/bash-completion/completions/sk && complete -p sk"
    assert machine.shell(source).endswith(" sk")
    installed = "-newer /var/lib/dpkg/info/quorum-wal.list"
    assert machine.shell(f"find /usr/lib/quorum-wal -type f {installed}") == "", "bytecode"


def test_the_package_has_the_compiled_modules(cluster: SystemdCluster) -> None:
    """Which are loaded only if they are of the sources of the package."""
    machine = cluster.machines[0]
    code = f"import quorum_wal.storage.compiled as c; print(*map(c.how_it_runs, {COMPILED}))"
    found = machine.do("/usr/lib/quorum-wal/bin/python3", "-IB", "-c", code)
    assert found.split() == ["compiled"] * len(COMPILED)


def test_the_units_are_valid_and_hardened(cluster: SystemdCluster) -> None:
    files = [f"/usr/lib/systemd/system/{unit}.service" for unit in UNITS]
    assert cluster.db.do("systemd-analyze", "verify", "--man=no", *files) == ""
    for unit in UNITS:
        limit = f"--threshold={EXPOSURE_MAX}"
        code, text = cluster.db.run("systemd-analyze", "security", limit, f"{unit}.service")
        assert code == 0, text


@pytest.mark.parametrize("unit", ["sk-generations", "sk-pageserver"])
def test_a_service_that_is_not_configured_says_what_it_lacks(
    cluster: SystemdCluster, unit: str
) -> None:
    """The generation service needs nothing more; the pageserver needs PACKAGE_EXTRAS."""
    machine = cluster.machines[0]
    try:
        code, _ = machine.run("systemctl", "start", unit)
        if unit == "sk-generations":
            assert (code, machine.unit(unit).active) == (0, "active")
        else:
            assert code != 0
            missing = "needs packages that are not installed: numpy, numba, pyarrow"
            wait_until(lambda: missing in machine.journal(unit), TIMEOUT, "it to say so")
    finally:
        machine.do("systemctl", "stop", unit)


def test_an_upgrade_restarts_nothing_and_keeps_all(cluster: SystemdCluster, ledger: Ledger) -> None:
    """The administrator then restarts the services, one machine after another."""
    before = {machine.name: machine.unit(SAFEKEEPER).pid for machine in cluster.machines}
    proposer = cluster.db.unit(PROPOSER).pid
    config = cluster.db.do("cat", "/etc/quorum-wal/proposer.toml")
    cluster.on_each(lambda machine: install(machine, NEWER_VERSION))
    assert {m.name: m.unit(SAFEKEEPER).pid for m in cluster.machines} == before
    assert cluster.db.unit(PROPOSER).pid == proposer
    assert cluster.db.do("cat", "/etc/quorum-wal/proposer.toml") == config
    ledger.wait_for_progress(10, TIMEOUT)
    for machine in cluster.machines:
        shown = machine.do("dpkg-query", "--show", "--showformat=${Version}", "quorum-wal")
        assert shown == NEWER_VERSION
        machine.do("systemctl", "restart", SAFEKEEPER)
        cluster.wait_protected()
    cluster.db.do("systemctl", "reload", PROPOSER)
    wait_restarted(cluster.db, PROPOSER, proposer)
    cluster.wait_protected()
    assert ledger.errors == ledger.unknown == 0


def test_a_purge_keeps_the_wal(cluster: SystemdCluster, ledger: Ledger) -> None:
    """The safekeeper continues with it when the package is installed again."""
    machine = cluster.machines[0]
    wal = "find /var/lib/sk/safekeeper -type f | sort"
    machine.do("dpkg", "--remove", "quorum-wal")
    try:
        files = machine.shell(wal)
        assert files
        purged = machine.do("dpkg", "--purge", "quorum-wal")
        assert "/var/lib/sk is kept" in purged
        assert machine.shell(wal) == files
        units = "find /etc/systemd/system /usr/lib/systemd/system -name 'sk-*'"
        assert machine.shell(units) == ""
        ledger.wait_for_progress(10, TIMEOUT)
    finally:
        install(machine, VERSION)
        cluster.configure_safekeeper(machine)
        machine.do("systemctl", "enable", "--now", SAFEKEEPER)
    cluster.wait_protected()


# ---- the units


def test_commits_wait_for_the_quorum(cluster: SystemdCluster, ledger: Ledger) -> None:
    for machine in cluster.machines[:2]:
        begun = time.monotonic()
        machine.do("systemctl", "stop", SAFEKEEPER)
        assert time.monotonic() - begun < STOP_SECONDS_MAX
        assert machine.unit(SAFEKEEPER).result == "success"
    commit = PendingCommit(cluster.postgres)
    commit.wait_blocked(TIMEOUT)
    for machine in cluster.machines[:2]:
        machine.do("systemctl", "start", SAFEKEEPER)
    commit.wait_returned(TIMEOUT)
    cluster.wait_protected()


def test_a_reload_of_the_proposer_makes_no_gap(cluster: SystemdCluster, ledger: Ledger) -> None:
    """One of three must keep to the limit, as other work may be beside a test."""
    waits_seconds = []
    for _ in range(3):
        pid, begun = cluster.db.unit(PROPOSER).pid, time.monotonic()
        cluster.db.do("systemctl", "reload", PROPOSER)
        wait_restarted(cluster.db, PROPOSER, pid)
        bridge = f"{PROPOSER}-bridge"
        wait_until(
            lambda bridge=bridge: cluster.db.unit(bridge).pid == 0, TIMEOUT, "the bridge to end"
        )
        cluster.wait_protected()
        ledger.wait_for_progress(50, TIMEOUT)
        waits_seconds.append(ledger.longest_wait(begun))
    assert min(waits_seconds) < GAP_SECONDS_MAX, waits_seconds
    assert ledger.errors == ledger.unknown == 0


def test_a_proposer_that_is_killed_is_started_again(
    cluster: SystemdCluster, ledger: Ledger
) -> None:
    before = cluster.db.unit(PROPOSER)
    cluster.db.do("systemctl", "kill", "--signal=KILL", PROPOSER)
    wait_restarted(cluster.db, PROPOSER, before.pid)
    assert cluster.db.unit(PROPOSER).restarts > before.restarts
    cluster.wait_protected()


@contextmanager
def short_watchdog(machine: Machine) -> Iterator[None]:
    folder = f"/etc/systemd/system/{PROPOSER}.service.d"
    machine.put(f"{folder}/override.conf", f"[Service]\nWatchdogSec={WATCHDOG_SECONDS}\n".encode())
    apply = f"systemctl daemon-reload && systemctl restart {PROPOSER}"
    try:
        machine.shell(apply)
        yield
    finally:
        machine.shell(f"rm -r {folder} && {apply}")


def test_the_watchdog_ends_a_proposer_that_hangs(cluster: SystemdCluster, ledger: Ledger) -> None:
    with short_watchdog(cluster.db):
        cluster.wait_protected()
        pid = cluster.db.unit(PROPOSER).pid
        cluster.db.do("systemctl", "kill", "--signal=STOP", "--kill-whom=main", PROPOSER)
        wait_restarted(cluster.db, PROPOSER, pid)
        assert "Watchdog timeout" in cluster.db.journal(PROPOSER)
        cluster.wait_protected()


def test_a_stop_of_the_proposer_takes_seconds(cluster: SystemdCluster, ledger: Ledger) -> None:
    begun = time.monotonic()
    cluster.db.do("systemctl", "stop", PROPOSER)
    assert time.monotonic() - begun < STOP_SECONDS_MAX
    assert cluster.db.unit(PROPOSER).result == "success"
    commit = PendingCommit(cluster.postgres)
    commit.wait_blocked(TIMEOUT)
    cluster.db.do("systemctl", "start", PROPOSER)
    commit.wait_returned(TIMEOUT)
    cluster.wait_protected()


def test_a_restart_of_postgres(cluster: SystemdCluster, ledger: Ledger) -> None:
    """The proposer stays, and attaches again."""
    pid = cluster.db.unit(PROPOSER).pid
    cluster.db.do("systemctl", "restart", CLUSTER)
    cluster.wait_protected()
    assert cluster.db.unit(PROPOSER).pid == pid


def test_a_restart_of_the_machine(cluster: SystemdCluster, ledger: Ledger) -> None:
    """Postgres stops before its proposer, and everything comes back by itself."""
    cluster.db.do("systemctl", "stop", CLUSTER, PROPOSER)
    ended = [
        int(cluster.db.do("systemctl", "show", "--value", f"--property={WHEN_ENDED}", unit))
        for unit in (CLUSTER, PROPOSER)
    ]
    assert ended == sorted(ended)
    cluster.db.do("systemctl", "start", CLUSTER, PROPOSER)
    cluster.wait_protected()
    cluster.db.container.restart(timeout=60)
    cluster.wait_protected()
