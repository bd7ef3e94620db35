"""A successor asks, the predecessor stops, and only then the successor is informed."""

from __future__ import annotations

import secrets
import socket
import time
from contextlib import ExitStack
from threading import Event, Thread

import pytest

from quorum_wal.consensus.ids import TimelineId
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.walproposer import takeover
from quorum_wal.walproposer.takeover import TakeOverListener, ask_predecessor

TIMEOUT = 30.0


@pytest.fixture
def timeline() -> TimelineId:
    return TimelineId(bytes(16), secrets.token_bytes(16))


class Successor(Thread):
    """A successor's request, and its answer."""

    def __init__(self, timeline: TimelineId) -> None:
        super().__init__(daemon=True)
        self.timeline = timeline
        self.has_stopped: bool | None = None
        self.start()

    def run(self) -> None:
        self.has_stopped = ask_predecessor(self.timeline)


def connected(timeline: TimelineId) -> socket.socket:
    """Connect to the listener, once there is one."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(TIMEOUT)

    def is_connected() -> bool:
        try:
            sock.connect(takeover.socket_address(timeline))
        except ConnectionRefusedError:
            return False
        return True

    wait_until(is_connected, TIMEOUT, "the listener")
    return sock


def test_without_a_predecessor_there_is_none_to_ask(timeline: TimelineId) -> None:
    assert not ask_predecessor(timeline)
    with TakeOverListener(timeline, lambda: None):
        assert not ask_predecessor(TimelineId(bytes(16), secrets.token_bytes(16)))
    assert not ask_predecessor(timeline)


def test_the_successor_waits_until_the_predecessor_has_left_the_block(
    timeline: TimelineId,
) -> None:
    asked = Event()
    with TakeOverListener(timeline, asked.set):
        connected(timeline).close()  # it listens
        successor = Successor(timeline)
        assert asked.wait(TIMEOUT)
        assert successor.has_stopped is None
    successor.join(TIMEOUT)
    assert successor.has_stopped is True


def test_another_message_changes_nothing(timeline: TimelineId) -> None:
    asked = Event()
    with TakeOverListener(timeline, asked.set):
        for words in (b"", b"hello\n", b"take over?"):
            with connected(timeline) as sock:
                sock.sendall(words)
                sock.shutdown(socket.SHUT_WR)
                assert sock.recv(100) == b""
        assert not asked.is_set()
        Successor(timeline)
        assert asked.wait(TIMEOUT)


def test_a_predecessor_that_does_not_let_go_is_not_waited_for(
    timeline: TimelineId, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(takeover, "STOP_SECONDS", 0.1)
    with TakeOverListener(timeline, lambda: None):
        connected(timeline).close()
        assert not ask_predecessor(timeline)


def test_the_name_is_taken_over_when_it_is_free(timeline: TimelineId) -> None:
    """A predecessor that was not asked, for instance by an older release, keeps the name until it
    ends."""
    asked = Event()
    with ExitStack() as second:
        with TakeOverListener(timeline, lambda: None):
            connected(timeline).close()
            second.enter_context(TakeOverListener(timeline, asked.set))
        connected(timeline).close()
        Successor(timeline)
        assert asked.wait(TIMEOUT)


def test_a_block_may_end_at_any_time(timeline: TimelineId) -> None:
    for _ in range(20):
        with TakeOverListener(timeline, lambda: None):
            continue


def test_an_orderly_end_waits_for_nothing(
    timeline: TimelineId, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No commit returns while a proposer ends, so the end must not wait for the listener's next
    check. Repeated many times, because the listener may not be waiting again when the block
    ends."""
    monkeypatch.setattr(takeover, "RETRY_SECONDS", 5.0)
    begun = time.monotonic()
    for _ in range(20):
        with TakeOverListener(timeline, lambda: None), connected(timeline) as sock:
            sock.sendall(b"nothing\n")
            assert sock.recv(100) == b""
    assert time.monotonic() - begun < takeover.RETRY_SECONDS / 2
