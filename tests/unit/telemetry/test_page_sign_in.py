"""Who may see the page: the token once, a cookie after that, and nothing without."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPConnection, HTTPSConnection
from http.cookies import SimpleCookie
from pathlib import Path
from urllib.parse import urlencode

import pytest
import trustme
from page_views import page_view
from prometheus_client import CollectorRegistry

from quorum_wal.pgwire.tls import TlsFiles
from quorum_wal.telemetry.page.page_handlers import FORM_BYTES_MAX
from quorum_wal.telemetry.page.page_view import PageView, WebPage
from quorum_wal.telemetry.page.sign_in import (
    SESSION_SECONDS,
    SESSIONS_MAX,
    Sessions,
    parse_token_form,
)
from quorum_wal.telemetry.status_server import Answer, Pages, Route, StatusServer, http_listener

TOKEN, ADMIN, OTHER = "r" * 20, "a" * 20, "o" * 20
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@dataclass
class Reply:
    code: int
    headers: dict[str, str]
    text: str


@dataclass
class Service:
    port: int
    token_file: Path
    seen: list[str] = field(default_factory=list)

    def ask(
        self, method: str, path: str, body: bytes = b"", cookie: str = "", **headers: str
    ) -> Reply:
        sent = {**headers, **({"Cookie": cookie} if cookie else {})}
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=30)) as connection:
            connection.request(method, path, body or None, sent)
            answer = connection.getresponse()
            return Reply(answer.status, dict(answer.getheaders()), answer.read().decode())

    def sign_in(self, token: str) -> Reply:
        return self.ask("POST", "/login", urlencode({"token": token}).encode(), **FORM)

    def cookie(self, token: str = TOKEN) -> str:
        """Signed in with it; as a browser sends it back."""
        found = SimpleCookie(self.sign_in(token).headers["Set-Cookie"])
        (morsel,) = found.values()
        return f"{morsel.key}={morsel.value}"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Service]]:
    with ExitStack() as stack:

        def make(*, token: bool = True, admin: bool = False) -> Service:
            for name, text in (("token", TOKEN), ("admin", ADMIN)):
                (tmp_path / name).touch(mode=0o600)
                (tmp_path / name).write_text(text)
            seen: list[str] = []

            def view(timeline: str) -> PageView:
                seen.append(timeline)
                return page_view()

            change = Route("POST", "/change", lambda body: Answer(HTTPStatus.OK, {}))
            pages = Pages(
                lambda: {}, lambda: "", CollectorRegistry, [change],
                web=lambda: WebPage(view, lambda: None),
            )  # fmt: skip
            listener = http_listener(
                "127.0.0.1", 0, None, tmp_path / "token" if token else None,
                admin_token_file=tmp_path / "admin" if admin else None,
            )  # fmt: skip
            server = stack.enter_context(StatusServer(listener, pages))
            server.wait_started()
            return Service(server.port, tmp_path / "token", seen)

        yield make


def test_without_a_token_the_page_is_open(start: Callable[..., Service]) -> None:
    service = start(token=False)
    reply = service.ask("GET", "/?timeline=a%2Fb%3Cc")
    assert reply.code == HTTPStatus.OK
    assert 'data-address="/body?timeline=a/b%3Cc"' in reply.text
    assert service.ask("GET", "/body?timeline=x").code == HTTPStatus.OK
    assert service.seen == ["a/b<c", "x"]
    assert "Sign out" not in reply.text


def test_the_headers_let_a_browser_run_and_load_nothing_else(start: Callable[..., Service]) -> None:
    reply = start(token=False).ask("GET", "/")
    policy = dict(part.strip().split(" ", 1) for part in
                  reply.headers["Content-Security-Policy"].split(";"))  # fmt: skip
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"]
    nonce = policy["script-src"].removeprefix("'nonce-").removesuffix("'")
    assert reply.text.count(f'nonce="{nonce}"') == 2
    assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"


def test_no_answer_is_kept_or_shown_by_others(start: Callable[..., Service]) -> None:
    """Also not by a proxy, or by the browser for the next user, or inside a page of another
    site."""
    service = start()
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    for path in ("/", "/body", "/status", "/metrics", "/healthz", "/missing", "/login"):
        for headers in (bearer, {}):
            found = service.ask("GET", path, **headers).headers
            assert found["Cache-Control"] == "no-store", path
            assert "frame-ancestors 'none'" in found["Content-Security-Policy"], path
            assert found["X-Content-Type-Options"] == "nosniff", path
            assert found["Cross-Origin-Resource-Policy"] == "same-origin", path
            assert found["Server"] == "sk", path


def test_with_a_token_there_is_a_form_and_nothing_of_the_page(
    start: Callable[..., Service],
) -> None:
    service = start()
    reply = service.ask("GET", "/")
    assert reply.code == HTTPStatus.UNAUTHORIZED
    assert 'action="/login"' in reply.text
    for path in ("/body", "/status", "/metrics"):
        assert service.ask("GET", path).code == HTTPStatus.UNAUTHORIZED
    assert service.seen == []
    bearer = service.ask("GET", "/", Authorization=f"Bearer {TOKEN}")
    assert bearer.code == HTTPStatus.OK


def test_a_cookie_is_given_for_the_token_and_taken_back(start: Callable[..., Service]) -> None:
    service = start()
    reply = service.sign_in(f" {TOKEN}\n")
    assert (reply.code, reply.headers["Location"]) == (HTTPStatus.SEE_OTHER, "/")
    given = reply.headers["Set-Cookie"]
    assert "HttpOnly" in given
    assert "SameSite=Strict" in given
    assert f"sk_session_{service.port}=" in given
    assert f"Max-Age={SESSION_SECONDS}" in given
    assert TOKEN not in given

    cookie = service.cookie()
    page = service.ask("GET", "/", cookie=cookie)
    assert page.code == HTTPStatus.OK
    assert "Sign out" in page.text
    assert service.ask("GET", "/status", cookie=cookie).code == HTTPStatus.OK
    out = service.ask("POST", "/logout", cookie=cookie)
    assert (out.code, out.headers["Location"]) == (HTTPStatus.SEE_OTHER, "/")
    assert service.ask("GET", "/", cookie=cookie).code == HTTPStatus.UNAUTHORIZED


def test_a_page_of_another_site_signs_out_no_user(start: Callable[..., Service]) -> None:
    """A browser sends it no cookie with SameSite=Strict, but obeys a Set-Cookie of the answer."""
    reply = start().ask("POST", "/logout")
    assert reply.code == HTTPStatus.SEE_OTHER
    assert "Set-Cookie" not in reply.headers


def test_a_wrong_token_opens_nothing(start: Callable[..., Service]) -> None:
    service = start()
    for wrong in ("", "guess", TOKEN[:-1], TOKEN + "r", OTHER):
        reply = service.sign_in(wrong)
        assert reply.code == HTTPStatus.UNAUTHORIZED
        assert "Set-Cookie" not in reply.headers
        assert "This is not the token" in reply.text
    forged = f"sk_session_{service.port}=forged"
    assert service.ask("GET", "/", cookie=forged).code == HTTPStatus.UNAUTHORIZED


def test_a_cookie_changes_nothing(start: Callable[..., Service]) -> None:
    """Not even that of the admin's token, whose bearer may."""
    service = start(admin=True)
    for token in (TOKEN, ADMIN):
        cookie = service.cookie(token)
        assert service.ask("GET", "/", cookie=cookie).code == HTTPStatus.OK
        assert service.ask("POST", "/change", cookie=cookie).code == HTTPStatus.UNAUTHORIZED
    bearer = service.ask("POST", "/change", Authorization=f"Bearer {ADMIN}")
    assert bearer.code == HTTPStatus.OK


