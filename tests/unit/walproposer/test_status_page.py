"""The address of a status page, and when the token is sent."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

import pytest

from quorum_wal.walproposer.errors import Unreachable
from quorum_wal.walproposer.timelines import status_page
from quorum_wal.walproposer.timelines.status_page import (
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
