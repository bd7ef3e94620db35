"""`GenerationServer`: serves the numbers over HTTP(S). It assembles all parts.

    telemetry/status_server.py   the port: TLS, tokens, limits, /healthz, /metrics, /status
    routes.py                    /v1/...: requests, and the status code of each error
    operations.py                the rules, on a database

Law: only counters are kept in memory between requests. So the process may be killed at any time,
and several may serve one database.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import structlog

from quorum_wal.generations.errors import GenerationError
from quorum_wal.generations.metrics import GenerationCollector, RequestCounts
from quorum_wal.generations.operations import Generations
from quorum_wal.generations.routes import GenerationRoutes
from quorum_wal.telemetry.status_server import HttpListener, Pages, StatusServer
from quorum_wal.telemetry.watched_files import unusable_files

log = structlog.get_logger()

#: Each request opens and closes a connection.
CONNECTIONS_MAX = 512


class GenerationServer:
    """A context manager: serves within the block, then closes the database."""

    def __init__(self, generations: Generations, listener: HttpListener) -> None:
        self._generations = generations
        self._listener = replace(listener, connections_max=CONNECTIONS_MAX)
        self._counts = RequestCounts()
        self._stack = ExitStack()

    def __enter__(self) -> GenerationServer:
        """Raises ListenError."""
        with ExitStack() as stack:
            stack.callback(self._generations.close)
            routes = GenerationRoutes(self._generations, self._counts).routes
            collector = GenerationCollector(self._counts, self._unusable_files)
            pages = Pages(self.status, self.health, lambda: collector.registry, routes, is_api=True)
            # Known before its thread answers: the status has its address.
            self._http = StatusServer(self._listener, pages)
            stack.enter_context(self._http)
            self._http.wait_started()
            self._stack = stack.pop_all()
        log.info(
            "generation service started",
            listen=self.address,
            database=self._generations.store.name,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        log.info("generation service stopped")

    @property
    def address(self) -> str:
        """The actual address of its port."""
        return f"{self._listener.host}:{self._http.port}"

    def status(self) -> dict[str, Any]:
        """The JSON of /status."""
        page: dict[str, Any] = {
            "version": version("quorum-wal"),
            "listen": self.address,
            "database": self._generations.store.name,
            "error": "",
            "unusable_files": self._unusable_files(),
        }
        try:
            found = self._generations.status()
        except GenerationError as error:
            return {**page, "error": str(error)}
        return {**page, "generations": found}

    def health(self) -> str:
        """One line if the database is unavailable, else ""."""
        try:
            self._generations.store.read(lambda transaction: transaction.rows("SELECT 1"))
        except GenerationError as error:
            return str(error)
        return ""

    def _unusable_files(self) -> dict[str, str]:
        return unusable_files(self._listener.files)