def test_another_token_ends_the_sessions_of_the_old_one(start: Callable[..., Service]) -> None:
    service = start()
    cookie = service.cookie()
    service.token_file.write_text(OTHER + "\n")
    assert service.ask("GET", "/", cookie=cookie).code == HTTPStatus.UNAUTHORIZED
    assert service.ask("GET", "/", cookie=service.cookie(OTHER)).code == HTTPStatus.OK


def test_what_is_no_form_is_refused(start: Callable[..., Service]) -> None:
    service = start()
    long = urlencode({"token": "x" * FORM_BYTES_MAX}).encode()
    assert service.ask("POST", "/login", long, **FORM).code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    many = b"&".join(b"a=b" for _ in range(9))
    for body in (many, b"token=%ff", "token=ä".encode(), b"token=a&token=b"):
        assert service.ask("POST", "/login", body, **FORM).code == HTTPStatus.BAD_REQUEST, body
    json = {"Content-Type": "application/json"}
    code = service.ask("POST", "/login", b"{}", **json).code
    assert code == HTTPStatus.UNSUPPORTED_MEDIA_TYPE
    assert service.ask("GET", "/login").headers["Location"] == "/"


def test_a_body_that_cannot_be_read_writes_no_traceback(
    start: Callable[..., Service], caplog: pytest.LogCaptureFixture
) -> None:
    """A client without the token could fill the disk with them."""
    service = start()
    packed = {**FORM, "Content-Encoding": "gzip"}
    assert service.ask("POST", "/login", b"not gzip", **packed).code == HTTPStatus.BAD_REQUEST
    assert service.ask("POST", "/status", b"not gzip", **packed).code == HTTPStatus.UNAUTHORIZED
    head = "POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\nContent-Type: "
    with socket.create_connection(("127.0.0.1", service.port), timeout=30) as client:
        client.sendall(f"{head}{FORM['Content-Type']}\r\n\r\ntoken".encode())
    assert service.ask("GET", "/healthz").code == HTTPStatus.OK
    assert caplog.records == []


