"""The pages of the HTTP port, on aiohttp, in an event loop of their own.

Only the thread that serves them imports this module, because the import takes a quarter of a
second, and a vote or a commit must not wait for it.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import socket
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec
import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from quorum_wal.pgwire.transport import prepare_socket, shut_down
from quorum_wal.telemetry.accept_trouble import RETRY_SECONDS, AcceptTrouble
from quorum_wal.telemetry.certificate_metrics import CertificateCollector
from quorum_wal.telemetry.loopback import is_address, is_loopback
from quorum_wal.telemetry.page.page_handlers import PAGE_PATH, SIGN_IN_PATHS, PageHandlers
from quorum_wal.telemetry.request_body import read_body
from quorum_wal.telemetry.status_server import HttpListener, Pages, Route
from quorum_wal.telemetry.watched_files import WatchedFiles

T = TypeVar("T")

TLS_HANDSHAKE_TIMEOUT_SECONDS = 10.0

JSON = "application/json"
READING = ("GET", "HEAD")
OTHER_HOST_HINT = (
    "without a token, this port answers for localhost and for addresses only: use one of these in "
    "the URL, or start the service with --http-token-file\n"
)
ADMIN_TOKEN_HINT = (
    "without an admin's token, changes are accepted from this machine only: start the service "
    "with --admin-token-file\n"
)

_log = logging.getLogger(__name__)
_OF_CLIENTS = (HttpProcessingError, UnicodeError, web.RequestPayloadError, ConnectionResetError)


def _is_ours(record: logging.LogRecord) -> bool:
    """False for errors of a client that does not send HTTP. The client gets an answer; a traceback
    for each would let strangers fill a disk. Headers that are not text (UnicodeError) and bodies
    with a wrong Content-Encoding are such errors, because aiohttp does not handle them, and so is
    a client that leaves before its `Expect: 100-continue` is answered.
    """
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, _OF_CLIENTS)


_log.addFilter(_is_ours)


def serve(
    sock: socket.socket,
    listener: HttpListener,
    pages: Pages,
    started: Callable[[Callable[[], None]], None],
) -> None:
    """Serves until stopped. `started` receives the function that stops it, for any thread."""
    asyncio.run(_serve(sock, listener, pages, started))


async def _serve(
    sock: socket.socket,
    listener: HttpListener,
    pages: Pages,
    started: Callable[[Callable[[], None]], None],
) -> None:
    page = PageHandlers(listener, sock.getsockname()[1], pages.web) if pages.web else None
    handlers = _Handlers(listener, pages, page)
    app = web.Application(middlewares=[handlers.refuse_in_json, handlers.demand_token])
    app.on_response_prepare.append(_protect)
    app.router.add_get("/status", handlers.status)
    app.router.add_get("/metrics", handlers.metrics)
    app.router.add_get("/healthz", handlers.healthz)
    if page is not None:
        page.add_routes(app)
    for route in pages.routes:
        app.router.add_route(route.method, route.path, partial(handlers.own, route))
    runner = web.AppRunner(app, access_log=None, logger=_log, shutdown_timeout=1)
    await runner.setup()
    assert runner.server is not None
    acceptor = _Acceptor(sock, listener, runner.server)
    tasks = [asyncio.create_task(acceptor.accept())]
    if page is not None:
        tasks.append(asyncio.create_task(page.keep_history()))
    stopped, loop = asyncio.Event(), asyncio.get_running_loop()

    def stop() -> None:
        loop.call_soon_threadsafe(stopped.set)

    started(stop)
    await stopped.wait()
    for task in tasks:
        task.cancel()
    acceptor.close_handshakes()
    await runner.cleanup()


class _Acceptor:
    """Accepts connections, each with the certificate that is current. Above the limit it closes the
    oldest one.

    Connections count from accept() on, because a client that never ends its TLS handshake also
    holds a descriptor.
    """

    def __init__(self, sock: socket.socket, listener: HttpListener, server: web.Server) -> None:
        self._sock = sock
        self._listener = listener
        self._server = server
        self._clients: list[socket.socket] = []  # the oldest one first
        self._handshakes: dict[asyncio.Task[None], socket.socket] = {}

    async def accept(self) -> None:
        """Accepts until cancelled."""
        loop = asyncio.get_running_loop()
        trouble = AcceptTrouble(structlog.get_logger(), "http")
        self._sock.setblocking(False)
        while True:
            try:
                client, _ = await loop.sock_accept(self._sock)
            except OSError as error:
                trouble.failed(error)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            trouble.accepted()
            self._close_oldest()
            self._clients.append(client)
            task = asyncio.create_task(self._start(client))
            self._handshakes[task] = client
            task.add_done_callback(self._handshakes.pop)

    def close_handshakes(self) -> None:
        """Closes the connections whose handshake has not ended, so that the stop need not wait."""
        for client in self._handshakes.values():
            if client.fileno() >= 0:
                shut_down(client)

    def _close_oldest(self) -> None:
        self._clients = [client for client in self._clients if client.fileno() >= 0]
        if len(self._clients) >= self._listener.connections_max:
            shut_down(self._clients.pop(0))

    async def _start(self, client: socket.socket) -> None:
        tls = self._listener.tls
        try:
            prepare_socket(client)
            await asyncio.get_running_loop().connect_accepted_socket(
                self._server,
                client,
                ssl=None if tls is None else tls.current().context,
                ssl_handshake_timeout=None if tls is None else TLS_HANDSHAKE_TIMEOUT_SECONDS,
            )
        except OSError:
            client.close()  # it does not speak TLS, or has closed the connection


def _has_token(request: web.Request, token: WatchedFiles[str]) -> bool:
    given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
    return hmac.compare_digest(given, f"Bearer {token.current()}".encode())


def _is_of_this_machine(request: web.Request) -> bool:
    """Checks the client's address and the host name that it asks for. The name matters because a
    page from elsewhere can give its own name the address of this machine (DNS rebinding)."""
    return is_loopback(request.remote or "") and is_loopback(_host_asked_for(request))


def _is_rebound(request: web.Request) -> bool:
    """Whether the request may come from a web page of another site, whose name has the address of
    this machine now. An address in the Host header cannot be such a name, and a request of a
    browser always has the header."""
    if "Host" not in request.headers:
        return False
    host = _host_asked_for(request)
    return not (is_loopback(host) or is_address(host))


def _host_asked_for(request: web.Request) -> str:
    """From the Host header; "" without one. Not `request.host`, which asks a name server then."""
    try:
        return urlsplit(f"//{request.headers.get('Host', '')}").hostname or ""
    except ValueError:
        return ""  # not a host name


#: For every answer, unless its handler sets another value. Browsers and proxies keep none, and
#: pages of other sites embed none.
PROTECTION = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


async def _protect(_: web.Request, response: web.StreamResponse) -> None:
    for name, value in PROTECTION.items():
        response.headers.setdefault(name, value)
    response.headers["Server"] = "sk"  # not the versions of libraries


class _Handlers:
    def __init__(self, listener: HttpListener, pages: Pages, page: PageHandlers | None) -> None:
        self._listener = listener
        self._pages = pages
        self._page = page
        self._registry = pages.registry()
        if listener.tls is not None:
            self._registry.register(CertificateCollector(listener.tls))
        self._open = {(r.method, r.path) for r in pages.routes if not r.needs_admin}

    @web.middleware
    async def demand_token(
        self, request: web.Request, handler: Callable[[web.Request], Any]
    ) -> web.StreamResponse:
        is_open = request.path == "/healthz"
        if not is_open and not (self._page is not None and request.path in SIGN_IN_PATHS):
            try:
                self._check(request)
            except web.HTTPUnauthorized as error:
                if self._page is None or request.path != PAGE_PATH:
                    raise
                return self._page.sign_in_form("", error.headers)
        response: web.StreamResponse = await handler(request)
        return response

    @web.middleware
    async def refuse_in_json(
        self, request: web.Request, handler: Callable[[web.Request], Any]
    ) -> web.StreamResponse:
        try:
            response: web.StreamResponse = await handler(request)
        except web.HTTPException as error:
            if not self._pages.is_api:
                raise
            text = " ".join((error.text or error.reason).split())
            body = msgspec.json.encode({"error": text, "hint": None})
            kept = {"WWW-Authenticate", "Allow"} & error.headers.keys()
            headers = {name: error.headers[name] for name in kept}
            return web.Response(body=body, status=error.status, content_type=JSON, headers=headers)
        return response

    def _check(self, request: web.Request) -> None:
        """Raises HTTPUnauthorized, HTTPForbidden."""
        token, admin_token = self._listener.token, self._listener.admin_token
        if admin_token is not None and _has_token(request, admin_token):
            return
        if request.method in READING and self._page is not None and self._page.admits(request):
            return
        if request.method not in READING:
            is_open = (request.method, request.path) in self._open
            token = (token or admin_token) if is_open else (admin_token or token)
            from_anywhere = is_open and (token is not None or not is_loopback(self._listener.host))
            if admin_token is None and not from_anywhere and not _is_of_this_machine(request):
                raise web.HTTPForbidden(text=ADMIN_TOKEN_HINT)
        if token is not None and not _has_token(request, token):
            raise web.HTTPUnauthorized(headers={"WWW-Authenticate": 'Bearer realm="sk"'})
        if token is None and is_loopback(self._listener.host) and _is_rebound(request):
            raise web.HTTPForbidden(text=OTHER_HOST_HINT)

    async def own(self, route: Route, request: web.Request) -> web.Response:
        body = await read_body(request)
        if body and request.content_type != JSON:
            raise web.HTTPUnsupportedMediaType(text=f"expected {JSON}\n")
        answer = await asyncio.to_thread(route.answer, body)
        page = msgspec.json.encode(answer.page)
        return web.Response(body=page, status=answer.status, content_type=JSON)

    async def status(self, _: web.Request) -> web.Response:
        body = msgspec.json.encode(await self._asked(self._pages.status))
        return web.Response(body=body, content_type=JSON)

    async def metrics(self, _: web.Request) -> web.Response:
        body = generate_latest(self._registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def healthz(self, _: web.Request) -> web.Response:
        problem = await self._asked(self._pages.health)
        return web.Response(text=(problem or "ok") + "\n", status=503 if problem else 200)

    async def _asked(self, question: Callable[[], T]) -> T:
        """Calls `question`, in a thread if it may block."""
        return await asyncio.to_thread(question) if self._pages.is_api else question()
