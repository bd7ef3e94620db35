"""Many browsers at once, and clients that leave before the answer: the work for them is bounded."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from threading import Event

import pytest
from page_views import page_view
from prometheus_client import CollectorRegistry

from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.telemetry.page.page_handlers import VIEWS_AT_ONCE_MAX
from quorum_wal.telemetry.page.page_view import PageView, WebPage
from quorum_wal.telemetry.status_server import Pages, StatusServer, http_listener

TIMEOUT = 60.0
CLIENTS = 20


class SlowPage:
    """Its views are made when `go` is set."""

    def __init__(self) -> None:
        self.go = Event()
        self.asked: list[str] = []

    def view(self, timeline: str) -> PageView:
        self.asked.append(timeline)
        assert self.go.wait(TIMEOUT)
        return page_view()

    def wait_asked(self, count: int) -> None:
        wait_until(lambda: len(self.asked) >= count, TIMEOUT, f"{count} views to be asked for")


@pytest.fixture
def page() -> SlowPage:
    return SlowPage()


@pytest.fixture
def port(page: SlowPage) -> Iterator[int]:
    pages = Pages(
        lambda: {}, lambda: "", CollectorRegistry, web=lambda: WebPage(page.view, lambda: None)
    )
    with StatusServer(http_listener("127.0.0.1", 0, None, None), pages) as server:
        server.wait_started()
        yield server.port
        page.go.set()


def get(port: int, path: str) -> int:
    with closing(HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        return answer.status


def test_browsers_that_ask_for_the_same_share_one_view(page: SlowPage, port: int) -> None:
    with ThreadPoolExecutor(CLIENTS) as clients:
        answers = [clients.submit(get, port, "/body?timeline=a") for _ in range(CLIENTS)]
        page.wait_asked(1)
        assert get(port, "/healthz") == 200
        page.go.set()
        assert {answer.result() for answer in answers} == {200}
    assert len(page.asked) < CLIENTS


def test_clients_that_do_not_wait_queue_up_no_work(page: SlowPage, port: int) -> None:
    for number in range(CLIENTS):
        with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT) as client:
            request = f"GET /body?timeline={number} HTTP/1.1\r\nHost: localhost\r\n\r\n"
            client.sendall(request.encode())
    page.wait_asked(VIEWS_AT_ONCE_MAX)
    codes = Counter(get(port, f"/body?timeline=later{number}") for number in range(3))
    assert codes == {503: 3}
    assert len(page.asked) == VIEWS_AT_ONCE_MAX
    page.go.set()
    wait_until(lambda: get(port, "/body") == 200, TIMEOUT, "the page to be made again")
