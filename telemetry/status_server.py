"""The HTTP port of a service: `/status` (JSON), `/metrics` (Prometheus), `/healthz`, other pages.
`/` is a page for browsers, where the service has one (`telemetry/page/`).

A thread with an event loop of its own serves it (`status_pages.py`). So a slow reader of a page
delays a commit by at most the interpreter's switch interval. It listens on loopback by default. TLS
and a bearer token are optional; only `/healthz` is answered without the token. A request that
changes something needs the admin's token, or without such a token, a client on this machine.
The number of connections is limited: above the limit the oldest one is closed.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from errno import EADDRINUSE
from http import HTTPStatus
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import structlog

from quorum_wal.pgwire.tls import ServerTls, TlsFiles
from quorum_wal.telemetry.http_token import read_private_token
from quorum_wal.telemetry.watched_files import WatchedFiles

if TYPE_CHECKING:  # the import would delay votes and commits: see `status_pages.py`
    from prometheus_client import CollectorRegistry

    from quorum_wal.telemetry.page.page_view import WebPage

log = structlog.get_logger()

#: Each needs a file descriptor, and there are few readers at a time.
HTTP_CONNECTIONS_MAX = 64
STOP_TIMEOUT_SECONDS = 10
#: As the alert SkCertificateEnds has it.
CERTIFICATE_TIME_MIN = timedelta(days=14)
#: The longest delay of the first page for more urgent work, and the pause between two checks.
YIELD_SECONDS = 1.0
YIELD_POLL_SECONDS = 0.01


class ListenError(Exception):
    """The service cannot listen on the address."""


@dataclass(frozen=True, slots=True)
class HttpListener:
    """Where to listen, and what to require: TLS, a token; None requires nothing. `spare_ports` are
    tried in order if the port is in use. `admin_token` allows all pages, and pages that change
    something require it; if it is None, those pages require a client on this machine."""

    host: str
    port: int
    tls: WatchedFiles[ServerTls] | None = None
    token: WatchedFiles[str] | None = None
    spare_ports: Sequence[int] = ()
    admin_token: WatchedFiles[str] | None = None
    connections_max: int = HTTP_CONNECTIONS_MAX

    @property
    def certificate_until(self) -> datetime | None:
        """When the certificate ends; None without TLS."""
        return (
            None if self.tls is None else datetime.fromtimestamp(self.tls.current().end_time, UTC)
        )

    @property
    def files(self) -> tuple[WatchedFiles[Any] | None, ...]:
        return self.tls, self.token, self.admin_token


def http_listener(
    host: str,
    port: int,
    tls_files: TlsFiles | None,
    token_file: Path | None,
    spare_ports: Sequence[int] = (),
    admin_token_file: Path | None = None,
) -> HttpListener:
    """Reads these files. Browsers and scrapers need no client certificate.

    Raises OSError, ValueError.
    """
    tls = None
    if tls_files is not None:
        files = TlsFiles(tls_files.certificate, tls_files.key)
        tls = WatchedFiles(files.paths, lambda: _load_tls(files))
    tokens = _watched_token(token_file), _watched_token(admin_token_file)
    return HttpListener(host, port, tls, tokens[0], spare_ports, tokens[1])


def _load_tls(files: TlsFiles) -> ServerTls:
    """Raises OSError. The log reports a certificate that ends soon, or has ended."""
    tls = ServerTls.load(files)
    now, end = datetime.now(UTC), datetime.fromtimestamp(tls.end_time, UTC)
    if end - now < CERTIFICATE_TIME_MIN:
        what = "certificate ends soon" if end > now else "certificate has ended"
        log.warning(what, file=str(files.certificate), until=end.isoformat())
    return tls


def _watched_token(path: Path | None) -> WatchedFiles[str] | None:
    """Raises OSError, ValueError."""
    return None if path is None else WatchedFiles([path], lambda: read_private_token(path))


@dataclass(frozen=True, slots=True)
class Answer:
    """`page` is sent as JSON."""

    status: HTTPStatus
    page: object


@dataclass(frozen=True, slots=True)
class Route:
    """A page of one service. `answer` gets the body, which is JSON or empty; it may block. A method
    other than GET changes something and requires an admin. With `needs_admin` False the token is
    enough; without any token, every client that reaches the listener's address is allowed."""

    method: str
    path: str
    answer: Callable[[bytes], Answer]
    needs_admin: bool = True


@dataclass(frozen=True, slots=True)
class Pages:
    """`health` returns "" or one line that describes the problem. The serving thread calls
    `registry` once. `is_api`: the routes are the purpose of the service. Then status and health
    may block too, and the port's own errors are JSON {error, hint}. `web` makes the page for
    browsers, in the serving thread; None if there is no page."""

    status: Callable[[], dict[str, Any]]
    health: Callable[[], str]
    registry: Callable[[], CollectorRegistry]
    routes: Sequence[Route] = ()
    is_api: bool = False
    web: Callable[[], WebPage] | None = None


class StatusServer:
    """A context manager. `port` is the real port, also if 0 was requested.

    The address is bound at once. The pages start a moment later; `wait_started` waits for them.
    While `is_busy()`, but at most YIELD_SECONDS, they do not start, because their imports would
    take time of the interpreter from a start that commits wait for.
    """

    def __init__(
        self, listener: HttpListener, pages: Pages, is_busy: Callable[[], bool] = lambda: False
    ) -> None:
        self.listener = listener
        self.port = listener.port
        self._pages = pages
        self._is_busy = is_busy
        self._started = Event()
        self._ended = Event()
        self._stop: Callable[[], None] = lambda: None
        self._thread = Thread(target=self._serve, name="http", daemon=True)

    def __enter__(self) -> StatusServer:
        """Raises ListenError."""
        self._socket = self._listen()
        self.port = self._socket.getsockname()[1]
        if self.listener.port not in (self.port, 0):
            log.warning(
                "http port in use, another taken", wanted=self.listener.port, is_at=self.port
            )
        self._thread.start()
        return self

    def wait_started(self) -> None:
        self._started.wait(STOP_TIMEOUT_SECONDS)

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.wait_started()
        self._stop()
        self._thread.join(STOP_TIMEOUT_SECONDS)
        self._socket.close()

    def _listen(self) -> socket.socket:
        host, port = self.listener.host, self.listener.port
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        found: OSError | None = None
        for each in (port, *self.listener.spare_ports):
            try:
                return socket.create_server((host, each), family=family)
            except OSError as error:
                found = found or error
                if error.errno != EADDRINUSE:
                    break
        assert found is not None
        reason = found.strerror or str(found)
        raise ListenError(f"could not listen on http {host}:{port}: {reason}") from found

    def _serve(self) -> None:
        if self._has_ended_first():
            self._started.set()
            return
        from quorum_wal.telemetry.status_pages import serve

        serve(self._socket, self.listener, self._pages, self._on_started)

    def _has_ended_first(self) -> bool:
        deadline = time.monotonic() + YIELD_SECONDS
        while self._is_busy() and time.monotonic() < deadline:
            if self._ended.wait(YIELD_POLL_SECONDS):
                return True
        return False

    def _on_started(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._started.set()
