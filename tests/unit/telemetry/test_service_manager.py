"""The messages to a service manager, received by a real socket."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from notify_socket import notify_socket
from structlog.testing import capture_logs

from quorum_wal.telemetry.service_manager import ServiceManager

TIMEOUT = 30.0
WATCHDOG_SECONDS = 0.6


@pytest.fixture
def told(tmp_path: Path) -> Iterator[socket.socket]:
    with notify_socket(tmp_path / "notify", TIMEOUT) as sock:
        yield sock


def environ(told: socket.socket, **more: str) -> dict[str, str]:
    return {"NOTIFY_SOCKET": told.getsockname(), **more}


def test_one_datagram_has_all_of_a_message(told: socket.socket) -> None:
    ServiceManager(environ(told)).notify("READY=1", "STATUS=all is well")
    assert told.recv(1000) == b"READY=1\nSTATUS=all is well"


def test_a_socket_without_a_file() -> None:
    name = secrets.token_hex(8)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(f"\0{name}")
        sock.settimeout(TIMEOUT)
        ServiceManager({"NOTIFY_SOCKET": f"@{name}"}).notify("READY=1")
        assert sock.recv(1000) == b"READY=1"


def test_without_a_service_manager_nothing_is_sent() -> None:
    manager = ServiceManager({"WATCHDOG_USEC": "1000000"})
    manager.notify("READY=1")
    assert manager.watchdog_seconds == 0


def test_a_missing_socket_is_not_an_error(tmp_path: Path) -> None:
    with capture_logs() as lines:
        ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "nowhere")}).notify("READY=1")
    assert [line["event"] for line in lines] == ["could not notify the service manager"]


@pytest.mark.parametrize(
    ("more", "seconds"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "500000", "WATCHDOG_PID": str(os.getpid())}, 0.5),
        ({"WATCHDOG_USEC": "500000", "WATCHDOG_PID": str(os.getppid())}, 0.0),
        ({"WATCHDOG_USEC": "soon"}, 0.0),
        ({}, 0.0),
    ],
)
def test_the_watchdog_is_ours_or_not(
    told: socket.socket, more: dict[str, str], seconds: float
) -> None:
    assert ServiceManager(environ(told, **more)).watchdog_seconds == seconds


def test_the_watchdog_is_notified_while_there_is_progress(told: socket.socket) -> None:
    silent_seconds = 0.0
    usec = str(int(WATCHDOG_SECONDS * 1e6))
    manager = ServiceManager(environ(told, WATCHDOG_USEC=usec))
    with manager.watched("the loop", lambda: silent_seconds):
        assert {told.recv(1000) for _ in range(3)} == {b"WATCHDOG=1"}
        silent_seconds = 60.0
        while (message := told.recv(1000)) == b"WATCHDOG=1":
            continue
        assert message == b"STATUS=the loop makes no progress: the watchdog is not notified"
        told.settimeout(2 * WATCHDOG_SECONDS)
        with pytest.raises(TimeoutError):
            told.recv(1000)
        told.settimeout(TIMEOUT)
        silent_seconds = 0.0
        assert told.recv(1000) == b"WATCHDOG=1"
    while (message := told.recv(1000)) == b"WATCHDOG=1":
        continue
    assert message == b"STOPPING=1"
