"""The faults: each affects a real socket or file as intended, and is undone at its end."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from quorum_wal.pg_fixtures.crash import crash_postmaster
from quorum_wal.pg_fixtures.data_directory import DataDirectory
from quorum_wal.pg_fixtures.failing_disk import FailingDisk
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.process_table import family
from quorum_wal.pg_fixtures.proxy import Direction, TcpProxy
from quorum_wal.pg_fixtures.small_disk import SmallDisk
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_server.binaries import PostgresBinaries
from quorum_wal.pg_server.program import run_program

TIMEOUT = 120.0


# ---- the network


@pytest.fixture
def echo_port() -> Iterator[int]:
    """A server that sends back what it receives, until the stream ends."""

    def echo(connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(65536):
                    connection.sendall(data)
            except OSError:
                pass  # the proxy has cut the connection

    def accept(listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=echo, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept, args=(listener,), daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(TIMEOUT)


@pytest.fixture
def proxy(echo_port: int, tcp_proxy: Callable[[str, int], TcpProxy]) -> TcpProxy:
    return tcp_proxy("127.0.0.1", echo_port)


def dial(proxy: TcpProxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=TIMEOUT)


def receive(connection: socket.socket, length: int) -> bytes:
    received = b""
    while len(received) < length and (data := connection.recv(length - len(received))):
        received += data
    return received


def exchange(connection: socket.socket, data: bytes) -> bytes:
    connection.sendall(data)
    return receive(connection, len(data))


def is_silent(connection: socket.socket) -> bool:
    connection.settimeout(0.1)
    try:
        return connection.recv(1) is None
    except TimeoutError:
        return True
    finally:
        connection.settimeout(TIMEOUT)


def test_a_proxy_passes_every_byte_both_ways_and_the_end(proxy: TcpProxy) -> None:
    sent = os.urandom(8 << 20)
    with dial(proxy) as connection:

        def send() -> None:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)

        sender = threading.Thread(target=send)
        sender.start()
        received = b"".join(iter(lambda: connection.recv(1 << 16), b""))
        sender.join()
    assert received == sent
    assert set(proxy.traffic.bytes_passed.values()) == {len(sent)}
    wait_until(lambda: proxy.open_connections == 0, TIMEOUT, "the connection to be closed")


def test_a_cut_resets_and_refuses_until_restored(proxy: TcpProxy) -> None:
    with dial(proxy) as connection:
        assert exchange(connection, b"before") == b"before"
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    with pytest.raises(ConnectionRefusedError):
        dial(proxy)
    proxy.restore()
    with dial(proxy) as connection:
        assert exchange(connection, b"after") == b"after"


def test_a_stall_holds_everything_and_loses_nothing(proxy: TcpProxy) -> None:
    with dial(proxy) as old:
        assert exchange(old, b"before") == b"before"
        proxy.stall()
        old.sendall(b"held")
        with dial(proxy) as new:  # accepted
            new.sendall(b"held too")
            assert is_silent(old)
            assert is_silent(new)
            proxy.restore()
            assert receive(old, 4) == b"held"
            assert receive(new, 8) == b"held too"


def test_a_stalled_proxy_pushes_back(proxy: TcpProxy) -> None:
    """The bytes that it and the kernel's socket buffers hold are limited."""
    with dial(proxy) as connection:
        assert exchange(connection, b"before") == b"before"
        proxy.stall(Direction.TO_SERVICE)
        connection.settimeout(1.0)  # for all bytes
        with pytest.raises(TimeoutError):
            connection.sendall(bytes(64 << 20))
        proxy.restore()


def test_drop_loses_one_way_only_and_restore_resets_the_victim(proxy: TcpProxy) -> None:
    with dial(proxy) as victim:
        assert exchange(victim, b"before") == b"before"
        proxy.drop(Direction.TO_CLIENT)
        victim.sendall(b"lost answer")
        dropped = proxy.traffic.bytes_dropped
        wait_until(lambda: dropped[Direction.TO_CLIENT] == 11, TIMEOUT, "the answer to be lost")
        assert dropped[Direction.TO_SERVICE] == 0
        assert is_silent(victim)
        with dial(proxy) as bystander:
            wait_until(lambda: proxy.open_connections == 2, TIMEOUT, "the bystander")
            proxy.restore()
            assert exchange(bystander, b"whole") == b"whole"
        with pytest.raises(ConnectionResetError):
            victim.recv(1)


