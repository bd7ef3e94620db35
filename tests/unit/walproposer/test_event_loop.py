"""What threads bring to a loop that has ended is looked after."""

from __future__ import annotations

from threading import Event

import pytest

from walproposer.stream.event_loop import EventLoop

TIMEOUT = 30.0


class Connection:
    """As far as a loop knows one."""

    def __init__(self) -> None:
        self.closed = Event()

    def close(self) -> None:
        self.closed.set()


def never(result: object) -> None:
    pytest.fail(f"{result} came to a loop that has ended")


def test_a_connection_that_comes_too_late_is_closed() -> None:
    loop, goes_on, connection = EventLoop(), Event(), Connection()

    def work() -> Connection:
        assert goes_on.wait(TIMEOUT)
        return connection

    loop.in_thread(work, never)
    loop.close()
    assert not connection.closed.is_set()
    goes_on.set()
    assert connection.closed.wait(TIMEOUT)


def test_a_connection_that_was_not_taken_is_closed() -> None:
    loop, has_come, connection = EventLoop(), Event(), Connection()

    def work() -> Connection:
        return connection

    loop.wake = has_come.set  # type: ignore[method-assign]
    loop.in_thread(work, never)
    assert has_come.wait(TIMEOUT)
    loop.close()
    assert connection.closed.is_set()
