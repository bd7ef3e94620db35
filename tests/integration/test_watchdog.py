"""A proposer under a service manager: its messages to it, and their absence while its loop
hangs."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest
from notify_socket import notify_socket
from reckoning import TIMEOUT

from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.processes import SK
from quorum_wal.pg_fixtures.waiting import wait_until

WATCHDOG_SECONDS = 6.0
STANDS = "the loop of the proposer makes no progress: the watchdog is not notified"


@pytest.fixture
def told(tmp_path: Path) -> Iterator[socket.socket]:
    with notify_socket(tmp_path / "notify", TIMEOUT) as sock:
        yield sock


def wait_told(told: socket.socket, wanted: str) -> None:
    while wanted not in told.recv(4096).decode().splitlines():
        continue


def fill(pipe: int) -> None:
    """Fill the pipe completely; opened separately, so that other writers still block."""
    writer = os.open(f"/proc/self/fd/{pipe}", os.O_WRONLY | os.O_NONBLOCK)
    try:
        while os.write(writer, b"."):
            continue
    except BlockingIOError:
        pass  # it is full
    finally:
        os.close(writer)


def drain(pipe: int) -> None:
    """Read until no process writes to it any more."""
    with open(pipe, "rb") as file:
        while file.read(1 << 16):
            continue


def test_the_watchdog_gets_no_message_while_the_loop_hangs(
    cluster: QuorumCluster, told: socket.socket
) -> None:
    """It hangs in a write to its log, whose reader has stopped."""
    assert cluster.proposer.terminate(TIMEOUT) == 0
    members = ",".join(safekeeper.address for safekeeper in cluster.safekeepers)
    primary = ("--primary", cluster.postgres.dsn(), "--safekeepers", members)
    service_manager = {
        "NOTIFY_SOCKET": str(told.getsockname()),
        "WATCHDOG_USEC": str(int(WATCHDOG_SECONDS * 1e6)),
    }
    reader, writer = os.pipe()
    try:
        with subprocess.Popen(
            [*SK, "--log-level", "warning", "attach", *primary, "--http", "127.0.0.1:0"],
            env={**os.environ, **service_manager},
            stdout=subprocess.DEVNULL,
            stderr=writer,
        ) as process:
            try:
                wait_told(told, "READY=1")
                wait_told(told, "WATCHDOG=1")
                wait_until(cluster.is_synchronous, TIMEOUT, "it to stream")
                fill(writer)
                cluster.safekeepers[0].kill()  # which the loop writes to its log
                wait_told(told, f"STATUS={STANDS}")
                told.settimeout(WATCHDOG_SECONDS)
                with pytest.raises(TimeoutError):
                    told.recv(4096)
                told.settimeout(TIMEOUT)
                Thread(target=drain, args=(reader,), daemon=True).start()
                wait_told(told, "WATCHDOG=1")
                process.terminate()
                wait_told(told, "STOPPING=1")
                assert process.wait(TIMEOUT) == 0
            finally:
                process.kill()
    finally:
        os.close(writer)
