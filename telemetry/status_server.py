"""The HTTP port of a service: `/status` (JSON), `/metrics` (Prometheus), `/healthz`.

It runs in a thread with an event loop of its own, so that a slow reader of a page never delays a
commit by more than the interpreter's switch interval. Loopback unless told otherwise; TLS and a
password are optional, and `/healthz` alone is answered without the password.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from threading import Thread
from typing import Any

import msgspec
import uvloop
from aiohttp import BasicAuth, web
from aiohttp.http_exceptions import HttpProcessingError
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

START_TIMEOUT_SECONDS = 10

_log = logging.getLogger(__name__)


def _is_ours(record: logging.LogRecord) -> bool:
    """A client that speaks no HTTP is told so; a traceback each would let strangers fill a disk."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError)


_log.addFilter(_is_ours)


class ListenError(Exception):
    """The address cannot be listened on."""


@dataclass(frozen=True, slots=True)
class HttpListener:
    """Where to listen, and what to demand. `check_password` None asks for none."""

    host: str
    port: int
    ssl_context: ssl.SSLContext | None = None
    check_password: Callable[[str, str], bool] | None = None


@dataclass(frozen=True, slots=True)
class Pages:
    """`health` is "" when all is well, else one line that says what is not."""

    status: Callable[[], dict[str, Any]]
    health: Callable[[], str]
    registry: CollectorRegistry


class StatusServer:
    """Context manager; `port` is the real one, also when 0 was asked for."""

    def __init__(self, listener: HttpListener, pages: Pages) -> None:
        self.listener = listener
        self.port = listener.port
        self._pages = pages
        self._loop = uvloop.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="http", daemon=True)

    def __enter__(self) -> StatusServer:
        self._thread.start()
        future = asyncio.run_coroutine_threadsafe(self._start(), self._loop)
        try:
            future.result(START_TIMEOUT_SECONDS)
        except OSError as error:
            self._stop_loop()
            host, port = self.listener.host, self.listener.port
            raise ListenError(
                f"could not listen on http {host}:{port}: {error.strerror}"
            ) from error
        return self

    def __exit__(self, *_: object) -> None:
        cleanup = asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop)
        cleanup.result(START_TIMEOUT_SECONDS)
        self._stop_loop()

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self) -> None:
        app = web.Application(middlewares=[self._demand_password])
        app.router.add_get("/status", self._status)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/healthz", self._healthz)
        self._runner = web.AppRunner(app, access_log=None, logger=_log, shutdown_timeout=1)
        await self._runner.setup()
        listener = self.listener
        site = web.TCPSite(
            self._runner, listener.host, listener.port, ssl_context=listener.ssl_context
        )
        try:
            await site.start()
        except OSError:
            await self._runner.cleanup()
            raise
        self.port = self._runner.addresses[0][1]

    @web.middleware
    async def _demand_password(
        self, request: web.Request, handler: Callable[[web.Request], Any]
    ) -> web.StreamResponse:
        check = self.listener.check_password
        if check is not None and request.path != "/healthz":
            try:
                given = BasicAuth.decode(request.headers.get("Authorization", ""))
            except ValueError:
                given = BasicAuth("")
            if not check(given.login, given.password):
                raise web.HTTPUnauthorized(headers={"WWW-Authenticate": 'Basic realm="sk"'})
        response: web.StreamResponse = await handler(request)
        return response

    async def _status(self, _: web.Request) -> web.Response:
        body = msgspec.json.encode(self._pages.status())
        return web.Response(body=body, content_type="application/json")

    async def _metrics(self, _: web.Request) -> web.Response:
        body = generate_latest(self._pages.registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _healthz(self, _: web.Request) -> web.Response:
        problem = self._pages.health()
        return web.Response(text=(problem or "ok") + "\n", status=503 if problem else 200)
