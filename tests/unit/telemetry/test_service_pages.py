"""A service's own pages: which requests may change something, by token and by address."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from threading import Event

import pytest
from prometheus_client import CollectorRegistry

from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.telemetry import status_pages, status_server
from quorum_wal.telemetry.status_server import Answer, Pages, Route, StatusServer, http_listener

TOKEN, ADMIN = "r" * 20, "a" * 20
JSON = {"Content-Type": "application/json"}

Ask = partial[int]


class Service:
    """It records its requests."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, bytes]] = []

    @property
    def pages(self) -> Pages:
        routes = [self._route(method) for method in ("GET", "POST", "DELETE")]
        routes.append(Route("POST", "/open", lambda body: self._answer("open", body), False))
        return Pages(lambda: {}, lambda: "", CollectorRegistry, routes)

    def _route(self, method: str) -> Route:
        return Route(method, "/thing", lambda body: self._answer(method, body))

    def _answer(self, method: str, body: bytes) -> Answer:
        self.asked.append((method, body))
        return Answer(HTTPStatus.ACCEPTED, {"done": method})


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def start(service: Service, tmp_path: Path) -> Iterator[Callable[..., Ask]]:
    """`ask = start(token=True)`; `ask("POST", bearer=TOKEN)` returns the status of the answer."""
    with ExitStack() as stack:

        def make(*, token: bool = False, admin: bool = False) -> Ask:
            files = {TOKEN: tmp_path / "token", ADMIN: tmp_path / "admin"}
            for text, path in files.items():
                path.write_text(text)
                path.chmod(0o600)
            listener = http_listener(
                "127.0.0.1",
                0,
                None,
                files[TOKEN] if token else None,
                admin_token_file=files[ADMIN] if admin else None,
            )
            server = stack.enter_context(StatusServer(listener, service.pages))
            return partial(ask, server.port)

        yield make


