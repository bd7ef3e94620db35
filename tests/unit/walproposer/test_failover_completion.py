"""The proposer of a promoted server: nothing before the quorum has its timeline; then prepared
transactions are committed, then clients may write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import pytest

from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.walproposer.errors import Refusal, Unreachable
from quorum_wal.walproposer.failover import completion
from quorum_wal.walproposer.failover.completion import FailoverCompletion
from quorum_wal.walproposer.primary.prepared_transactions import PreparedTransaction
from quorum_wal.walproposer.primary.primary import Primary
from quorum_wal.walproposer.primary.primary_address import PrimaryAddress
from quorum_wal.walproposer.qsync import primary_session, resolve

TIMEOUT = 30.0
OURS = f"skq1.d.0.1-5000-7-1.{'0' * 32}"
LATER = f"skq1.d.0.2-6000-7-1.{'1' * 32}"
TLI = 2
PRIMARY = Primary(ServerFacts(7, 150018, 16 << 20), TimelineHistory(TLI), 0, 0)


class FakeSession:
    """A PrimarySession without a connection: nothing here uses one."""

    def __init__(self, *_: object) -> None:
        pass

    def opened(self, _: str) -> AbstractContextManager[None]:
        return nullcontext()

    def close(self) -> None:
        pass


class FakeServer:
    """On timeline 2. `problems` are raised one after the other by commits; `began` is called before
    each."""

    def __init__(
        self, *gids: str, is_closed: bool = True, problems: Sequence[Exception] = ()
    ) -> None:
        self.prepared = [PreparedTransaction(gid, "app", "alice", 7.0) for gid in gids]
        self.is_closed = is_closed
        self.orders: list[str] = []
        self.problems = list(problems)
        self.began: Callable[[], None] = lambda: None

    def open(self, new_session: object) -> None:
        self.orders.append("open")
        self.is_closed = False

    def commit(
        self, session_of: object, limbo: Sequence[PreparedTransaction], busy_seconds_max: float
    ) -> None:
        self.began()
        self.orders.append(f"commit {' '.join(entry.gid for entry in limbo)}")
        if self.problems:
            raise self.problems.pop(0)
        self.prepared = [each for each in self.prepared if each not in limbo]


def opening_of(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, *, decides: bool = True
) -> FailoverCompletion:
    """No network, and no patience."""
    monkeypatch.setattr(resolve, "commit_limbo", server.commit)
    monkeypatch.setattr(completion, "open_again", server.open)
    monkeypatch.setattr(completion, "read_prepared", lambda _: tuple(server.prepared))
    monkeypatch.setattr(completion, "is_closed", lambda _: server.is_closed)
    monkeypatch.setattr(completion, "may_be_closed", lambda _: False)
    monkeypatch.setattr(completion, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(primary_session, "PrimarySession", FakeSession)
    return FailoverCompletion(PrimaryAddress(""), PRIMARY, lambda: decides)


def test_clients_may_write_last(monkeypatch: pytest.MonkeyPatch) -> None:
    server = FakeServer("of others", OURS)
    opening_of(server, monkeypatch).finish()
    assert server.orders == [f"commit {OURS}", "open"]


def test_what_clients_of_this_primary_prepare_is_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    server = FakeServer(LATER)
    opening_of(server, monkeypatch).finish()
    assert server.orders == ["open"]


def test_a_server_that_was_open_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program has promoted it."""
    server = FakeServer(OURS, is_closed=False)
    opening_of(server, monkeypatch).finish()
    assert server.orders == [f"commit {OURS}"]


def test_nothing_is_done_before_the_quorum_has_its_timeline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = FakeServer(OURS)
    made = opening_of(server, monkeypatch, decides=False)
    made.finish()
    made.start()
    made.end()
    assert server.orders == []
    assert not made.is_done


def test_it_is_retried_and_the_error_is_in_the_status(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = Refusal("role a may not commit", hint="Give another one.")
    server = FakeServer(OURS, problems=[refusal, refusal, Unreachable("gone")])
    made = opening_of(server, monkeypatch)
    errors: list[str] = []
    server.began = lambda: errors.append(made.error)
    made.start()
    wait_until(lambda: made.is_done, TIMEOUT, "the limbo to be committed")
    assert server.orders == [f"commit {OURS}"] * 4 + ["open"]
    assert errors == ["", *["role a may not commit; Give another one."] * 2, "gone"]
    assert made.error == ""
