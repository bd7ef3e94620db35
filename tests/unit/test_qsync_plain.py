"""A plain commit that takes longer than all else beside it is a violation, and no other is."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.soak import qsync_plain
from tests.soak.qsync_book import QsyncBook
from tests.soak.qsync_plain import DELAY_SECONDS_MAX, PlainClient, Trouble, Turns

LONG = DELAY_SECONDS_MAX + 0.1
TURN = 0.02


class Server:
    """A clock, a connection and the control: a commit takes `seconds`, a turn `turn_seconds`."""

    def __init__(self) -> None:
        self.now = 100.0
        self.turns = Turns()
        self.seconds, self.turn_seconds = 0.01, TURN
        self.meanwhile: Callable[[], None] = lambda: None
        self.error: psycopg.Error | None = None
        self.turns.turn(self.now)

    def monotonic(self) -> float:
        return self.now

    def execute(self, _: str) -> None:
        ended = self.now + self.seconds
        while self.now + self.turn_seconds < ended:
            self.now += self.turn_seconds
            self.turns.turn(self.now)
        self.now = ended
        self.meanwhile()
        if self.error is not None:
            raise self.error


class Plain:
    def __init__(self, server: Server) -> None:
        self.server, self.book, self.trouble = server, QsyncBook(), Trouble()
        self.client = PlainClient("", self.book, self.trouble, server.turns, waits_by_names=False)
        self.laws()  # it is connected

    def laws(self) -> list[str]:
        """Those that are broken when it has committed once more."""
        try:
            self.client.watch(self.server)  # type: ignore[arg-type]
        except psycopg.Error:
            pass  # the watcher connects again
        return [violation.partition(":")[0] for violation in self.book.violations]


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> Plain:
    server = Server()
    monkeypatch.setattr(qsync_plain, "time", server)
    return Plain(server)


def test_a_commit_that_is_late_alone(plain: Plain) -> None:
    plain.server.seconds = LONG
    assert plain.laws() == ["PLAIN_DELAYED"]


def test_a_commit_that_is_late_with_all_others(plain: Plain) -> None:
    plain.server.seconds = plain.server.turn_seconds = LONG
    assert plain.laws() == []


def test_a_control_that_has_failed_excuses_no_commit(plain: Plain) -> None:
    plain.server.seconds = plain.server.turn_seconds = LONG
    plain.server.turns.stop()
    assert plain.laws() == ["PLAIN_DELAYED"]


def test_what_happens_while_the_primary_is_in_trouble(plain: Plain) -> None:
    plain.server.seconds, plain.server.error = LONG, psycopg.OperationalError("lost")
    with plain.trouble.during("a failover"):
        assert plain.laws() == []


def test_trouble_that_has_come_and_gone_meanwhile(plain: Plain) -> None:
    def trouble() -> None:
        with plain.trouble.during("a failover"):
            pass

    plain.server.seconds, plain.server.meanwhile = LONG, trouble
    assert plain.laws() == []
    plain.server.error = psycopg.OperationalError("lost")
    assert plain.laws() == []


def test_a_commit_that_fails_on_a_healthy_primary(plain: Plain) -> None:
    plain.server.error = psycopg.errors.ReadOnlySqlTransaction("it is closed")
    assert plain.laws() == ["PLAIN_FAILED"]


def test_a_session_of_before_the_trouble_may_fail_after_it(plain: Plain) -> None:
    with plain.trouble.during("the primary is killed"):
        pass
    plain.server.error = psycopg.OperationalError("lost")
    assert plain.laws() == []
