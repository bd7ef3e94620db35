"""The coordinator of a process, started when its port is available.

A predecessor that hands over, or hangs, may hold the port for a while. Law: commits do not wait for
the port. So incarnations run meanwhile. When the port is available, the coordinator starts with the
incarnation that runs then.
"""

from __future__ import annotations

from errno import EADDRINUSE
from threading import Lock, Thread
from typing import Any

import structlog

from quorum_wal.access.errors import AccessError
from quorum_wal.telemetry.stop_signal import StopSignal
from quorum_wal.walproposer.config import ProposerConfig
from quorum_wal.walproposer.errors import WalProposerError
from quorum_wal.walproposer.qsync.coordinator import Coordinator
from quorum_wal.walproposer.qsync.qsync_status import idle_status
from quorum_wal.walproposer.stream.incarnation import Incarnation

log = structlog.get_logger()

PORT_RETRY_SECONDS = 0.1


class Coordination:
    """`begin` and `end` are for the thread that runs the incarnations, `status` for any thread."""

    def __init__(self, config: ProposerConfig, stopping: StopSignal) -> None:
        assert config.qsync is not None
        self._config = config
        self._address = f"{config.qsync.host}:{config.qsync.port}"
        self._stopping = stopping
        self._lock = Lock()
        self._coordinator: Coordinator | None = None
        self._incarnation: Incarnation | None = None
        self._is_closed = False
        self._waits_because = "it has not begun"

    @property
    def coordinator(self) -> Coordinator | None:
        """None while its port is in use by another process."""
        return self._coordinator

    @property
    def status(self) -> dict[str, Any]:
        if self._coordinator is not None:
            return self._coordinator.status
        return idle_status(self._address, self._waits_because)

    @property
    def error(self) -> str:
        """Why clients cannot be answered; "" while they can."""
        return self._coordinator.error if self._coordinator is not None else self._waits_because

    def start(self, limbo_max: int) -> None:
        """Raises WalProposerError, AccessError for permanent errors."""
        if not self._open(limbo_max):
            Thread(
                target=self._open_later, args=(limbo_max,), name="qsync-port", daemon=True
            ).start()

    def begin(self, incarnation: Incarnation) -> None:
        """The incarnation is about to run."""
        with self._lock:
            self._incarnation = incarnation
            if self._coordinator is not None:
                self._coordinator.begin(incarnation)

    def end(self, incarnation: Incarnation, reason: str) -> None:
        """The incarnation has ended, and confirms nothing any more."""
        with self._lock:
            self._incarnation = None
            if self._coordinator is not None:
                self._coordinator.end(incarnation, reason)

    def close(self) -> None:
        """Waiting clients get an error: the outcome is not known."""
        with self._lock:
            self._is_closed = True
        if self._coordinator is not None:
            self._coordinator.close()

    def _open_later(self, limbo_max: int) -> None:
        while not self._stopping.is_set and not self._is_closed:
            self._stopping.wait(PORT_RETRY_SECONDS)
            try:
                if self._open(limbo_max):
                    return
            except (WalProposerError, AccessError) as error:
                self._wait(str(error))

    def _wait(self, reason: str) -> None:
        if reason != self._waits_because:
            log.warning("qsync is waiting for its port", listen=self._address, reason=reason)
        self._waits_because = reason

    def _open(self, limbo_max: int) -> bool:
        """Returns False while another process has the port. Raises WalProposerError,
        AccessError."""
        try:
            coordinator = Coordinator(self._config, limbo_max)
        except WalProposerError as error:
            cause = error.__cause__
            if not isinstance(cause, OSError) or cause.errno != EADDRINUSE:
                raise
            self._wait(str(error))
            return False
        coordinator.start()
        with self._lock:
            if self._is_closed:
                coordinator.close()
                return True
            if self._incarnation is not None:
                coordinator.begin(self._incarnation)
            self._coordinator = coordinator
        return True
