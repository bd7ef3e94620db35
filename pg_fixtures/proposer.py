"""`ProposerProcess`: `sk attach` or `sk promote` as a child process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from quorum_wal.pg_fixtures.http_status import http_get_status
from quorum_wal.pg_fixtures.ports import free_port
from quorum_wal.pg_fixtures.processes import SK, ServiceProcess

STREAMING_TIMEOUT = 60.0  # seconds; includes election and recovery


class ProposerProcess(ServiceProcess):
    """A context manager: started, but not waited for, in the block; killed at its end.

    `safekeepers` are "host:port". With `configure` it sets up the primary's synchronous standby.
    With `promotes` the DSN is of a standby, which is promoted first.
    """

    def __init__(
        self,
        primary_dsn: str,
        safekeepers: Sequence[str],
        *,
        log_path: Path,
        configure: bool = False,
        promotes: bool = False,
        http_port: int | None = None,
        arguments: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.http_address = f"127.0.0.1:{free_port() if http_port is None else http_port}"
        super().__init__(
            [
                *SK,
                *(["promote", "--standby"] if promotes else ["attach", "--primary"]),
                primary_dsn,
                *("--safekeepers", ",".join(safekeepers)),
                *("--http", self.http_address),
                *(["--configure"] if configure else []),
                *arguments,
            ],
            name="proposer",
            log_path=log_path,
            env=env,
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def status(self) -> dict[str, Any]:
        """The JSON of /status. Raises OSError if it does not answer."""
        return http_get_status(self.http_address)

    @property
    def state(self) -> str:
        """`state` of the status; "" if it does not answer yet."""
        try:
            return str(self.status()["state"])
        except OSError:
            return ""

    @property
    def term(self) -> int:
        """The term, after it has chosen one. Raises OSError if it does not answer."""
        return int(self.status()["node_id"]["term"])

    def wait_streaming_above(self, term: int, timeout: float = STREAMING_TIMEOUT) -> None:
        """Returns when it streams in a greater term. Raises ProcessEnded, DeadlineExceeded."""
        self.wait_until(
            lambda: self.state == "streaming" and self.term > term, timeout, f"a term above {term}"
        )

    def wait_streaming(self, timeout: float = STREAMING_TIMEOUT) -> None:
        """Returns when it streams with a quorum, and with `configure` when commits wait for it.

        Raises ProcessEnded, DeadlineExceeded.
        """
        self.wait_until(self.is_streaming, timeout, "it to stream with a quorum, as configured")

    def is_streaming(self) -> bool:
        """With a quorum; and it has set up the primary's commits, or was not told to."""
        try:
            page = self.status()
        except OSError:
            return False
        if page["state"] != "streaming" or page.get("configured") is False:
            return False
        return bool(page["quorum"]["ok"])

    def wait_state(self, state: str, timeout: float = STREAMING_TIMEOUT) -> None:
        """Returns when the status has `state`. Raises ProcessEnded, DeadlineExceeded."""
        self.wait_until(lambda: self.state == state, timeout, f"it to be {state}")
