"""`SafekeeperProcess`: `sk safekeeper run` as a child process, with its data folder and ports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from quorum_wal.pg_fixtures.http_status import http_get_status, is_healthy
from quorum_wal.pg_fixtures.ports import free_port
from quorum_wal.pg_fixtures.processes import SK, ServiceProcess

READY_TIMEOUT = 30.0  # seconds; a start decodes WAL to find the end of each log


class SafekeeperProcess(ServiceProcess):
    """A context manager: ready inside the block, killed at its end. A restart keeps ports and data.

    `arguments` are appended to the command line, `env` to the environment. It has no guard against
    hangs: a test decides for how long it is paused.
    """

    def __init__(
        self,
        id: int,
        data_dir: Path,
        *,
        port: int | None = None,
        http_port: int | None = None,
        arguments: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.id = id
        self.data_dir = data_dir
        self.address = f"127.0.0.1:{free_port() if port is None else port}"
        self.http_address = f"127.0.0.1:{free_port() if http_port is None else http_port}"
        super().__init__(
            [
                *(*SK, "safekeeper", "run"),
                *("--id", str(id)),
                *("--data-dir", data_dir),
                *("--listen", self.address),
                *("--http", self.http_address),
                "--hang-timeout=0",
                *arguments,
            ],
            name=f"safekeeper {id}",
            log_path=data_dir.with_name(f"{data_dir.name}.log"),
            env=env,
        )

    def __enter__(self) -> Self:
        self.start()
        try:
            self.wait_ready()
        except BaseException:
            self.kill()
            raise
        return self

    def restart(self, timeout: float = READY_TIMEOUT) -> None:
        """Kills it, starts it again, and waits until it is ready."""
        self.kill()
        self.start()
        self.wait_ready(timeout)

    def wait_ready(self, timeout: float = READY_TIMEOUT) -> None:
        """Returns when /healthz answers 200. Raises ProcessEnded, DeadlineExceeded."""
        self.wait_until(lambda: is_healthy(self.http_address), timeout, "/healthz to answer 200")

    def status(self) -> dict[str, Any]:
        """The JSON of /status. Raises OSError if it does not answer."""
        return http_get_status(self.http_address)

    def timeline(self, timeline_id: str | None = None) -> dict[str, Any] | None:
        """The status of this timeline, or of the first; None if there is none."""
        for timeline in self.status()["timelines"]:
            if timeline_id in (None, timeline["timeline_id"]):
                return dict(timeline)
        return None
