"""A forked `sk` process behaves like an executed one, and ends with the process that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.namespaces import new_namespace
from quorum_wal.pg_fixtures import processes
from quorum_wal.pg_fixtures.fork_server import COMMAND_LINE_BYTES_MAX, ForkServers
from quorum_wal.pg_fixtures.process_table import read_entry
from quorum_wal.pg_fixtures.processes import SK, ServiceProcess
from quorum_wal.pg_fixtures.safekeeper import SafekeeperProcess
from quorum_wal.pg_fixtures.waiting import wait_until

TIMEOUT = 120.0
ROOT = Path(__file__).parents[2]

#: Starts a safekeeper with its own fork server, prints its process id, and continues.
STARTER = """
import sys, time
from pathlib import Path
from quorum_wal.pg_fixtures import processes
from quorum_wal.pg_fixtures.fork_server import ForkServers
from quorum_wal.pg_fixtures.safekeeper import SafekeeperProcess
processes.fork_servers = ForkServers(processes.SK)
safekeeper = SafekeeperProcess(1, Path(sys.argv[1]))
safekeeper.__enter__()
print(safekeeper.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def servers() -> Iterator[ForkServers]:
    servers = ForkServers(SK)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "fork_servers", servers)
        yield servers
    servers.close()


def run(tmp_path: Path, *words: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    process = ServiceProcess([*SK, *words], log_path=tmp_path / "log", env=env)
    process.start()
    return process.wait(TIMEOUT), process.log_text()


def test_exit_codes_output_and_environment(servers: ForkServers, tmp_path: Path) -> None:
    assert run(tmp_path, "--version") == (0, "sk, version 0.1.0\n")
    code, text = run(tmp_path, "no-command")
    assert code == 2
    assert "No such command 'no-command'" in text
    code, text = run(tmp_path, "page", "get")
    assert code == 2
    assert "Missing" in text
    code, text = run(tmp_path, "status", env={"SK_STATUS_SAFEKEEPERS": "127.0.0.1:1"})
    assert code == 4
    assert "no safekeeper answers" in text


def test_a_forked_process_behaves_like_an_executed_one(
    servers: ForkServers, tmp_path: Path
) -> None:
    with SafekeeperProcess(1, tmp_path / "safekeeper") as safekeeper:
        entry = read_entry(safekeeper.pid)
        assert entry is not None
        assert entry.session_id == safekeeper.pid
        assert entry.parent_pid != os.getpid(), "it was executed, not forked"
        words = Path(f"/proc/{safekeeper.pid}/cmdline").read_text().rstrip("\0").split("\0")
        assert words == safekeeper.program
        safekeeper.pause()
        assert safekeeper.alive
        safekeeper.resume()
        safekeeper.restart()
        safekeeper.send_signal(signal.SIGKILL)
        assert safekeeper.wait(TIMEOUT) == -signal.SIGKILL
        safekeeper.start()
        safekeeper.wait_ready()
        assert safekeeper.terminate() == 0


def test_a_process_can_be_killed_as_soon_as_it_is_started(
    servers: ForkServers, tmp_path: Path
) -> None:
    process = ServiceProcess([*SK, "--version"], log_path=tmp_path / "log")
    for _ in range(100):
        process.start()
        process.kill()
        assert process.exit_code in (-signal.SIGKILL, 0)


def test_commands_that_act_at_their_start_are_executed(servers: ForkServers) -> None:
    env = dict(os.environ)
    assert servers.find([*SK, "status"], env)
    assert not servers.find([*SK, "status"], {**env, "LD_PRELOAD": "/failing-disk.so"})
    assert not servers.find([*SK, "x" * COMMAND_LINE_BYTES_MAX], env)
    assert not servers.find([sys.executable, "-c", "pass"], env)


def test_a_forked_process_is_in_the_network_of_the_thread_that_starts_it(tmp_path: Path) -> None:
    """The server keeps the network of the thread that was the first to need it."""
    servers = ForkServers(SK)
    with ExitStack() as stack:
        stack.callback(servers.close)
        stack.enter_context(pytest.MonkeyPatch.context()).setattr(
            processes, "fork_servers", servers
        )
        namespace = new_namespace(stack)
        with namespace.entered(), SafekeeperProcess(1, tmp_path / "1") as safekeeper:
            assert Path(f"/proc/{safekeeper.pid}/ns/net").samefile(namespace.path)
        with SafekeeperProcess(2, tmp_path / "2") as safekeeper:
            assert Path(f"/proc/{safekeeper.pid}/ns/net").samefile("/proc/self/ns/net")


def test_all_processes_end_with_the_one_that_started_them(tmp_path: Path) -> None:
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, str(tmp_path / "safekeeper")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    with starter:
        assert starter.stdout is not None
        entry = read_entry(int(starter.stdout.readline()))
        assert entry is not None
        starter.kill()
    wait_until(lambda: entry.now() is None, TIMEOUT, "the safekeeper to end with its starter")
