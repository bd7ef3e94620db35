"""A safekeeper that is stopped while connections still arrive ends all of them, in order."""

from __future__ import annotations

import errno
import socket
from contextlib import closing
from pathlib import Path
from threading import Event, Thread

import pytest

from quorum_wal.pg_fixtures.ports import free_port
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.safekeeper import service
from quorum_wal.safekeeper.config import SafekeeperConfig
from quorum_wal.safekeeper.service import Safekeeper

TIMEOUT = 10.0


def test_who_is_accepted_last_is_turned_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client's thread starts only when the stop has begun."""
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
