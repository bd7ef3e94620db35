"""A proposer's connection as the safekeeper serves it, on the steady path: how it ends."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from threading import Thread

import pytest
from acceptor_steps import A, append, elected, history, vote_request
from socket_client import SocketClient
from timeline_on_disk import create_timeline
from wal_log import START_LSN

from quorum_wal.consensus.codec import decode_safekeeper_message, encode
from quorum_wal.consensus.messages import AppendResponse
from quorum_wal.pgwire.connection import State
from quorum_wal.pgwire.errors import ProtocolError
from quorum_wal.pgwire.messages import CopyData, CopyDone, CopyFail, Message, Query, Terminate
from quorum_wal.safekeeper.receive_wal import WalReceiver
from quorum_wal.safekeeper.steady_path import SteadyPath
from tests.steady_batch import framed

TIMEOUT_S = 10.0
TERMS = history((A, START_LSN))


class Connection:
    """A proposer that leads, and the thread that serves it."""

    def __init__(self, folder: Path, path: type[SteadyPath] | None) -> None:
        self.timeline = create_timeline(folder)
        self.is_steady = path is not None
        if path is not None:
            self.timeline.steady_path_class = path  # type: ignore[misc]
        else:
            self.timeline.steady_path = lambda _: None  # type: ignore[method-assign]
        self.client = SocketClient()
        self.session = self.client.start()
        self.client.send(Query("START_WAL_PUSH"))
        self.session.read_command()
        self.receiver = WalReceiver(1, self.session, "here")
        self.ended: BaseException | None = None
        self._thread = Thread(target=self._run)
        self._thread.start()
        self.client.receive_until(State.COPY_BOTH)
        self.lsn = START_LSN
        self.send(vote_request(A).message)
        self.hear()
        self.send(elected(A, START_LSN, TERMS).message)
        self.hear()

    def _run(self) -> None:
        try:
            self.receiver.run(self.timeline)
        except BaseException as error:
            self.ended = error

    def send(self, message: object) -> None:
        self.client.send(CopyData(encode(message)))

    def append_of(self, length: int) -> CopyData:
        message = append(A, self.lsn, length, wal=b"w" * length).message
        self.lsn += length
        return CopyData(encode(message))

    def hear(self) -> AppendResponse | object:
        answer = self.client.receive()
        assert isinstance(answer, CopyData)
        return decode_safekeeper_message(answer.data)

    def begin_steady(self) -> None:
        self.client.send(self.append_of(800))
        self.hear()
        assert (self.timeline.steady_path(1) is not None) is self.is_steady

    def join(self) -> BaseException | None:
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive(), "it waits for more"
        return self.ended

    def close(self) -> None:
        self.session.shutdown()
        self._thread.join(TIMEOUT_S)
        self.timeline.close("the test is over")
        self.session.close()
        self.client.close()


@pytest.fixture(params=["general", "interpreted", "compiled"])
def connection(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Connection]:
    classes = {
        "general": lambda: None,
        "interpreted": lambda: SteadyPath,
        "compiled": lambda: import_module("quorum_wal.safekeeper.steady_path_compiled").SteadyPath,
    }
    made = Connection(tmp_path / "timeline", classes[request.param]())
    made.begin_steady()
    yield made
    made.close()


@pytest.mark.parametrize("end", [CopyDone(), CopyFail("it says"), Terminate()], ids=repr)
def test_the_end_in_one_segment_with_an_append(connection: Connection, end: Message) -> None:
    """Nothing more comes, so it may not wait. The log names the end."""
    frames = framed([connection.append_of(800).data])
    connection.client.socket.sendall(frames + end.encode())
    answer = connection.hear()
    assert isinstance(answer, AppendResponse)
    assert answer.flush_lsn == connection.lsn
    assert connection.join() is None
    assert connection.receiver.closed_reason.startswith(f"copy ended by {type(end).__name__}")


def test_an_invalid_frame_behind_an_append(connection: Connection) -> None:
    wal = connection.append_of(800)
    connection.client.socket.sendall(framed([wal.data]) + b"d\xff\xff\xff\xff")
    assert isinstance(connection.hear(), AppendResponse)
    assert isinstance(connection.join(), ProtocolError)


def test_a_frame_that_begins_behind_the_last_one(connection: Connection) -> None:
    """The path that has its beginning waits for the rest."""
    whole = framed([connection.append_of(800).data, connection.append_of(1600).data])
    for begin, end in ((0, 1000), (1000, 1003), (1003, len(whole) - 1)):
        connection.client.socket.sendall(whole[begin:end])
        if begin == 0:
            answer = connection.hear()
            assert isinstance(answer, AppendResponse)
            assert answer.flush_lsn == START_LSN + 1600
    connection.client.socket.sendall(whole[-1:])
    answer = connection.hear()
    assert isinstance(answer, AppendResponse)
    assert answer.flush_lsn == connection.lsn
