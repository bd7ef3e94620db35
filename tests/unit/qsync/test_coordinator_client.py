"""The client of coordinators: hosts, connections, retries, and errors that are not retried."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from two_phase_world import FakeConnection, error_of

from quorum_wal.qsync.coordinator_client import ADMISSION_SECONDS, CoordinatorClient, pending_of
from quorum_wal.qsync.errors import (
    BarrierFailed,
    CoordinatorError,
    OutcomeUnknown,
    TransactionPending,
    TransactionRefused,
)
from quorum_wal.qsync.gid import Gid, GidError, Policy
from quorum_wal.qsync.outcome import Committed, Pending, RolledBack
from quorum_wal.qsync.statements import Result
from quorum_wal.qsync.steps import Ask, Connect, Pause, Request, Steps

GID = Gid(Policy.DETACH, 5000, 1, 0x1000, 725, 1, "0" * 32)
CONFIRMED = Result(row=("confirmed", "0/2000", "7"))
PENDING = Result(row=("pending", "0/1000", "7"))

Server = Callable[[str, str], Result | None]  # (host, command); None: the connection breaks


class Coordinators:
    """Coordinators: `asked`: (host, command) in order; `is_down`: hosts that refuse connections."""

    def __init__(self, server: Server, hosts: str = "a:5455,b:5455") -> None:
        self.now = 0.0
        self.process, self.loop = 1, 1
        self.asked: list[tuple[str, str]] = []
        self.is_down: set[str] = set()
        self.opened: list[FakeConnection] = []
        self.client = CoordinatorClient(
            hosts, lambda: self.now, lambda: self.process, lambda: self.loop
        )
        self.server = server

    def run(self, steps: Steps[Any]) -> Any:
        try:
            request = next(steps)
            while True:
                try:
                    answer = self._perform(request)
                except Exception as error:
                    request = steps.throw(error)
                else:
                    request = steps.send(answer)
        except StopIteration as end:
            return end.value

    def verbs(self) -> list[str]:
        return [f"{host} {command.split()[0]}" for host, command in self.asked]

    def _perform(self, request: Request) -> Any:
        match request:
            case Connect(conninfo):
                host = conninfo.split("host=")[1].split()[0]
                if host in self.is_down:
                    raise psycopg.OperationalError(f"{host} is down\nIs the server running?")
                self.opened.append(FakeConnection(host))
                return self.opened[-1]
            case Pause(seconds):
                self.now += seconds
                return None
            case Ask():
                connection: Any = request.connection
                if not connection.is_open:
                    raise psycopg.OperationalError("the connection is closed")
                command = request.statements[0].decode()
                self.asked.append((connection.of, command))
                result = self.server(connection.of, command)
                if result is None:
                    raise psycopg.OperationalError("broken")
                return [result]
        raise AssertionError(request)


def leads(name: str) -> Server:
    return lambda host, _: CONFIRMED if host == name else Result(error=error_of("57P03"))


def test_of_several_the_one_that_leads_is_asked_from_then_on() -> None:
    world = Coordinators(leads("b"))
    world.run(world.client.admit(5.0))
    verdict = world.run(world.client.wait(0x2000, GID, 5.0))
    assert verdict.is_confirmed
    assert world.verbs() == ["a ADMIT", "b ADMIT", "b WAIT_LSN"]
    assert world.asked[2][1] == f"WAIT_LSN 0/2000 TIMEOUT 5000 GID '{GID}'"


def test_one_that_is_down_is_passed_over() -> None:
    world = Coordinators(leads("b"))
    world.is_down = {"a"}
    world.run(world.client.admit(5.0))
    assert world.verbs() == ["b ADMIT"]


def test_an_admission_counts_for_a_moment_for_all() -> None:
    world = Coordinators(leads("a"))
    for _ in range(3):
        world.run(world.client.admit(5.0))
    assert world.verbs() == ["a ADMIT"]
    world.now += ADMISSION_SECONDS
    world.run(world.client.admit(5.0))
    assert world.verbs() == ["a ADMIT"] * 2


def test_a_verdict_that_does_not_confirm_ends_the_admission() -> None:
    world = Coordinators(lambda _, command: PENDING if "WAIT" in command else CONFIRMED)
    world.run(world.client.admit(5.0))
    assert not world.run(world.client.wait(0x2000, GID, 0.01)).is_confirmed
    world.run(world.client.admit(5.0))
    assert world.verbs() == ["a ADMIT", "a WAIT_LSN", "a ADMIT"]


def test_no_leading_coordinator() -> None:
    world = Coordinators(leads("c"))
    with pytest.raises(TransactionRefused) as raised:
        world.run(world.client.admit(5.0))
    assert raised.value.outcome.sqlstate == "57P03"
    world.is_down = {"a", "b"}
    with pytest.raises(TransactionRefused, match="b is down") as raised:
        world.run(world.client.admit(5.0))
    assert raised.value.outcome.sqlstate == "08001"


def test_what_is_not_allowed_is_not_asked_elsewhere() -> None:
    world = Coordinators(lambda *_: Result(error=error_of("42501")))
    verdict = world.run(world.client.wait(0x2000, GID, 5.0))
    assert (verdict.is_confirmed, verdict.reason) == (False, "refused by the test")
    assert world.verbs() == ["a WAIT_LSN"]


def test_a_wait_goes_on_until_its_deadline_with_what_is_left_of_it() -> None:
    world = Coordinators(leads("b"))
    world.is_down = {"a"}
    world.server = lambda *_: None
    assert not world.run(world.client.wait(0x2000, GID, 5.0)).is_confirmed
    assert 4.4 < world.now < 5.0
    timeouts = [int(command.split()[3]) for _, command in world.asked]
    assert timeouts == sorted(timeouts, reverse=True)
    assert len(set(timeouts)) > 5


def test_a_wait_after_the_deadline_asks_once() -> None:
    world = Coordinators(lambda *_: PENDING)
    world.now = 9.0
    assert not world.run(world.client.wait(0x2000, GID, 5.0)).is_confirmed
    assert [command.split()[3] for _, command in world.asked] == ["0"]


def test_a_connection_that_ended_while_idle_is_replaced_at_once() -> None:
    world = Coordinators(leads("a"), hosts="a:5455")
    world.run(world.client.admit(5.0))
    replies = [None, CONFIRMED]
    world.server = lambda *_: replies.pop(0)
    world.now += 1
    world.run(world.client.admit(6.0))
    assert world.now == 1
    assert len(world.opened) == 2
    assert [connection.is_open for connection in world.opened] == [False, True]


def test_a_connection_to_a_host_that_is_not_preferred_any_more_is_not_used() -> None:
    """One client waits at a. Meanwhile another one finds that b leads. Then a's wait ends."""
    world = Coordinators(leads("a"))
    verdict = world.run(world.client.wait(0x2000, GID, 5.0))
    world.server = leads("b")
    world.run(world.client.admit(5.0))
    world.client.release(verdict, is_finished=True)
    assert not world.opened[0].is_open
    world.asked.clear()
    world.now += ADMISSION_SECONDS
    world.run(world.client.admit(5.0))
    assert world.verbs() == ["b ADMIT"]


