"""A pageserver does not start if all safekeepers that answer refuse its user for good."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import psycopg
import pytest

from quorum_wal.backup.safekeeper_wal import Connect, Safekeeper
from quorum_wal.pageserver.errors import PageserverError
from quorum_wal.pageserver.ingest.lasting_refusal import check_not_refused
from quorum_wal.pgclient.errors import NotConnected, PgClientError, ServerError

ROLE = ServerError("it needs the role replica", sqlstate="42501", hint="Give it the role.")
PASSWORD = NotConnected("FATAL: password authentication failed", hint="Correct the password.")
DOWN = NotConnected("connection refused")
LOCKED_OUT = NotConnected("FATAL: too many failed authentication attempts", hint="Wait.")
UNKNOWN = ServerError("timeline does not exist", sqlstate="42704")


@pytest.fixture
def released() -> Iterator[threading.Event]:
    """Ends the connection attempts that hang."""
    event = threading.Event()
    yield event
    event.set()


def safekeepers(*answers: Exception | threading.Event) -> list[Safekeeper]:
    return [Safekeeper(f"sk{n}", connector(answer)) for n, answer in enumerate(answers)]


def connector(answer: Exception | threading.Event) -> Connect:
    def connect() -> psycopg.Connection:
        if isinstance(answer, threading.Event):
            answer.wait()
            raise DOWN
        raise answer

    return connect


@pytest.mark.parametrize("refusal", [ROLE, PASSWORD])
def test_refused_by_all_that_answer(refusal: PgClientError, released: threading.Event) -> None:
    with pytest.raises(PageserverError, match=str(refusal)) as raised:
        check_not_refused(safekeepers(DOWN, refusal, released), seconds=0.2)
    assert raised.value.hint == refusal.hint


@pytest.mark.parametrize(
    "answers",
    [
        pytest.param((), id="none"),
        pytest.param((DOWN, DOWN), id="all are down"),
        pytest.param((ROLE, UNKNOWN), id="one has no timeline yet"),
        pytest.param((PASSWORD, LOCKED_OUT), id="one counts failures"),
    ],
)
def test_not_refused(answers: tuple[Exception, ...]) -> None:
    check_not_refused(safekeepers(*answers))
