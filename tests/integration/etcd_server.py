"""etcd as a child process: one member, on loopback."""

from __future__ import annotations

import json
import shutil
from http import HTTPStatus
from pathlib import Path
from typing import Self

from quorum_wal.pg_fixtures.http_status import http_get
from quorum_wal.pg_fixtures.ports import free_port
from quorum_wal.pg_fixtures.processes import ServiceProcess
from quorum_wal.pg_server.errors import Unavailable

START_TIMEOUT = 120.0  # seconds


class EtcdServer(ServiceProcess):
    """A context manager; it is ready inside the block. Raises Unavailable if it is not
    installed."""

    def __init__(self, folder: Path) -> None:
        program = shutil.which("etcd")
        if program is None:
            raise Unavailable("etcd is not installed", hint="apt-get install etcd-server")
        self.address = f"127.0.0.1:{free_port()}"
        client, peer = f"http://{self.address}", f"http://127.0.0.1:{free_port()}"
        super().__init__(
            [
                program,
                *("--data-dir", folder / "etcd"),
                *("--listen-client-urls", client, "--advertise-client-urls", client),
                *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
                *("--initial-cluster", f"default={peer}"),
            ],
            log_path=folder / "etcd.log",
        )

    @property
    def lock_url(self) -> str:
        """The URL for --lock."""
        return f"etcd://{self.address}/locks/main"

    def __enter__(self) -> Self:
        self.start()
        self.wait_until(self._is_healthy, START_TIMEOUT, "etcd to answer")
        return self

    def _is_healthy(self) -> bool:
        try:
            code, text = http_get(self.address, "/health")
        except OSError:
            return False
        return code == HTTPStatus.OK and json.loads(text)["health"] == "true"
