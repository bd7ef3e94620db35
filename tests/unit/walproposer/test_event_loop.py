"""Results of threads that come when the loop has ended."""

from __future__ import annotations

from threading import Event

from pg_fixtures.waiting import wait_until
from walproposer.errors import WalProposerError
from walproposer.stream.event_loop import EventLoop

TIMEOUT = 10.0


class Connection:
    """One that a thread has opened."""

    def __init__(self) -> None:
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


def refuse(_: Connection | WalProposerError) -> None:
    raise AssertionError("the loop has ended")


def test_a_connection_that_comes_after_the_end_is_closed() -> None:
    loop, connection, go_on = EventLoop(), Connection(), Event()

    def connect() -> Connection:
        assert go_on.wait(TIMEOUT)
        return connection

    loop.in_thread(connect, refuse)
    loop.close()
    assert not connection.is_closed
    go_on.set()
    wait_until(lambda: connection.is_closed, TIMEOUT, "the connection to be closed")


def test_a_connection_that_was_not_taken_is_closed() -> None:
    loop, connection = EventLoop(), Connection()
    loop.in_thread(lambda: connection, refuse)
    wait_until(lambda: not loop._inbox.empty(), TIMEOUT, "the thread to bring it")
    loop.close()
    assert connection.is_closed


def test_who_comes_in_time_is_the_callers() -> None:
    loop, connection = EventLoop(), Connection()
    taken: list[Connection | WalProposerError] = []
    loop.in_thread(lambda: connection, taken.append)
    while not taken:
        loop.run_once(TIMEOUT)
    loop.close()
    assert taken == [connection]
    assert not connection.is_closed
