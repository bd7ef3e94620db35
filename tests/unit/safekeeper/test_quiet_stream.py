"""A stream with nothing to send: what ends its wait, at once and not with the next keepalive.

Keepalives are a minute apart here, so the awaited event itself must have woken the sender.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest
from socket_client import SocketClient
from timeline_on_disk import Pusher, leading_pusher

from quorum_wal.pgwire.connection import State
from quorum_wal.pgwire.errors import CopyEnd, CopyEnded
from quorum_wal.pgwire.messages import CopyData, CopyDone, Terminate
from quorum_wal.pgwire.replication import Keepalive, StandbyStatus, XLogData, parse_server_message
from quorum_wal.safekeeper import send_wal
from quorum_wal.safekeeper.replica import Client, ReplicaSender, stop_replicas

TIMEOUT_S = 10.0


class Quiet:
    """A replica that has all WAL, on the other end of a socket."""

    def __init__(self, folder: Path) -> None:
        self.pusher: Pusher = leading_pusher(folder)
        self.client = SocketClient()
        self.session, self.stream = self.client.start_copy()
        self.ended: BaseException | None = None
        timeline = self.pusher.timeline
        lsn = timeline.positions.flush_lsn
        self.sender = ReplicaSender(timeline, lsn, 1, Client(1, "here", "", 600), None)
        self._thread = Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.sender.run(self.stream)
        except BaseException as error:
            self.ended = error

    def wait_quiet(self) -> None:
        """Waits until its sender waits for the client."""
        self.say(StandbyStatus(0, 0, 0, 0, reply_requested=True))
        assert isinstance(self.hear(), Keepalive)

    def say(self, status: StandbyStatus) -> None:
        self.client.send(CopyData(status.encode()))

    def hear(self) -> XLogData | Keepalive:
        message = self.client.receive()
        assert isinstance(message, CopyData)
        return parse_server_message(message.data)

    def pass_wal(self, name: str) -> None:
        """A new record reaches the client; its sender waits again."""
        self.pusher.log.append(name)
        self.pusher.push()
        self.pusher.push(commit_lsn=self.pusher.log.lsn)
        message = self.hear()
        assert isinstance(message, XLogData)
        assert message.start_lsn + len(message.data) == self.pusher.log.lsn

    def wait_ended(self) -> None:
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive(), "it waits for the next keepalive"

    def ending(self) -> CopyEnd:
        self.wait_ended()
        assert isinstance(self.ended, CopyEnded)
        return self.ended.how

    def close(self) -> None:
        self.session.shutdown()
        stop_replicas(self.pusher.timeline)
        self._thread.join(TIMEOUT_S)
        self.session.close()
        self.client.close()


@pytest.fixture
def quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Quiet]:
    monkeypatch.setattr(send_wal, "KEEPALIVE_SECONDS", 60.0)
    made = Quiet(tmp_path)
    made.wait_quiet()
    yield made
    made.close()


def test_a_lost_connection(quiet: Quiet) -> None:
    quiet.client.socket.close()
    assert quiet.ending() is CopyEnd.DISCONNECT


def test_a_lost_connection_while_answers_are_not_waited_for(
    quiet: Quiet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(send_wal, "ANSWERS_WAIT_SECONDS", 60.0)
    quiet.pass_wal("R1")  # from now on it only checks whether the client is connected
    quiet.client.socket.close()
    assert quiet.ending() is CopyEnd.DISCONNECT


def test_terminate(quiet: Quiet) -> None:
    quiet.client.send(Terminate())
    assert quiet.ending() is CopyEnd.TERMINATE


def test_copy_done(quiet: Quiet) -> None:
    quiet.client.send(CopyDone())
    assert quiet.ending() is CopyEnd.COPY_DONE


def test_a_cancel_request(quiet: Quiet) -> None:
    assert not quiet.session.cancel(b"another key")
    quiet.wait_quiet()
    assert quiet.session.cancel(quiet.session.key.secret_key)
    assert quiet.ending() is CopyEnd.CANCELED
    quiet.session.send_error("57014", "canceling statement due to user request")
    quiet.client.receive_until(State.IDLE)


def test_a_cancel_request_after_the_end_has_no_effect(quiet: Quiet) -> None:
    quiet.client.send(CopyDone())
    quiet.ending()
    quiet.session.close()
    assert quiet.session.cancel(quiet.session.key.secret_key)  # the key is right


def test_new_wal(quiet: Quiet) -> None:
    for name in ("R1", "R2"):
        quiet.pass_wal(name)


def test_the_end_of_the_safekeeper(quiet: Quiet) -> None:
    stop_replicas(quiet.pusher.timeline)
    quiet.wait_ended()
    assert quiet.ended is None
