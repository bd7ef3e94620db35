"""One safekeeper with two hundred timelines: most asleep, one damaged, one full, one active. None
affects another, and their common cost is limited."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import psycopg
import pytest
from replication_client import ReplicationClient, ServerError
from sk_command import sk

from quorum_wal.consensus.codec import encode_membership
from quorum_wal.consensus.ids import TimelineId
from quorum_wal.pg_fixtures.cloned_timelines import clone_timeline, numbered_names
from quorum_wal.pg_fixtures.http_status import http_get
from quorum_wal.pg_fixtures.ledger import Ledger
from quorum_wal.pg_fixtures.ports import free_port
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.processes import SK
from quorum_wal.pg_fixtures.proposer import ProposerProcess
from quorum_wal.pg_fixtures.safekeeper import SafekeeperProcess
from quorum_wal.pg_server.binaries import PostgresBinaries
from quorum_wal.safekeeper.control_file import CONTROL_FILE_NAME
from quorum_wal.safekeeper.data_directory import folder_name
from tests.new_timeline import first_membership

MIB = 1 << 20
COUNT = 200
TENANT_WAL = 48 * MIB
TIMEOUT = 120.0
#: Without any acknowledged commit, on a busy machine.
SILENCE_SECONDS_MAX = 10.0
WORKING = TimelineId(b"working".ljust(16, b"\0"), b"1" * 16)
FULL = TimelineId(b"full".ljust(16, b"\0"), b"2" * 16)
NAMES = numbered_names(COUNT)
ROTTEN = NAMES[COUNT // 2]
#: Its control file is damaged, so only its folder is known.
UNREADABLE = TimelineId(b"unreadable".ljust(16, b"\0"), b"3" * 16)
OPTIONS = (
    *("--idle-timeout", "1", "--tenant-wal-max", f"{TENANT_WAL >> 20}MB"),
    *("--tenant-timelines-max", str(COUNT), "--tenant-connections-max", "4"),
)


@dataclass
class World:
    """The first safekeeper has all of them."""

    safekeepers: list[SafekeeperProcess]
    working: Postgres
    proposer: ProposerProcess

    @property
    def crowded(self) -> SafekeeperProcess:
        return self.safekeepers[0]

    @property
    def addresses(self) -> list[str]:
        return [safekeeper.address for safekeeper in self.safekeepers]

    def statuses(self) -> dict[str, dict[str, Any]]:
        """The statuses by the names of the timelines."""
        return {
            f"{status['tenant_id']}/{status['timeline_id']}": status
            for status in self.crowded.status()["timelines"]
        }

    def status_of(self, name: TimelineId) -> dict[str, Any]:
        return self.statuses()[str(name)]

    def asleep_count(self) -> int:
        return sum(status["asleep"] for status in self.statuses().values())

    def wait_until(self, condition: Callable[[], object], what: str) -> None:
        """Wait until a status page satisfies the condition."""

        def is_so() -> object:
            try:
                return condition()
            except OSError:
                return False  # it begins

        self.crowded.wait_until(is_so, TIMEOUT, what)


def attach(root: Path, postgres: Postgres, name: TimelineId, addresses: list[str]) -> list[str]:
    """Create its timeline; returns the arguments of its proposer."""
    members = ",".join(addresses)
    created = sk("timeline", "create", "--primary", postgres.dsn(), "--timeline", name,
                 "--safekeepers", members)  # fmt: skip
    assert created.returncode == 0, created.stderr
    return ["--timeline", str(name)]


def rot(data_dir: Path, name: TimelineId) -> None:
    """Flip a bit of its newest record with content."""
    folder = data_dir / "timelines" / folder_name(name) / "wal"
    path = max(path for path in folder.iterdir() if len(path.name) == 24)
    content = bytearray(path.read_bytes())
    end = len(content.rstrip(b"\0"))
    content[end - 20] ^= 0x10
    path.write_bytes(content)


def rot_control_file(data_dir: Path, name: TimelineId) -> None:
    path = data_dir / "timelines" / folder_name(name) / CONTROL_FILE_NAME
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


@pytest.fixture(scope="module")
def made(
    pg_binaries: PostgresBinaries,
    initdb_template: Callable[[PostgresBinaries, int], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[World]:
    root = tmp_path_factory.mktemp("many")
    with ExitStack() as stack:
        safekeepers = [
            stack.enter_context(SafekeeperProcess(id, root / f"safekeeper-{id}", arguments=OPTIONS))
            for id in (1, 2, 3)
        ]
        template = initdb_template(pg_binaries, MIB)
        working = stack.enter_context(Postgres(pg_binaries, root / "working", template=template))
        addresses = [safekeeper.address for safekeeper in safekeepers]
        arguments = attach(root, working, WORKING, addresses)
        proposer = stack.enter_context(
            ProposerProcess(
                working.dsn(),
                addresses,
                log_path=root / "proposer.log",
                configure=True,
                arguments=arguments,
            )
        )
        proposer.wait_streaming()
        working.execute("CREATE TABLE first (a int)")
        crowded, second = safekeepers[:2]
        second.terminate()
        clone_timeline(second.data_dir, WORKING, [UNREADABLE])
        second.start()
        second.wait_ready()
        crowded.terminate()
        clone_timeline(crowded.data_dir, WORKING, [*NAMES, UNREADABLE])
        rot(crowded.data_dir, ROTTEN)
        rot_control_file(crowded.data_dir, UNREADABLE)
        crowded.start()
        yield World(safekeepers, working, proposer)


@pytest.fixture
def world(made: World) -> World:
    """All timelines were checked, and the unused ones sleep."""
    made.wait_until(
        lambda: all(s["end_checked"] for s in made.statuses().values()), "all to be looked at"
    )
    made.wait_until(lambda: made.asleep_count() == COUNT, "all but the working ones to sleep")
    return made


def test_unused_timelines_are_checked_and_sleep(world: World) -> None:
    assert http_get(world.crowded.http_address, "/healthz")[0] == 503
    statuses = world.statuses()
    assert not statuses[str(WORKING)]["asleep"]
    assert [name for name, status in statuses.items() if status["damage"]] == [str(ROTTEN)]
    ((folder, why),) = world.crowded.status()["damaged"].items()
    assert folder == folder_name(UNREADABLE)
    assert "has checksum" in why
    files = os.listdir(f"/proc/{world.crowded.pid}/fd")
    tasks = os.listdir(f"/proc/{world.crowded.pid}/task")
    assert len(files) < 60
    assert len(tasks) < 30
    assert world.crowded.rss_bytes() < 256 * MIB


def test_lists_and_metrics_show_or_count_all_timelines(world: World) -> None:
    listed = sk("timeline", "list", "--safekeepers", world.crowded.address, "--json")
    assert listed.returncode == 0, listed.stderr
    for name in (ROTTEN, UNREADABLE):
        assert name.timeline_id.hex() in listed.stdout
    _, page = http_get(world.crowded.http_address, "/metrics")
    lines = page.splitlines()
    assert f'sk_timelines{{state="asleep"}} {COUNT}.0' in lines
    assert "sk_timelines_damaged 1.0" in lines
    assert f"sk_timelines_without_series {len(world.statuses()) - 100}.0" in lines
    shown = [line for line in lines if line.startswith("sk_timeline_lost_lsn{")]
    assert len(shown) == 100
    assert len([line for line in shown if ROTTEN.timeline_id.hex() in line]) == 1


def test_a_connection_wakes_a_timeline_and_keeps_it_awake(world: World) -> None:
    name = NAMES[7]
    host, _, port = world.crowded.address.partition(":")
    named = f"-c tenant_id={name.tenant_id.hex()} -c timeline_id={name.timeline_id.hex()}"
    with ReplicationClient(f"host={host} port={port} user=reader", options=named) as client:
        assert client.command("IDENTIFY_SYSTEM")[0].rows
        assert not world.status_of(name)["asleep"]
    world.wait_until(lambda: world.status_of(name)["asleep"], "it to sleep again")


def test_a_tenant_has_its_limits(world: World) -> None:
    host, _, port = world.crowded.address.partition(":")
    conninfo = f"host={host} port={port} user=reader"
    named = f"-c tenant_id={NAMES[0].tenant_id.hex()} -c timeline_id={NAMES[0].timeline_id.hex()}"
    with ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(ReplicationClient(conninfo, options=named))
        with pytest.raises(AssertionError, match="too many connections for tenant"):
            stack.enter_context(ReplicationClient(conninfo, options=named))
        other = f"-c tenant_id={WORKING.tenant_id.hex()}"
        stack.enter_context(ReplicationClient(conninfo, options=other))
    with ReplicationClient(conninfo) as client, pytest.raises(ServerError) as caught:
        client.command(
            f"CREATE_TIMELINE (tenant_id '{NAMES[0].tenant_id.hex()}', timeline_id '{'f' * 32}', "
            "system_id '1', pg_version '160000', wal_seg_size '1048576', start_lsn '0/100000', "
            f"tli '1', membership '{encode_membership(first_membership(1)).hex()}')"
        )
    assert caught.value.sqlstate == "53400"
    assert "--tenant-timelines-max" in caught.value.hint


def test_a_full_timeline_affects_no_other(
    world: World, pg_binaries: PostgresBinaries, tmp_path: Path
) -> None:
    """Its tenant's quota is used up on all members: its commits wait, those of others do not."""
    with ExitStack() as stack:
        postgres = stack.enter_context(Postgres(pg_binaries, tmp_path / "full", wal_seg_size=MIB))
        arguments = attach(tmp_path, postgres, FULL, world.addresses)
        proposer = ProposerProcess(
            postgres.dsn(),
            world.addresses,
            log_path=tmp_path / "proposer.log",
            configure=True,
            arguments=arguments,
        )
        stack.enter_context(proposer)
        proposer.wait_streaming()
        ledger = stack.enter_context(Ledger(world.working.dsn(), clients=3, table="undisturbed"))
        flooding = Thread(target=flood, args=(postgres,), daemon=True)
        flooding.start()
        world.wait_until(lambda: world.status_of(FULL)["state"] == "stopped", "it to be full")
        reason = world.status_of(FULL)["stopped_reason"]
        assert f"its limit is {TENANT_WAL}" in reason
        ledger.wait_for_progress(200, TIMEOUT)
        statuses = world.statuses()
        assert [name for name, s in statuses.items() if s["state"] != "active"] == [str(FULL)]
        assert statuses[str(FULL)]["wal_bytes"] <= TENANT_WAL
        assert world.asleep_count() == COUNT
        assert ledger.longest_silence() < SILENCE_SECONDS_MAX
        ledger.stop()
        report = ledger.verify(world.working.dsn())
        assert report.ok, report
    gone = sk("timeline", "delete", FULL, "--yes", "--safekeepers", ",".join(world.addresses))
    assert gone.returncode == 0, gone.stderr


