"""The address of a status page, when the token is sent, and what a hostile page answers."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from http import HTTPStatus
from threading import Event, Thread

import pytest

from quorum_wal.walproposer.errors import Unreachable
from quorum_wal.walproposer.timelines import status_page
from quorum_wal.walproposer.timelines.status_page import (
    PROPOSER_LIMITS,
    PageAccess,
    PageAddress,
    demands_tls,
    read_status_page,
)

ACCESS = PageAccess(token="secret")
TOKEN = {"Authorization": "Bearer secret"}


@pytest.mark.parametrize(
    ("text", "page"),
    [
        ("10.0.0.1:80", PageAddress("10.0.0.1", 80)),
        ("https://10.0.0.1:80", PageAddress("10.0.0.1", 80, True)),
        ("0.0.0.0:80", PageAddress("sk1", 80)),
        ("https://[::]:80", PageAddress("sk1", 80, True)),
        ("[fe80::1]:80", PageAddress("fe80::1", 80)),
    ],
)
def test_a_wildcard_is_the_host_that_was_reached(text: str, page: PageAddress) -> None:
    assert PageAddress.parse(text, "sk1") == page
    assert PageAddress.parse(str(page), "") == page


def test_what_is_no_address_is_refused() -> None:
    for text in ("", "host", "host:", "host:port"):
        with pytest.raises(Unreachable, match="reports an invalid status page"):
            PageAddress.parse(text, "sk1")


def test_tls_is_demanded_by_sslmode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PGSSLMODE", raising=False)
    assert not demands_tls("")
    assert not demands_tls("sslmode=prefer")
    assert demands_tls("sslmode=verify-full user=x")
    monkeypatch.setenv("PGSSLMODE", "require")
    assert demands_tls("")
    assert not demands_tls("sslmode=disable")


class Page:
    """A page that requests a token; it records every request."""

    def __init__(self) -> None:
        self.requests: list[tuple[bool, Mapping[str, str]]] = []

    def answer(
        self,
        _: PageAddress,
        access: PageAccess,
        encrypted: bool,
        request: object,
        headers: dict[str, str],
    ) -> tuple[int, bytes]:
        self.requests.append((encrypted, headers))
        return (HTTPStatus.OK, b"{}") if headers == TOKEN else (HTTPStatus.UNAUTHORIZED, b"")


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Page:
    page = Page()
    monkeypatch.setattr(status_page, "_send", page.answer)
    return page


def test_the_token_is_sent_over_tls_or_on_this_machine(page: Page) -> None:
    for asked in (PageAddress("10.0.0.1", 80, True), PageAddress("127.0.0.1", 80, False)):
        page.requests.clear()
        assert read_status_page(asked, ACCESS) == {}
        assert page.requests == [(asked.encrypted, {}), (asked.encrypted, TOKEN)]


def test_the_token_is_never_sent_in_clear_text_to_another_machine(page: Page) -> None:
    for host in ("10.0.0.1", "sk1"):
        with pytest.raises(Unreachable, match="requests the token, but has no TLS"):
            read_status_page(PageAddress(host, 80), ACCESS)
    assert page.requests == [(False, {}), (False, {})]


def test_a_missing_or_wrong_token_is_an_error(page: Page) -> None:
    for access, sentence in (
        (PageAccess(), "requests a token: give --http-token-file"),
        (PageAccess(token="guess"), "requests another token"),
    ):
        with pytest.raises(Unreachable, match=sentence):
            read_status_page(PageAddress("127.0.0.1", 80, False), access)
    assert "guess" not in repr(PageAccess(token="guess"))


# ---- a server that answers anything


@dataclass
class Server:
    """Answers each request with the same parts, a pause between two of them."""

    parts: list[bytes]
    pause_seconds: float = 0.0

    def __post_init__(self) -> None:
        self._stopping = Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def page(self) -> PageAddress:
        return PageAddress("127.0.0.1", self._listener.getsockname()[1], False)

    def close(self) -> None:
        self._stopping.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client:
                client.recv(4096)
                for part in self.parts:
                    try:
                        client.sendall(part)
                    except OSError:
                        break  # it does not wait for the rest
                    if self._stopping.wait(self.pause_seconds):
                        return


def answer(body: bytes, status: str = "200 OK") -> list[bytes]:
    return [f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode(), body]


def refusal_of(server: Server) -> str:
    with closing(server), pytest.raises(Unreachable) as refused:
        read_status_page(server.page, PageAccess(), PROPOSER_LIMITS)
    return str(refused.value)


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        (b'{"a":' + b"[" * 9_000 + b"]" * 9_000 + b"}", "200 OK", "answers 200 OK"),
        (b'{"a":"\xff"}', "200 OK", "answers 200 OK"),
        (b'{"a":1e999}', "200 OK", "is invalid: Number out of range"),
        (b"[1]", "200 OK", "is invalid: Expected `object`"),
        (b"{}", "999 Nonsense", "answers 999"),
        (b"nonsense", "299 Nonsense", "answers 299: nonsense"),
        (b'{"a":[' + b"[]," * 20_000 + b"[]]}", "200 OK", "expected at most 10000 objects"),
        (b'{"a":"' + b"x" * (1 << 20) + b'"}', "200 OK", "expected at most 1048576 bytes"),
    ],
)
def test_an_answer_that_is_no_status_is_refused(body: bytes, status: str, text: str) -> None:
    assert text in refusal_of(Server(answer(body, status)))


def test_an_answer_without_an_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_page, "ANSWER_SECONDS_MAX", 0.3)
    for parts in ([b"HTTP/1.1 200 OK\r\n", *[b"X: 1\r\n"] * 90], [*answer(b"")[:1], *[b" "] * 90]):
        parts[0] = parts[0].replace(b"Content-Length: 0", b"Content-Length: 1000")
        assert "no complete answer within 0.3 s" in refusal_of(Server(parts, pause_seconds=0.05))


def test_an_answer_that_is_slow_and_complete_is_read() -> None:
    with closing(Server(answer(b'{"state": "streaming"}'), pause_seconds=0.05)) as server:
        assert read_status_page(server.page, PageAccess()) == {"state": "streaming"}
