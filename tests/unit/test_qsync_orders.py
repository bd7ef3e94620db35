"""A client of the soak of qsync stops where it is ordered to, and continues when it is ordered
to."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import SimpleQueue

import pytest

from quorum_wal.pg_fixtures.waiting import wait_until
from tests.soak.qsync_orders import AFTER, BEFORE, DROP, DURING, STOP, Orders

SECONDS = 10.0


class Parent:
    """Its orders are in effect when `order` returns: the next line is read then."""

    def __init__(self) -> None:
        self.said: SimpleQueue[str] = SimpleQueue()
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        self._asked = threading.Semaphore(0)
        self.ended = threading.Event()
        self.orders = Orders(self._read(), self.said.put, self.ended.set)
        self._asked.acquire()

    def _read(self) -> Iterator[str]:
        while True:
            self._asked.release()
            line = self._lines.get()
            if line is None:
                return
            yield line

    def order(self, *words: str) -> None:
        self._lines.put("\t".join(words) + "\n")
        assert self._asked.acquire(timeout=SECONDS)

    def end(self) -> None:
        self._lines.put(None)


class Stepping(threading.Thread):
    """A client that comes to a step."""

    def __init__(self, orders: Orders, step: str, when: str) -> None:
        super().__init__(daemon=True)
        self._come = (orders, step, when)
        self.act = "nothing"
        self.start()

    def run(self) -> None:
        orders, step, when = self._come
        self.act = orders.reached(step, when)

    def is_past(self) -> bool:
        self.join(SECONDS)
        return not self.is_alive()


@pytest.fixture
def parent() -> Iterator[Parent]:
    parent = Parent()
    yield parent
    parent.end()
    assert parent.ended.wait(SECONDS)


def arm(parent: Parent, number: str, act: str = STOP) -> None:
    parent.order("arm", number, "commit", BEFORE, act)


def test_an_older_go_does_not_let_a_stop_pass(parent: Parent) -> None:
    arm(parent, "1")
    parent.order("go")  # of a process that was led to a step before
    client = Stepping(parent.orders, "commit", BEFORE)
    assert parent.said.get(timeout=SECONDS) == "at 1"
    client.join(0.2)
    assert client.is_alive()
    parent.order("go")
    assert client.is_past()
    assert client.act == STOP


def test_it_stops_once_for_each_order(parent: Parent) -> None:
    for number in ("1", "2"):
        arm(parent, number, DROP)
        client = Stepping(parent.orders, "commit", BEFORE)
        assert parent.said.get(timeout=SECONDS) == f"at {number}"
        parent.order("go")
        assert client.is_past()
        assert client.act == DROP
    assert parent.orders.reached("commit", BEFORE) == ""


def test_it_stops_nowhere_else(parent: Parent) -> None:
    arm(parent, "1")
    for step, when in (("commit", AFTER), ("commit", DURING), ("wait", BEFORE)):
        assert not parent.orders.is_armed(step, when)
        assert parent.orders.reached(step, when) == ""
    assert parent.orders.is_armed("commit", BEFORE)


def test_who_is_disarmed_does_not_stop(parent: Parent) -> None:
    arm(parent, "1")
    parent.order("disarm")
    assert parent.orders.reached("commit", BEFORE) == ""


def test_who_has_stopped_before_it_was_disarmed_goes_on(parent: Parent) -> None:
    arm(parent, "1")
    client = Stepping(parent.orders, "commit", BEFORE)
    assert parent.said.get(timeout=SECONDS) == "at 1"
    parent.order("disarm")
    parent.order("go")
    assert client.is_past()


def test_each_lead_is_for_one_transaction(parent: Parent) -> None:
    parent.order("lead")
    wait_until(parent.orders.is_led, SECONDS, "the lead")
    assert not parent.orders.is_led()


def test_it_pauses_and_resumes(parent: Parent) -> None:
    parent.order("pause")
    assert not parent.orders.resumed.is_set()
    parent.order("resume")
    assert parent.orders.resumed.is_set()