def test_a_connection_that_held_a_gid_is_kept_only_when_it_is_finished() -> None:
    for is_finished in (True, False):
        world = Coordinators(leads("a"))
        verdict = world.run(world.client.wait(0x2000, GID, 5.0))
        world.client.release(verdict, is_finished=is_finished)
        assert world.opened[0].is_open is is_finished
        world.run(world.client.admit(5.0))
        assert len(world.opened) == (1 if is_finished else 2)


def test_another_process_leaves_inherited_connections_alone() -> None:
    world = Coordinators(leads("a"))
    world.run(world.client.admit(5.0))
    world.process = 2
    world.now += 1
    world.run(world.client.admit(5.0))
    world.client.close()
    assert [connection.is_open for connection in world.opened] == [True, False]


def test_another_loop_opens_its_own() -> None:
    world = Coordinators(leads("a"))
    world.run(world.client.admit(5.0))
    world.loop = 2
    world.now += 1
    world.run(world.client.admit(5.0))
    assert [connection.is_open for connection in world.opened] == [False, True]


def test_a_barrier_names_the_server() -> None:
    world = Coordinators(leads("b"))
    assert world.run(world.client.barrier(0x2000, 3, 17955, 5.0)) == 0x2000
    assert world.asked[-1] == ("b", "BARRIER 0/2000 TIMEOUT 5000 TLI 3 START 17955")


def test_an_unconfirmed_barrier_fails() -> None:
    world = Coordinators(lambda *_: PENDING)
    with pytest.raises(BarrierFailed, match="no quorum"):
        world.run(world.client.barrier(0x2000, 1, 17955, 1.0))
    other = Coordinators(lambda *_: Result(error=error_of("42501")))
    with pytest.raises(BarrierFailed, match="refused by the test"):
        other.run(other.client.barrier(0x2000, 1, 17955, 1.0))


@pytest.mark.parametrize(
    ("row", "outcome"),
    [
        (("committed", "0/3000"), Committed(0x3000)),
        (("committed", None), Committed(0x2000)),
        (("pending", None), Pending(GID, 0x2000)),
    ],
)
def test_outcomes(row: tuple[str | None, ...], outcome: object) -> None:
    world = Coordinators(lambda *_: Result(row=row))
    assert world.run(world.client.outcome(GID, 0x2000, 5.0)) == outcome
    assert world.asked == [("a", f"OUTCOME '{GID}' LSN 0/2000")]


def test_an_outcome_that_rolled_back_has_a_reason() -> None:
    world = Coordinators(lambda *_: Result(row=("rolled_back", None)))
    outcome = world.run(world.client.outcome(GID, 0, 5.0))
    assert isinstance(outcome, RolledBack)
    assert outcome.reason
    assert world.asked == [("a", f"OUTCOME '{GID}'")]


def test_an_outcome_is_asked_for_until_it_is_decided_or_late() -> None:
    world = Coordinators(lambda *_: Result(row=("pending", None)))
    outcome = world.run(world.client.outcome(GID, 0, 2.0, until_decided=True))
    assert outcome == Pending(GID, 0)
    assert 1.4 < world.now < 2.0


def test_an_unknown_outcome_is_an_error_but_no_rollback() -> None:
    world = Coordinators(lambda *_: Result(row=("unknown", None)))
    with pytest.raises(OutcomeUnknown):
        world.run(world.client.outcome(GID, 0, 5.0))
    other = Coordinators(leads("c"))
    with pytest.raises(CoordinatorError):
        other.run(other.client.outcome(GID, 0, 1.0))
    assert other.now > 0.4


def test_the_ways_to_name_a_transaction() -> None:
    pending = Pending(GID, 0x2000)
    assert pending_of(str(GID)) == pending_of(GID) == Pending(GID, 0)
    assert pending_of(pending) == pending_of(TransactionPending(pending, "late")) == pending
    with pytest.raises(GidError):
        pending_of("somebody's")