def flood(postgres: Postgres) -> None:
    """Write until the server stops."""
    try:
        with postgres.connect() as connection:
            connection.execute("CREATE TABLE flood (t text)")
            for _ in range(100):
                connection.execute("INSERT INTO flood SELECT repeat('x', 1000) "
                                   "FROM generate_series(1, 2000)")  # fmt: skip
    except psycopg.OperationalError:
        return  # the test is over


def test_after_a_kill_the_active_timeline_continues_at_once(world: World) -> None:
    """It does not wait for the timelines that sleep."""
    with Ledger(world.working.dsn(), clients=2, table="killed") as ledger:
        world.crowded.kill()
        world.crowded.start()
        world.wait_until(
            lambda: (world.status_of(WORKING)["proposer"] or {}).get("address"), "its proposer"
        )
        ledger.wait_for_progress(50, TIMEOUT)
        ledger.stop()
        assert ledger.verify(world.working.dsn()).ok


def test_too_few_open_files_are_refused_in_one_sentence(tmp_path: Path) -> None:
    """Otherwise they would run out with the connections, and timelines would stop."""

    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

    words = ("safekeeper", "run", "--id", "1", "--data-dir", tmp_path / "data")
    ports = ("--listen", f"127.0.0.1:{free_port()}", "--http", f"127.0.0.1:{free_port()}")
    done = subprocess.run(
        [*SK, *words, *ports],
        preexec_fn=few,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("sk: error: ")]
    assert len(errors) == 1
    assert "the limit of open files is 64, but 200 connections may need" in errors[0]
    assert "ulimit -n" in done.stderr
    assert not (tmp_path / "data").exists()
