"""The HTTP port of a service: `/status` (JSON), `/metrics` (Prometheus), `/healthz`, and its own.
`/` is a page for browsers, where the service has one (`telemetry/page/`).

It is served by a thread with an event loop of its own (`status_pages.py`), so that a slow reader of
a page never delays a commit by more than the interpreter's switch interval. Loopback unless told
otherwise; TLS and a bearer token are optional, and `/healthz` alone is answered without the token.
What changes something needs the admin's token, or where there is none, a client on this machine.
Connections are counted: beyond the limit the oldest one gives way, whatever it was about to say.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from errno import EADDRINUSE
from http import HTTPStatus
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import structlog

from pgwire.tls import TlsFiles, server_tls_context
from telemetry.http_token import read_private_token
from telemetry.watched_files import WatchedFiles

if TYPE_CHECKING:  # it takes as long as a vote or a commit may wait for: see `status_pages.py`
    from prometheus_client import CollectorRegistry

    from telemetry.page.page_view import WebPage

log = structlog.get_logger()

#: A file descriptor each, and readers come one at a time.
HTTP_CONNECTIONS_MAX = 64
STOP_TIMEOUT_SECONDS = 10
#: How long the pages give way to what is more urgent, and how often they ask whether it is.
YIELD_SECONDS = 1.0
YIELD_POLL_SECONDS = 0.01


class ListenError(Exception):
    """The address cannot be listened on."""


@dataclass(frozen=True, slots=True)
class HttpListener:
    """Where to listen, and what to demand: TLS, a token; None demands nothing. `spare_ports` are
    tried in their order when the port is in use. `admin_token` lets in to all pages, and it alone
    to those that change something; None lets in to those whoever asks from this machine."""

    host: str
    port: int
    tls: WatchedFiles[ssl.SSLContext] | None = None
    token: WatchedFiles[str] | None = None
    spare_ports: Sequence[int] = ()
    admin_token: WatchedFiles[str] | None = None
    connections_max: int = HTTP_CONNECTIONS_MAX

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
    """Of these files, which are read. Browsers and scrapers are asked for no certificate.

    Raises OSError, ValueError.
    """
    tls = None
    if tls_files is not None:
        files = TlsFiles(tls_files.certificate, tls_files.key)
        tls = WatchedFiles(files.paths, lambda: server_tls_context(files))
    tokens = _watched_token(token_file), _watched_token(admin_token_file)
    return HttpListener(host, port, tls, tokens[0], spare_ports, tokens[1])


def _watched_token(path: Path | None) -> WatchedFiles[str] | None:
    """Raises OSError, ValueError."""
    return None if path is None else WatchedFiles([path], lambda: read_private_token(path))


@dataclass(frozen=True, slots=True)
class Answer:
    """`page` is printed as JSON."""

    status: HTTPStatus
    page: object


@dataclass(frozen=True, slots=True)
class Route:
    """A page of one service. `answer` is given the body, JSON if there is one; it may block. What
    is not got by GET changes something, and is for admins; unless `needs_admin` is False, then the
    token is enough, and without any token all are let in whom the listener's address lets in."""

    method: str
    path: str
    answer: Callable[[bytes], Answer]
    needs_admin: bool = True


@dataclass(frozen=True, slots=True)
class Pages:
    """`health` is "" when all is well, else one line that says what is not. `registry` is called
    once, by the thread that serves. `is_api`: the routes are what the service is for; then status
    and health may block, too, and what the port itself refuses is JSON {error, hint} as well.
    `web` makes the page for browsers, in the thread that serves; None if there is no page."""

    status: Callable[[], dict[str, Any]]
    health: Callable[[], str]
    registry: Callable[[], CollectorRegistry]
    routes: Sequence[Route] = ()
    is_api: bool = False
    web: Callable[[], WebPage] | None = None


class StatusServer:
    """Context manager; `port` is the real one, also when 0 was asked for.

    The address is taken at once; the pages are there a moment later, which `wait_started` awaits.
    While `is_busy()`, though no longer than YIELD_SECONDS, they do not begin: their imports would
    share the interpreter with a start that commits wait for.
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
        from telemetry.status_pages import serve

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
