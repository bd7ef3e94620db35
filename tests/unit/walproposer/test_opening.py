"""What a proposer does with a server that was promoted: nothing before the quorum has its timeline;
then what is prepared is committed, then clients are let in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from pg_fixtures.waiting import wait_until
from walproposer.errors import Refusal, Unreachable, WalProposerError
from walproposer.failover import opening
from walproposer.failover.opening import Opening
from walproposer.failover.promotion import Standby
from walproposer.primary.prepared_transactions import PreparedTransaction
from walproposer.primary.primary_address import PrimaryAddress

TIMEOUT = 30.0
LIMBO = PreparedTransaction(f"skq1.d.0.1-5000-7.{'0' * 32}", "app", "alice", 7.0)
PROMOTED = Standby(
    in_recovery=False,
    received_lsn=0,
    replayed_lsn=0,
    is_paused=False,
    sources=(),
    standby_names=("walproposer",),
    has_slot=True,
    checkpointer_idle=True,
    config_age_seconds=1.0,
    may_prepare=True,
    limbo_len=1,
    is_closed=True,
)


class FakeServer:
    """`problems` are raised one after the other by commits."""

    address = PrimaryAddress("")

    def __init__(self, state: Standby, problems: Sequence[Exception] = ()) -> None:
        self.state = state
        self.orders: list[str] = []
        self.problems = list(problems)

    def read(self) -> Standby:
        return self.state

    def read_limbo(self) -> tuple[PreparedTransaction, ...]:
        return (LIMBO,) * self.state.limbo_len

    def read_foreign(self) -> tuple[PreparedTransaction, ...]:
        return (PreparedTransaction("of others", "app", "alice", 7.0),)

    def open(self) -> None:
        self.orders.append("open")
        self.state = replace(self.state, is_closed=False)

    def commit(
        self, address: PrimaryAddress, limbo: Sequence[PreparedTransaction], timeout_seconds: float
    ) -> None:
        assert address is self.address
        self.orders.append("commit")
        if self.problems:
            raise self.problems.pop(0)
        self.state = replace(self.state, limbo_len=self.state.limbo_len - len(limbo))


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Opening, "_warn_of_read_only", lambda self: None)
    monkeypatch.setattr(opening, "RETRY_SECONDS", 0.01)


def opening_of(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, *, decides: bool = True
) -> Opening:
    monkeypatch.setattr(opening, "commit_limbo", server.commit)
    return Opening(server, lambda: decides)  # type: ignore[arg-type]


def test_clients_are_let_in_last(monkeypatch: pytest.MonkeyPatch) -> None:
    server = FakeServer(PROMOTED)
    opening_of(server, monkeypatch).finish()
    assert server.orders == ["commit", "open"]


def test_a_server_that_was_open_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else has promoted it."""
    server = FakeServer(replace(PROMOTED, is_closed=False))
    opening_of(server, monkeypatch).finish()
    assert server.orders == ["commit"]


def test_nothing_is_done_before_the_quorum_has_its_timeline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = FakeServer(PROMOTED)
    made = opening_of(server, monkeypatch, decides=False)
    made.finish()
    made.start()
    made.end()
    assert server.orders == []
    assert not made.is_done


def test_it_is_tried_again_and_told_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = Refusal("role a may not commit", hint="Give another one.")
    server = FakeServer(PROMOTED, [refusal] * 2 + [Unreachable("gone")])
    made = opening_of(server, monkeypatch)
    errors = []
    failed = made._failed

    def note(error: WalProposerError) -> None:
        failed(error)
        errors.append(made.error)

    monkeypatch.setattr(made, "_failed", note)
    made.start()
    wait_until(lambda: made.is_done, TIMEOUT, "the limbo to be committed")
    assert server.orders == ["commit"] * 4 + ["open"]
    assert errors == ["role a may not commit; Give another one."] * 2 + ["gone"]
    assert made.error == ""
