"""The results of threads for a loop: after its end, and from its own thread."""

from __future__ import annotations

from threading import Event, Thread

from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.walproposer.errors import WalProposerError
from quorum_wal.walproposer.stream.event_loop import EventLoop

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
    assert loop.epoll.poll(TIMEOUT), "the thread has brought it, and wakes the loop"
    loop.close()
    assert connection.is_closed


def test_a_result_that_comes_in_time_belongs_to_the_caller() -> None:
    loop, connection = EventLoop(), Connection()
    taken: list[Connection | WalProposerError] = []
    loop.in_thread(lambda: connection, taken.append)
    while not taken:
        loop.run_once(TIMEOUT)
    loop.close()
    assert taken == [connection]
    assert not connection.is_closed


def test_a_callback_from_its_own_thread_runs_after_the_events_without_a_wake_up() -> None:
    loop = EventLoop()
    called: list[str] = []

    def own() -> None:
        loop.call_after_events(lambda: called.append("own"))
        loop.call(lambda: called.append("woken"))
        called.append("event")

    loop.call(own)
    loop.run_once(TIMEOUT)
    assert called == ["event", "woken", "own"]
    loop.call_after_events(lambda: called.append("before the wait"))
    loop.run_once(TIMEOUT)
    assert called[3:] == ["before the wait"]
    loop.close()


def test_what_another_thread_asks_for_wakes_the_loop_up() -> None:
    loop = EventLoop()
    loop.run_once(0.0)
    called: list[str] = []
    thread = Thread(target=lambda: loop.call_after_events(lambda: called.append("other")))
    thread.start()
    while not called:
        loop.run_once(TIMEOUT)
    thread.join()
    loop.close()
