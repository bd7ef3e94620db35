"""`PageserverProcess`: `sk pageserver run` as a child process, with its port."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from quorum_wal.pg_fixtures.http_status import http_get_status
from quorum_wal.pg_fixtures.ports import free_port
from quorum_wal.pg_fixtures.processes import SK, ServiceProcess
from quorum_wal.pgwal.lsn import Lsn


class PageserverProcess(ServiceProcess):
    """A context manager: killed at its end. A restart keeps the port."""

    def __init__(
        self,
        archive: Path | str,
        safekeepers: Sequence[str],
        data_dir: Path,
        *,
        node_id: int = 1,
        arguments: Sequence[str] = (),
    ) -> None:
        self.data_dir = data_dir
        self.http_address = f"127.0.0.1:{free_port()}"
        super().__init__(
            [
                *(*SK, "pageserver", "run"),
                *("--archive", str(archive)),
                *("--safekeepers", ",".join(safekeepers)),
                *("--data-dir", data_dir),
                *("--node-id", str(node_id)),
                *("--http", self.http_address),
                *arguments,
            ],
            name=f"pageserver {node_id}",
            log_path=data_dir.with_name(f"{data_dir.name}.log"),
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def status(self) -> dict[str, Any]:
        """The status page. Raises OSError if it does not answer."""
        return http_get_status(self.http_address)

    def timeline(self) -> dict[str, Any]:
        """The status of its only timeline; empty if it has none, or does not answer yet."""
        try:
            found = list(self.status()["timelines"].values())
        except OSError:
            return {}
        return found[0] if found else {}

    def wait_cut(self, lsn: int, timeout: float) -> dict[str, Any]:
        """Waits for a cut at or after that position in the store. Returns the timeline's status."""
        return self.wait_until(lambda: self._cut(lsn), timeout, f"a cut at {Lsn(lsn)} or later")

    def _cut(self, lsn: int) -> dict[str, Any] | None:
        page = self.timeline()
        return page if Lsn.parse(page.get("cut_lsn", "0/0")) >= lsn else None
