"""A safekeeper that is stopped while connections still arrive ends all of them, in order."""

from __future__ import annotations

import errno
import socket
from contextlib import closing
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from quorum_wal.pg_fixtures.ports import free_port
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.safekeeper import service
from quorum_wal.safekeeper.config import SafekeeperConfig
from quorum_wal.safekeeper.service import Safekeeper
from quorum_wal.telemetry.status_server import HttpListener, Pages, StatusServer

TIMEOUT = 10.0


def test_the_connection_accepted_last_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client's thread starts only after the stop has begun."""
    accepted = Event()
    address = "127.0.0.1", free_port()

    def is_closed() -> bool:
        with closing(socket.socket()) as probe:
            return probe.connect_ex(address) == errno.ECONNREFUSED

    class LateThread(Thread):
        def start(self) -> None:
            if self.name.startswith("client-"):
                accepted.set()
                wait_until(is_closed, TIMEOUT, "the stop")
            super().start()

    monkeypatch.setattr(service, "Thread", LateThread)
    with Safekeeper(SafekeeperConfig(1, tmp_path / "data", *address, "127.0.0.1", 0)):
        client = socket.create_connection(address, TIMEOUT)
        assert accepted.wait(TIMEOUT)
    with client:
        assert client.recv(1) == b""


def test_the_status_is_complete_when_the_port_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program may ask as soon as the port is open, before the safekeeper continues."""
    statuses: list[dict[str, Any]] = []

    class AskedAtOnce(StatusServer):
        def __init__(self, listener: HttpListener, pages: Pages) -> None:
            super().__init__(listener, pages)
            self._status = pages.status

        def __enter__(self) -> StatusServer:
            entered = super().__enter__()
            statuses.append(self._status())
            return entered

    monkeypatch.setattr(service, "StatusServer", AskedAtOnce)
    config = SafekeeperConfig(1, tmp_path / "data", "127.0.0.1", 0, "127.0.0.1", 0)
    with Safekeeper(config) as safekeeper:
        assert [status["http"] for status in statuses] == [safekeeper.http_address]