def ask(
    port: int,
    method: str,
    path: str = "/thing",
    *,
    bearer: str = "",
    body: bytes | None = None,
    headers: dict[str, str] = JSON,
) -> int:
    sent = {**headers, **({"Authorization": f"Bearer {bearer}"} if bearer else {})}
    with closing(HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request(method, path, body, sent)
        return connection.getresponse().status


def test_without_tokens_clients_on_this_machine_may_change_something(
    start: Callable[..., Ask], service: Service
) -> None:
    ask = start()
    assert ask("POST", body=b"{}") == HTTPStatus.ACCEPTED
    assert ask("DELETE") == HTTPStatus.ACCEPTED
    assert service.asked == [("POST", b"{}"), ("DELETE", b"")]


def test_other_clients_may_not(
    start: Callable[..., Ask], service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = start()
    for host in ("evil.example", "[", "[::1", "127.0.0.1@evil.example", "//127.0.0.1"):
        assert ask("POST", headers={**JSON, "Host": host}) == HTTPStatus.FORBIDDEN, host
    monkeypatch.setattr(status_pages, "is_loopback", lambda host: host != "127.0.0.1")
    assert ask("POST", headers={**JSON, "Host": "[::1]"}) == HTTPStatus.FORBIDDEN
    assert service.asked == []


def test_a_name_that_was_rebound_to_this_machine_reads_nothing(
    start: Callable[..., Ask], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of another site can give its name the address 127.0.0.1, and then read the answers."""
    ask = start()
    for path in ("/status", "/metrics", "/thing"):
        for host in ("evil.example", "evil.example:7677", "[", "127.0.0.1@evil.example", ""):
            assert ask("GET", path, headers={"Host": host}) == HTTPStatus.FORBIDDEN, host
        for host in ("localhost:7677", "LOCALHOST", "127.0.0.1", "[::1]:7677", "10.0.0.9:1"):
            assert ask("GET", path, headers={"Host": host}) != HTTPStatus.FORBIDDEN, host
    assert ask("GET", "/healthz", headers={"Host": "evil.example"}) == HTTPStatus.OK
    with_token = start(token=True)
    assert with_token("GET", bearer=TOKEN, headers={"Host": "sk.example"}) == HTTPStatus.ACCEPTED
    # A port that is open to other machines has names that it does not know.
    monkeypatch.setattr(status_pages, "is_loopback", lambda host: False)
    assert ask("GET", headers={"Host": "sk.example"}) == HTTPStatus.ACCEPTED


def test_a_request_without_a_host_asks_no_name_server(
    start: Callable[..., Ask], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The only thread of the port would wait for its answer."""

    def asked(*_: object) -> str:
        raise AssertionError("a name server was asked")

    monkeypatch.setattr(socket, "getfqdn", asked)
    (port,) = start().args
    for method, code in ((b"GET", b"202"), (b"POST", b"403")):
        with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
            client.sendall(method + b" /thing HTTP/1.0\r\n\r\n")
            assert client.recv(4096).split()[1] == code


def test_a_browser_does_not_obey_a_page_of_another_site(
    start: Callable[..., Ask], service: Service
) -> None:
    """Such a page can send texts and forms without permission, but not JSON."""
    ask = start()
    code = ask("POST", body=b"{}", headers={"Content-Type": "text/plain"})
    assert code == HTTPStatus.UNSUPPORTED_MEDIA_TYPE
    assert service.asked == []


def test_only_the_admins_token_changes_something_and_opens_every_page(
    start: Callable[..., Ask], service: Service
) -> None:
    ask = start(token=True, admin=True)
    for bearer in ("", TOKEN, "guess"):
        assert ask("POST", bearer=bearer) == HTTPStatus.UNAUTHORIZED
    assert service.asked == []
    assert ask("POST", bearer=ADMIN) == HTTPStatus.ACCEPTED
    for bearer, code in (("", HTTPStatus.UNAUTHORIZED), (TOKEN, HTTPStatus.OK),
                         (ADMIN, HTTPStatus.OK)):  # fmt: skip
        assert ask("GET", "/status", bearer=bearer) == code


def test_a_single_token_is_required_here_too(start: Callable[..., Ask], service: Service) -> None:
    ask = start(token=True)
    assert ask("POST") == HTTPStatus.UNAUTHORIZED
    assert ask("POST", bearer=TOKEN) == HTTPStatus.ACCEPTED
    ask = start(admin=True)
    assert ask("POST") == HTTPStatus.UNAUTHORIZED
    assert ask("GET", "/status") == HTTPStatus.OK


def test_pages_without_admin_still_need_a_token(
    start: Callable[..., Ask], service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = start(token=True, admin=True)
    for bearer in ("", "guess"):
        assert ask("POST", "/open", bearer=bearer) == HTTPStatus.UNAUTHORIZED
    for bearer in (TOKEN, ADMIN):
        assert ask("POST", "/open", bearer=bearer) == HTTPStatus.ACCEPTED
    only_admin = start(admin=True)
    assert only_admin("POST", "/open") == HTTPStatus.UNAUTHORIZED
    assert only_admin("POST", "/open", bearer=ADMIN) == HTTPStatus.ACCEPTED
    bare = start()
    assert bare("POST", "/open") == HTTPStatus.ACCEPTED
    elsewhere = {**JSON, "Host": "evil.example"}
    assert bare("POST", "/open", headers=elsewhere) == HTTPStatus.FORBIDDEN
    assert ask("POST", "/open", bearer=TOKEN, headers=elsewhere) == HTTPStatus.ACCEPTED
    # A port that is open to others without tokens, by --insecure, is also open for this.
    monkeypatch.setattr(status_pages, "is_loopback", lambda host: False)
    assert bare("POST", "/open", headers=elsewhere) == HTTPStatus.ACCEPTED
    assert bare("POST", headers=elsewhere) == HTTPStatus.FORBIDDEN
    assert {method for method, _ in service.asked} == {"open"}


def test_an_api_refuses_in_json_and_may_block(service: Service) -> None:
    """Its status waits for something that its own pages do."""
    happened = Event()

    def status() -> dict[str, bool]:
        return {"happened": happened.wait(30)}

    pages = replace(service.pages, status=status, is_api=True)
    listener = http_listener("127.0.0.1", 0, None, None)
    with StatusServer(listener, pages) as server, ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(ask, server.port, "GET", "/status")
        assert ask(server.port, "GET", "/healthz") == HTTPStatus.OK
        with closing(HTTPConnection("127.0.0.1", server.port, timeout=30)) as connection:
            connection.request("PUT", "/thing", b"", JSON)
            response = connection.getresponse()
            assert response.headers["Allow"] == "DELETE,GET,POST"
            answer = json.loads(response.read())
        assert answer == {"error": "405: Method Not Allowed", "hint": None}
        assert not waiting.done()
        happened.set()
        assert waiting.result(30) == HTTPStatus.OK


def test_other_methods_and_pages_do_not_exist(start: Callable[..., Ask]) -> None:
    ask = start()
    assert ask("PUT") == HTTPStatus.METHOD_NOT_ALLOWED
    assert ask("POST", "/status") == HTTPStatus.METHOD_NOT_ALLOWED
    assert ask("GET", "/things") == HTTPStatus.NOT_FOUND


def test_the_pages_wait_for_a_busy_start_but_not_for_ever(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener, busy = http_listener("127.0.0.1", 0, None, None), Event()
    busy.set()
    checks = 0

    def is_busy() -> bool:
        nonlocal checks
        checks += 1
        return busy.is_set()

    monkeypatch.setattr(status_server, "YIELD_SECONDS", 600.0)
    with (
        StatusServer(listener, service.pages, is_busy) as server,
        ThreadPoolExecutor(1) as threads,
    ):
        waiting = threads.submit(ask, server.port, "GET", "/status")
        before = checks
        wait_until(lambda: checks > before + 2, 30, "it to check whether the start is busy")
        assert not waiting.done()
        busy.clear()
        assert waiting.result(30) == HTTPStatus.OK
    busy.set()
    with StatusServer(listener, service.pages, busy.is_set):
        pass  # the end does not wait
    monkeypatch.setattr(status_server, "YIELD_SECONDS", 0.1)
    with StatusServer(listener, service.pages, busy.is_set) as server:
        assert ask(server.port, "GET", "/status") == HTTPStatus.OK
