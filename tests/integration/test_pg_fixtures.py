"""The fixtures: servers and services start, crash, recover, and always end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from quorum_wal.pg_fixtures.data_directory import DataDirectory
from quorum_wal.pg_fixtures.errors import ConfigurationError, ProcessEnded
from quorum_wal.pg_fixtures.ports import BLOCK_PORTS, PORT_FIRST, free_port
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.process_table import family, read_entry
from quorum_wal.pg_fixtures.processes import ServiceProcess
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_server.binaries import PostgresBinaries, all_postgres

PostgresFactory = Callable[..., Postgres]
TIMEOUT = 120.0

each_postgres = pytest.mark.parametrize(
    "pg_binaries", all_postgres(), ids=lambda binaries: binaries.version, indirect=True
)


# ---- Postgres


@each_postgres
def test_life_of_a_server(postgres: Postgres, pg_binaries: PostgresBinaries) -> None:
    """Committed rows exist after a stop and a start; client programs reach the server."""
    assert postgres.execute("SHOW server_version_num")[0][0].startswith(str(pg_binaries.major))
    postgres.execute("CREATE TABLE t AS SELECT 42 AS a")
    before = postgres.flush_lsn()
    postgres.restart()
    assert postgres.execute("SELECT a FROM t") == [(42,)]
    assert postgres.flush_lsn() > before

    postgres.pgbench("-i", "-q", "-s", "1")
    assert "number of transactions actually processed: 20" in postgres.pgbench("-t", "20", "-n")
    end = postgres.flush_lsn()
    assert "COMMIT" in postgres.waldump("--start", str(before), "--end", str(end))

    postgres.stop()
    assert not postgres.is_running
    assert postgres.control_data()["Database cluster state"] == "shut down"
    postgres.stop()  # allowed


def shared_memory_ids() -> set[int]:
    lines = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
    return {int(line.split()[1]) for line in lines}


@each_postgres
def test_a_crash_ends_every_process_and_is_recovered_from(postgres: Postgres) -> None:
    postgres.execute("CREATE TABLE t (a int)")
    with closing(postgres.connect()) as open_transaction:
        open_transaction.execute("BEGIN")
        open_transaction.execute("INSERT INTO t VALUES (0)")
        postgres.execute("INSERT INTO t VALUES (1)")
        members = family(postgres.pid)
        state = DataDirectory(postgres.data_dir, postgres.binaries).postmaster_file()
        assert state is not None
        assert state.shared_memory_id in shared_memory_ids()
        postgres.crash()

    assert len(members) > 5
    assert not any(member.now() for member in members)
    assert not postgres.is_running
    assert state.shared_memory_id not in shared_memory_ids()
    postgres.start()
    assert postgres.execute("SELECT a FROM t") == [(1,)]
    assert "automatic recovery in progress" in postgres.log_text()


@each_postgres
def test_a_base_backup_makes_a_standby(postgres: Postgres, tmp_path: Path) -> None:
    postgres.configure(log_min_messages="warning")
    with postgres.base_backup(tmp_path / "standby", "--write-recovery-conf") as standby:
        assert standby.execute("SHOW log_min_messages") == [("warning",)]
        postgres.execute("CREATE TABLE t AS SELECT 42 AS a")
        end = str(postgres.flush_lsn())
        wait_until(
            lambda: standby.execute("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", [end])[0][0],
            TIMEOUT,
            "the standby to replay",
        )
        assert standby.execute("SELECT pg_is_in_recovery(), a FROM t") == [(True, 42)]


def test_settings(postgres: Postgres) -> None:
    """They are in force on return, with correct quotes; settings that Postgres refuses change
    nothing."""
    default = postgres.execute("SHOW work_mem")
    name = '"it\'s"'
    postgres.configure(work_mem="5MB", synchronous_standby_names=name, max_connections=42)
    assert postgres.execute("SHOW work_mem") == [("5MB",)]
    assert postgres.execute("SHOW synchronous_standby_names") == [(name,)]
    assert postgres.execute("SHOW max_connections") == [("100",)]

    with pytest.raises(ConfigurationError, match="work_mem = lots"):
        postgres.configure(work_mem="lots")
    with pytest.raises(ConfigurationError, match="no_such_setting"):
        postgres.configure(no_such_setting=True)
    postgres.restart()
    assert postgres.execute("SHOW max_connections") == [("42",)]
    assert postgres.execute("SHOW work_mem") == [("5MB",)]
    postgres.configure(work_mem=None)
    assert postgres.execute("SHOW work_mem") == default


def test_settings_of_a_server_not_yet_started(postgres_factory: PostgresFactory) -> None:
    """Later settings win; an existing folder takes them, too."""
    settings = {"work_mem": "5MB", "wal_level": "logical"}
    postgres = postgres_factory(settings=settings, start=False)
    postgres.configure(work_mem="6MB")
    postgres.start()
    assert postgres.execute("SHOW work_mem") == [("6MB",)]
    assert postgres.execute("SHOW wal_level") == [("logical",)]
    postgres.stop()
    settings = {"work_mem": "7MB"}
    with Postgres(postgres.binaries, postgres.data_dir, settings=settings) as again:
        assert again.execute("SHOW work_mem") == [("7MB",)]
        assert again.execute("SHOW wal_level") == [("logical",)]


def test_a_waiting_commit_blocks_no_probe(postgres: Postgres) -> None:
    postgres.configure(synchronous_standby_names="nobody")
    with closing(postgres.connect()) as waiting:
        waiting.pgconn.send_query(b"CREATE TABLE t (a int)")
        syncrep = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        wait_until(lambda: postgres.execute(syncrep) == [(1,)], TIMEOUT, "the commit to wait")
        postgres.wait_ready(1)
        postgres.configure(work_mem="5MB")
        assert postgres.flush_lsn() > 0
        postgres.execute("CREATE TABLE u (a int)", options="-c synchronous_commit=local")
        postgres.stop("fast")


def test_servers_share_an_identity_unless_fresh(postgres_factory: PostgresFactory) -> None:
    def system_identifier(postgres: Postgres) -> str:
        return postgres.control_data()["Database system identifier"]

    one, two = postgres_factory("one", start=False), postgres_factory("two", start=False)
    fresh = postgres_factory("fresh", start=False, fresh=True, wal_seg_size=1 << 20)
    for postgres in (one, two, fresh):
        postgres.init()
    assert system_identifier(one) == system_identifier(two) != system_identifier(fresh)
    assert fresh.control_data()["Bytes per WAL segment"] == str(1 << 20)


def test_folders_that_the_server_may_not_enter_stay_as_they_are(
    pg_binaries: PostgresBinaries, tmp_path: Path
) -> None:
    """As root the server runs under another account; folders that others may not enter are not
    opened for it."""
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    with Postgres(pg_binaries, private / "data") as postgres:
        assert postgres.execute("SELECT 1") == [(1,)]
    assert private.stat().st_mode & 0o777 == 0o700
    assert private.stat().st_uid == os.geteuid()


def test_a_refused_start_is_explained(postgres_factory: PostgresFactory) -> None:
    postgres = postgres_factory(start=False)
    in_use = pytest.raises(ProcessEnded, match="Address already in use")
    with socket.create_server(("127.0.0.1", postgres.port)), in_use:
        postgres.start()
    assert not postgres.is_running
    postgres.start()


def test_a_server_ends_with_the_process_that_started_it(
    postgres_factory: PostgresFactory,
) -> None:
    postgres = postgres_factory(start=False)
    postgres.init()
    script = f"""if True:
        import signal
        from pathlib import Path
        from quorum_wal.pg_server.binaries import PostgresBinaries
        from quorum_wal.pg_fixtures.postgres import Postgres
        postgres = Postgres(PostgresBinaries.at(Path({str(postgres.binaries.bin_dir)!r})),
                            Path({str(postgres.data_dir)!r}))
        postgres.start()
        print(postgres.pid, flush=True)
        signal.pause()
    """
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    with parent, parent.stdout:
        members = family(int(parent.stdout.readline()))
        assert len(members) > 3
        parent.kill()
    wait_until(lambda: not any(m.now() for m in members), TIMEOUT, "the orphaned server to end")


# ---- ports and processes


def test_ports_are_handed_out_once_over_all_processes() -> None:
    """Three processes take 450 of 500 ports: without reservations they would meet."""
    script = """if True:
        import quorum_wal.pg_fixtures.ports as ports
        ports.PORT_FIRST, ports.PORT_END, ports.BLOCK_PORTS = 9000, 9500, 50
        print(*(ports.free_port() for _ in range(150)), flush=True)
        input()
    """
    command = [sys.executable, "-c", script]
    takers = [subprocess.Popen(command, stdin=-1, stdout=-1, text=True) for _ in range(3)]
    ports: list[str] = []
    for taker in takers:
        assert taker.stdout is not None
        ports += taker.stdout.readline().split()
    for taker in takers:
        taker.communicate("\n")
    assert len(set(ports)) == len(ports) == 450


def test_a_port_in_use_is_not_handed_out() -> None:
    """In a block of ports that this process has reserved, the next port is in use."""
    taken = free_port() + 1
    while (taken - PORT_FIRST) % BLOCK_PORTS == 0:  # of another block, perhaps of another process
        taken = free_port() + 1
    with socket.create_server(("127.0.0.1", taken)):
        assert free_port() != taken


@pytest.fixture
def ticker(tmp_path: Path) -> Iterator[ServiceProcess]:
    """A program with a child: both print a tick every 10 ms; SIGTERM ends it with code 7."""
    script = (
        "import os, signal, sys, time\n"
        "child = os.fork()\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7 if child else 0))\n"
        "while True: print('tick', flush=True); time.sleep(0.01)\n"
    )
    process = ServiceProcess([sys.executable, "-c", script], log_path=tmp_path / "ticker.log")
    with process:
        process.wait_until(lambda: process.log_text().count("tick") > 2, TIMEOUT, "ticks")
        yield process


def test_a_service_is_paused_resumed_and_killed_with_its_children(ticker: ServiceProcess) -> None:
    members = wait_until(
        lambda: len(found := family(ticker.pid)) == 2 and found, TIMEOUT, "the child"
    )
    rss = ticker.rss_bytes()
    assert 2 << 20 < rss < 200 << 20

    ticker.pause()
    assert ticker.alive
    assert {entry.state for m in members if (entry := read_entry(m.pid))} == {"T"}
    ticks = ticker.log_text()
    ticker.resume()
    ticker.wait_until(lambda: len(ticker.log_text()) > len(ticks), TIMEOUT, "more ticks")

    ticker.kill()
    assert ticker.exit_code == -signal.SIGKILL
    assert not any(m.now() for m in members)
    ticker.kill()  # allowed
    ticker.start()
    assert ticker.terminate() in (7, -signal.SIGTERM)  # its handler may not be installed yet


def test_child_processes_of_a_service_end_with_it(tmp_path: Path) -> None:
    script = "import os, time; print(os.fork() or time.sleep(60), flush=True)"
    process = ServiceProcess([sys.executable, "-c", script], log_path=tmp_path / "log")
    with process:
        assert process.wait(TIMEOUT) == 0
        assert read_entry(int(process.log_text())) is None or family(int(process.log_text())) == []


def test_a_service_that_ends_early_says_so_at_once(tmp_path: Path) -> None:
    script = "import sys; sys.exit('the reason')"
    process = ServiceProcess([sys.executable, "-c", script], log_path=tmp_path / "log")
    with process, pytest.raises(ProcessEnded, match=r"exit code 1 while(?s:.*)the reason"):
        process.wait_until(lambda: False, TIMEOUT, "what never comes")