def test_delay_is_added_each_way(proxy: TcpProxy) -> None:
    with dial(proxy) as connection:
        proxy.delay(0.05)
        started_at = time.monotonic()
        assert exchange(connection, b"slow") == b"slow"
        assert time.monotonic() - started_at >= 0.1
        # Messages travel together: twenty of them do not take twenty times as long.
        for _ in range(20):
            connection.sendall(b"slow")
            time.sleep(0.001)
        assert receive(connection, 80) == b"slow" * 20
        assert time.monotonic() - started_at < 1.0


# ---- disks


def test_a_small_disk_fills_up(small_disk: Callable[[int], SmallDisk]) -> None:
    disk = small_disk(1 << 20)
    disk.fill(leave_bytes=8192)
    assert disk.free_bytes == 8192
    disk.fill()
    with pytest.raises(OSError, match="No space left") as full, open(disk.path / "f", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, 8192)
    assert full.value.errno == errno.ENOSPC
    disk.free()
    (disk.path / "f").write_bytes(bytes(8192))


def disk_errors(disk: FailingDisk, path: Path) -> str:
    """The answer of each call on `path` in a child process: its name and errno, one line each."""
    script = f"""if True:
        import os
        fd = os.open({str(path)!r}, os.O_RDWR | os.O_CREAT)
        for name, *arguments in (
            ("fdatasync",), ("fsync",), ("write", b"x"), ("pwrite", b"x", 0),
            ("pwritev", [b"x"], 0), ("posix_fallocate", 0, 10), ("ftruncate", 10),
        ):
            try:
                getattr(os, name)(fd, *arguments)
                print(name, 0)
            except OSError as error:
                print(name, error.errno)
    """
    return run_program([sys.executable, "-c", script], env=disk.env).stdout


def test_a_failing_disk_fails_when_requested(
    failing_disk: Callable[..., FailingDisk], tmp_path: Path
) -> None:
    below, beside = tmp_path / "below", tmp_path / "beside"
    below.mkdir()
    disk = failing_disk(only_below=below)
    healthy = disk_errors(disk, below / "f")
    assert {line.split()[1] for line in healthy.splitlines()} == {"0"}

    disk.fail_sync()
    assert disk_errors(disk, below / "f").startswith("fdatasync 5\nfsync 5\nwrite 0\n")
    assert disk.failures == 2
    assert disk_errors(disk, beside) == healthy
    disk.restore()
    assert disk_errors(disk, below / "f") == healthy

    disk.fail_sync(once=True)
    assert disk_errors(disk, below / "f").startswith("fdatasync 5\nfsync 0\n")
    disk.fail_writes(errno.ENOSPC)
    writes = "write 28\npwrite 28\npwritev 28\nposix_fallocate 28\nftruncate 28\n"
    assert disk_errors(disk, below / "f").endswith(writes)
    assert disk.failures == 8
    with pytest.raises(ValueError, match="EPERM"):
        disk.fail_sync(errno.EPERM)


def test_postgres_panics_on_a_failing_disk(
    postgres_factory: Callable[..., Postgres],
    failing_disk: Callable[..., FailingDisk],
    tmp_path: Path,
) -> None:
    disk = failing_disk(only_below=tmp_path / "postgres" / "pg_wal")
    postgres = postgres_factory("postgres", env=disk.env)
    disk.fail_sync()
    with pytest.raises(psycopg.OperationalError):
        postgres.execute("CREATE TABLE t (a int)")
    assert disk.failures > 0
    assert "PANIC:  could not fdatasync file" in postgres.log_text()


#: Its child waits in open(2) of a FIFO before exec(2), and it waits for the child.
VFORKING = """
import os, sys
action = (os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)
os.posix_spawn("/bin/true", ["true"], os.environ, file_actions=[action])
"""


def test_a_crash_while_a_process_waits_for_the_exec_of_its_child(
    tmp_path: Path, pg_binaries: PostgresBinaries
) -> None:
    """As the archiver of Postgres does for each segment."""
    os.mkfifo(tmp_path / "fifo")
    with subprocess.Popen([sys.executable, "-c", VFORKING, tmp_path / "fifo"]) as process:
        wait_until(
            lambda: {e.state for e in family(process.pid)} == {"D", "S"}, TIMEOUT, "it to wait"
        )
        crash_postmaster(process.pid, DataDirectory(tmp_path, pg_binaries))
        assert process.wait(TIMEOUT) == -signal.SIGKILL
