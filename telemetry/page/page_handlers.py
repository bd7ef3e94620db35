"""The page's addresses on the HTTP port, on aiohttp.

    GET  /        the page; 401 and the form if a token is required
    GET  /body    the part that changes, for the page's script
    POST /login   the form: returns a cookie for the token
    POST /logout  ends the cookie's session

Law: the work for browsers is bounded. Requests for the same view share it, and while
VIEWS_AT_ONCE_MAX views are made, further ones are refused. Otherwise requests of clients that do
not wait for the answer would queue up without a limit, and take the processor from commits.
Law: a cookie allows reading and nothing else. A request that changes something needs the token
itself (`status_pages.py`). The Content-Security-Policy allows the page's own script and style, by a
nonce, and nothing from other servers.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import quote

import structlog
from aiohttp import web

from quorum_wal.telemetry.page.history import SAMPLE_SECONDS
from quorum_wal.telemetry.page.page_view import PageView, WebPage
from quorum_wal.telemetry.page.sign_in import (
    SESSION_SECONDS,
    Sessions,
    cookie_name,
    parse_token_form,
)
from quorum_wal.telemetry.request_body import read_body

if TYPE_CHECKING:
    from quorum_wal.telemetry.status_server import HttpListener

PAGE_PATH, BODY_PATH, LOGIN_PATH, LOGOUT_PATH = "/", "/body", "/login", "/logout"
SIGN_IN_PATHS = (LOGIN_PATH, LOGOUT_PATH)
FORM = "application/x-www-form-urlencoded"
FORM_BYTES_MAX = 4096
VIEWS_AT_ONCE_MAX = 4
NONCE_BYTES = 16
WRONG_TOKEN = "This is not the token of this HTTP port."

log = structlog.get_logger()


class PageHandlers:
    """For one event loop. `make` is called when the page is first needed."""

    def __init__(self, listener: HttpListener, port: int, make: Callable[[], WebPage]) -> None:
        self._listener = listener
        self._make = make
        self._made: WebPage | None = None
        self._sessions = Sessions()
        self._cookie = cookie_name(port, is_encrypted=listener.tls is not None)
        self._sample_problem = ""
        self._views: dict[str, asyncio.Task[PageView]] = {}  # in the making, by what is asked for

    def add_routes(self, app: web.Application) -> None:
        app.router.add_get(PAGE_PATH, self.page)
        app.router.add_get(BODY_PATH, self.body)
        app.router.add_get(LOGIN_PATH, self.back)
        app.router.add_post(LOGIN_PATH, self.login)
        app.router.add_post(LOGOUT_PATH, self.logout)

    async def keep_history(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(SAMPLE_SECONDS)
            try:
                self._page.sample()
                problem = ""
            except Exception as error:  # our own bug: the pages go on without charts
                problem = repr(error)
            if problem and problem != self._sample_problem:
                log.error("could not sample for the web page", reason=problem)
            self._sample_problem = problem

    @property
    def _page(self) -> WebPage:
        if self._made is None:
            self._made = self._make()
        return self._made

    # ---- the page

    async def page(self, request: web.Request) -> web.Response:
        from quorum_wal.telemetry.page.rendering import render_page

        view = await self._view(request)
        nonce, chosen = secrets.token_urlsafe(NONCE_BYTES), request.query.get("timeline", "")
        address = BODY_PATH + (f"?timeline={quote(chosen)}" if chosen else "")
        text = render_page(
            view, nonce=nonce, address=address, has_session=self._cookie in request.cookies
        )
        return _html(text, nonce)

    async def body(self, request: web.Request) -> web.Response:
        from quorum_wal.telemetry.page.rendering import render_body

        return _html(render_body(await self._view(request)), "")

    async def _view(self, request: web.Request) -> PageView:
        """Raises HTTPServiceUnavailable."""
        asked_for = request.query.get("timeline", "")
        task = self._views.get(asked_for)
        if task is None:
            if len(self._views) >= VIEWS_AT_ONCE_MAX:
                raise web.HTTPServiceUnavailable(
                    text="too many pages are being made, try again\n", headers={"Retry-After": "1"}
                )
            task = asyncio.create_task(asyncio.to_thread(self._page.view, asked_for))
            self._views[asked_for] = task
            task.add_done_callback(partial(self._made_view, asked_for))
        return await asyncio.shield(task)  # others wait for it, too

    def _made_view(self, asked_for: str, task: asyncio.Task[PageView]) -> None:
        del self._views[asked_for]
        if not task.cancelled():
            task.exception()  # no client may be left that asyncio could report it to

    # ---- signing in and out

    def admits(self, request: web.Request) -> bool:
        cookie = request.cookies.get(self._cookie)
        return cookie is not None and self._sessions.admits(
            cookie, self._tokens(), time.monotonic()
        )

    def sign_in_form(self, problem: str, headers: Mapping[str, str]) -> web.Response:
        """`headers`: those of the 401 that it replaces."""
        from quorum_wal.telemetry.page.rendering import render_sign_in

        nonce = secrets.token_urlsafe(NONCE_BYTES)
        response = _html(render_sign_in(nonce=nonce, problem=problem), nonce)
        response.set_status(HTTPStatus.UNAUTHORIZED)
        response.headers["WWW-Authenticate"] = headers.get("WWW-Authenticate", "Bearer")
        return response

    async def back(self, _: web.Request) -> web.Response:
        """For a browser that reloads /login."""
        raise web.HTTPSeeOther(PAGE_PATH)

    async def login(self, request: web.Request) -> web.Response:
        if request.content_type != FORM:
            raise web.HTTPUnsupportedMediaType(text=f"expected {FORM}\n")
        if request.content_length is None or request.content_length > FORM_BYTES_MAX:
            raise web.HTTPRequestEntityTooLarge(
                FORM_BYTES_MAX, text=f"expected a form of at most {FORM_BYTES_MAX} bytes\n"
            )
        try:
            given = parse_token_form(await read_body(request))
        except ValueError as error:
            raise web.HTTPBadRequest(text="expected a form with one field, token\n") from error
        cookie = self._sessions.open(given, self._tokens(), time.monotonic())
        if cookie is None:
            return self.sign_in_form(WRONG_TOKEN, {})
        response = web.Response(status=HTTPStatus.SEE_OTHER, headers={"Location": PAGE_PATH})
        response.set_cookie(
            self._cookie, cookie, max_age=SESSION_SECONDS, httponly=True, samesite="Strict",
            secure=self._listener.tls is not None,
        )  # fmt: skip
        return response

    async def logout(self, request: web.Request) -> web.Response:
        """A page of another site can send this request, but not the cookie. Such a request must not
        remove the cookie either."""
        response = web.Response(status=HTTPStatus.SEE_OTHER, headers={"Location": PAGE_PATH})
        cookie = request.cookies.get(self._cookie)
        if cookie is not None:
            self._sessions.close(cookie)
            response.del_cookie(
                self._cookie, httponly=True, samesite="Strict",
                secure=self._listener.tls is not None,
            )  # fmt: skip
        return response

    def _tokens(self) -> list[str]:
        files = (self._listener.token, self._listener.admin_token)
        return [file.current() for file in files if file is not None]


def _html(text: str, nonce: str) -> web.Response:
    allowed = f"'nonce-{nonce}'" if nonce else "'none'"
    policy = (
        f"default-src 'none'; script-src {allowed}; style-src {allowed}; img-src data:; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )
    headers = {"Content-Security-Policy": policy}
    return web.Response(text=text, content_type="text/html", headers=headers)