def test_with_tls_the_cookie_is_sent_over_tls_only(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    files = TlsFiles(tmp_path / "certificate", tmp_path / "key")
    for path in (files.key, tmp_path / "token"):
        path.touch(mode=0o600)
    certificate.private_key_pem.write_to_path(str(files.key))
    certificate.cert_chain_pems[0].write_to_path(str(files.certificate))
    (tmp_path / "token").write_text(TOKEN)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    pages = Pages(lambda: {}, lambda: "", CollectorRegistry,
                  web=lambda: WebPage(lambda _: page_view(), lambda: None))  # fmt: skip
    with StatusServer(http_listener("127.0.0.1", 0, files, tmp_path / "token"), pages) as server:
        server.wait_started()
        with closing(HTTPSConnection("127.0.0.1", server.port, context=context)) as connection:
            connection.request("POST", "/login", urlencode({"token": TOKEN}), FORM)
            cookie = connection.getresponse().headers["Set-Cookie"]
    assert cookie.startswith(f"__Host-sk_session_{server.port}=")
    assert "Secure" in cookie
    assert "Path=/" in cookie
    assert "Domain" not in cookie


# ---- sessions alone


def test_a_session_ends_in_time_and_the_oldest_gives_way() -> None:
    sessions = Sessions()
    first = sessions.open(TOKEN, [TOKEN], 0.0)
    assert first is not None
    assert sessions.admits(first, [TOKEN], SESSION_SECONDS - 1.0)
    assert not sessions.admits(first, [TOKEN], SESSION_SECONDS + 0.0)
    assert not sessions.admits(first, [], 0.0)
    others = [sessions.open(TOKEN, [OTHER, TOKEN], 1.0) for _ in range(SESSIONS_MAX)]
    assert not sessions.admits(first, [TOKEN], 1.0)
    assert all(cookie and sessions.admits(cookie, [TOKEN], 1.0) for cookie in others)
    assert len({*others}) == SESSIONS_MAX


def test_a_form_is_read_as_browsers_send_it() -> None:
    assert parse_token_form(b"token=a%2Bb+") == "a+b"
    assert parse_token_form(b"") == ""
    with pytest.raises(ValueError, match="too many values"):
        parse_token_form(b"token=a&token=b")
