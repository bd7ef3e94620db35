"""The pages behind the HTTP port, on aiohttp, in an event loop of their own.

Imported by the thread that serves them, not before: it takes a quarter of a second, and a vote or
a commit need not wait for it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any

import msgspec
import uvloop
from aiohttp import BasicAuth, web
from aiohttp.http_exceptions import HttpProcessingError
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from telemetry.status_server import HttpListener, Pages

_log = logging.getLogger(__name__)


def _is_ours(record: logging.LogRecord) -> bool:
    """A client that speaks no HTTP is told so; a traceback each would let strangers fill a disk.

    Headers that are no text (UnicodeError) are among it: aiohttp stumbles over them by itself.
    """
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError | UnicodeError)


_log.addFilter(_is_ours)


def serve(
    sock: socket.socket,
    listener: HttpListener,
    pages: Pages,
    started: Callable[[Callable[[], None]], None],
) -> None:
    """Serve until stopped. `started` is given what stops it, to be called by any thread."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(sock, listener, pages, started))


async def _serve(
    sock: socket.socket,
    listener: HttpListener,
    pages: Pages,
    started: Callable[[Callable[[], None]], None],
) -> None:
    handlers = _Handlers(listener, pages)
    app = web.Application(middlewares=[handlers.demand_password])
    app.router.add_get("/status", handlers.status)
    app.router.add_get("/metrics", handlers.metrics)
    app.router.add_get("/healthz", handlers.healthz)
    runner = web.AppRunner(app, access_log=None, logger=_log, shutdown_timeout=1)
    await runner.setup()
    await web.SockSite(runner, sock, ssl_context=listener.ssl_context).start()
    stopped, loop = asyncio.Event(), asyncio.get_running_loop()

    def stop() -> None:
        loop.call_soon_threadsafe(stopped.set)

    started(stop)
    await stopped.wait()
    await runner.cleanup()


class _Handlers:
    def __init__(self, listener: HttpListener, pages: Pages) -> None:
        self._listener = listener
        self._pages = pages

    @web.middleware
    async def demand_password(
        self, request: web.Request, handler: Callable[[web.Request], Any]
    ) -> web.StreamResponse:
        check = self._listener.check_password
        if check is not None and request.path != "/healthz":
            try:
                given = BasicAuth.decode(request.headers.get("Authorization", ""))
            except ValueError:
                given = BasicAuth("")
            if not check(given.login, given.password):
                raise web.HTTPUnauthorized(headers={"WWW-Authenticate": 'Basic realm="sk"'})
        response: web.StreamResponse = await handler(request)
        return response

    async def status(self, _: web.Request) -> web.Response:
        body = msgspec.json.encode(self._pages.status())
        return web.Response(body=body, content_type="application/json")

    async def metrics(self, _: web.Request) -> web.Response:
        body = generate_latest(self._pages.registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def healthz(self, _: web.Request) -> web.Response:
        problem = self._pages.health()
        return web.Response(text=(problem or "ok") + "\n", status=503 if problem else 200)
