"""`GenerationProcess`: `sk generations serve` as a child process, with its port."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Self

from quorum_wal.pg_fixtures.http_status import is_healthy
from quorum_wal.pg_fixtures.ports import free_port
from quorum_wal.pg_fixtures.processes import SK, ServiceProcess

READY_TIMEOUT = 30.0  # seconds; it imports a web server


class GenerationProcess(ServiceProcess):
    """A context manager: ready inside the block, killed at its end. A restart keeps the port.

    `database` is a path or a URI; `arguments` are appended to the command line. Without TLS.
    """

    def __init__(self, database: str, *, log_path: Path, arguments: Sequence[str] = ()) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        super().__init__(
            [
                *(*SK, "generations", "serve"),
                *("--database", database),
                *("--listen", self.address),
                *arguments,
            ],
            name="generation service",
            log_path=log_path,
        )

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def __enter__(self) -> Self:
        self.start()
        try:
            self.wait_ready()
        except BaseException:
            self.kill()
            raise
        return self

    def restart(self) -> None:
        """Kills it, starts it again, and waits until it is ready."""
        self.kill()
        self.start()
        self.wait_ready()

    def wait_ready(self, timeout: float = READY_TIMEOUT) -> None:
        """Returns when /healthz answers 200. Raises ProcessEnded, DeadlineExceeded."""
        self.wait_until(lambda: is_healthy(self.address), timeout, "/healthz to answer 200")
