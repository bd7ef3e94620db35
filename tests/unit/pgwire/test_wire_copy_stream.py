"""The hot path on a real socket: batches, limits, all kinds of ends."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from socket_client import SocketClient

from quorum_wal.pgwire.blocking import CopyStream, Session
from quorum_wal.pgwire.connection import State
from quorum_wal.pgwire.errors import CopyEnd, CopyEnded, LocalProtocolError, ProtocolError
from quorum_wal.pgwire.framing import MESSAGE_BYTES_MAX
from quorum_wal.pgwire.messages import (
    INT8_OID,
    Column,
    CommandComplete,
    CopyData,
    CopyDone,
    CopyFail,
    DataRow,
    ErrorResponse,
    Query,
    ReadyForQuery,
    RowDescription,
    Terminate,
)
from quorum_wal.pgwire.transport import JOIN_BYTES_MAX, PlainTransport

TAGS = [CommandComplete("START_STREAMING"), CommandComplete("START_REPLICATION"), ReadyForQuery()]


class CountingSocket(socket.socket):
    """Counts the system calls that receive."""

    received = 0

    def recv_into(self, *args: Any) -> int:
        self.received += 1
        return super().recv_into(*args)


class Pair:
    """A copy on both ends of a socket."""

    def __init__(self) -> None:
        self.client = SocketClient()
        self.socket = CountingSocket(fileno=self.client.server_socket.detach())
        self.client.server_socket = self.socket
        self.session: Session
        self.session, self.stream = self.client.start_copy()

    @property
    def capacity(self) -> int:
        """Bytes of memory of the server's receive buffer."""
        memory, begin, end = self.stream.lend()
        self.stream.give_back(begin, end)
        return len(memory)


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.session.close()
    pair.client.close()


def drained(stream: CopyStream) -> list[bytes]:
    return [bytes(payload) for payload in stream.drain()]


def ending(stream: CopyStream) -> CopyEnded:
    with pytest.raises(CopyEnded) as caught:
        stream.drain()
    with pytest.raises(CopyEnded) as again:
        stream.drain()
    assert again.value is caught.value
    return caught.value


def test_everything_that_has_arrived_comes_in_one_call(pair: Pair) -> None:
    before = pair.socket.received
    sent = [os.urandom(size) for size in (10, 0, 8192, 1)]
    pair.client.send(*map(CopyData, sent))
    assert drained(pair.stream) == sent
    assert pair.socket.received == before + 1
    assert pair.stream.drain(timeout=0) == []


def test_it_waits_for_a_message_in_pieces(pair: Pair) -> None:
    one, two = b"1" * 100, b"2" * 100
    data = pair.client.connection.send(CopyData(one), CopyData(two))
    pair.client.socket.sendall(data[:150])
    assert drained(pair.stream) == [one]
    assert not pair.stream.has_buffered()
    assert pair.stream.drain(timeout=0) == []
    assert pair.stream.drain(timeout=0.01) == []
    pair.client.socket.sendall(data[150:])
    assert drained(pair.stream) == [two]


def test_the_largest_message_passes_and_a_larger_one_does_not(pair: Pair) -> None:
    largest = os.urandom(MESSAGE_BYTES_MAX)
    data = pair.client.connection.send(CopyData(b"small"), CopyData(largest), CopyData(b"small"))
    sender = threading.Thread(target=pair.client.socket.sendall, args=(data,))
    sender.start()
    got: list[bytes] = []
    while len(got) < 3:
        got += drained(pair.stream)
    sender.join()
    assert got == [b"small", largest, b"small"]
    pair.client.socket.sendall(b"d" + (MESSAGE_BYTES_MAX + 5).to_bytes(4, "big"))
    pair.client.socket.shutdown(socket.SHUT_WR)
    with pytest.raises(ProtocolError, match="invalid message length"):
        pair.stream.drain()
    (report,) = pair.client.receive_all()
    assert isinstance(report, ErrorResponse)
    assert (report.severity, report.sqlstate) == ("FATAL", "08P01")


def test_memory_does_not_grow(pair: Pair) -> None:
    """Many times the buffer, in messages that never fit evenly: no growth, no loss."""
    capacity = pair.capacity
    sent = [os.urandom(77_777) for _ in range(100)]
    sender = threading.Thread(target=pair.client.send, args=tuple(map(CopyData, sent)))
    sender.start()
    got: list[bytes] = []
    while len(got) < len(sent):
        got += drained(pair.stream)
    sender.join()
    assert got == sent
    assert pair.capacity == capacity


@pytest.mark.parametrize("size", [0, 1, JOIN_BYTES_MAX, JOIN_BYTES_MAX + 1, 128 * 1024])
def test_parts_are_sent_as_one_message(pair: Pair, size: int) -> None:
    wal = os.urandom(size)
    pair.stream.send(b"header", memoryview(wal)[: size // 2], memoryview(wal)[size // 2 :])
    assert pair.client.receive() == CopyData(b"header" + wal)


class HesitantSocket:
    """Takes a few bytes of a gathering call, like the kernel when a signal comes."""

    def __init__(self, takes: int) -> None:
        self.takes = takes
        self.taken = b""

    def settimeout(self, timeout: float | None) -> None:
        assert timeout is None

    def sendmsg(self, parts: Sequence[bytes | memoryview]) -> int:
        self.taken += b"".join(parts)[: self.takes]
        return self.takes

    def sendall(self, data: bytes | memoryview) -> None:
        self.taken += data


@pytest.mark.parametrize("takes", [0, 1, 5, 6, 20_005, 20_006, 40_004])
def test_an_interrupted_send_continues(takes: int) -> None:
    parts: list[bytes | memoryview] = [b"12345", os.urandom(20_000), memoryview(os.urandom(20_000))]
    sock = HesitantSocket(takes)
    PlainTransport(sock).send(parts)  # type: ignore[arg-type]
    assert sock.taken == b"".join(parts)


def test_copy_done_comes_after_the_data_before_it(pair: Pair) -> None:
    pair.client.send(CopyData(b"last"), CopyDone())
    assert drained(pair.stream) == [b"last"]
    assert pair.stream.has_buffered()
    assert ending(pair.stream).how is CopyEnd.COPY_DONE
    pair.stream.send(b"we may still speak")
    pair.stream.end_copy()
    assert pair.client.receive_until(State.IDLE) == [
        CopyData(b"we may still speak"),
        CopyDone(),
        *TAGS,
    ]
    with pytest.raises(LocalProtocolError):
        pair.stream.send(b"")
    pair.client.send(Query("SHOW a"))
    assert pair.session.read_command() == "SHOW a"


def test_the_end_of_a_timeline(pair: Pair) -> None:
    """The server ends the copy and drops the client's last messages; then the next one works."""
    pair.client.socket.sendall(CopyData(b"status").encode() + CopyDone().encode())
    columns = (Column("next_tli", INT8_OID), Column("next_tli_startpos"))
    pair.stream.end_copy(columns=columns, rows=[(2, "0/3000000")])
    assert pair.client.receive() == CopyDone()
    pair.client.connection.send(CopyDone())
    assert pair.client.receive_until(State.IDLE) == [
        RowDescription(columns),
        DataRow((b"2", b"0/3000000")),
        *TAGS,
    ]
    pair.client.send(Query("TIMELINE_HISTORY 2"))
    assert pair.session.read_command() == "TIMELINE_HISTORY 2"


def test_a_client_that_does_not_confirm_the_end_times_out(pair: Pair) -> None:
    with pytest.raises(CopyEnded, match=r"no CopyDone came within 0\.01 s") as caught:
        pair.stream.end_copy(timeout=0.01)
    assert caught.value.how is CopyEnd.DISCONNECT


def test_a_client_that_disconnects_instead_of_confirming(pair: Pair) -> None:
    pair.client.send(Terminate())
    with pytest.raises(CopyEnded) as caught:
        pair.stream.end_copy()
    assert caught.value.how is CopyEnd.TERMINATE
    assert pair.session.read_command() is None


def test_copy_fail(pair: Pair) -> None:
    pair.client.send(CopyData(b"x"), CopyFail("disk full"))
    assert drained(pair.stream) == [b"x"]
    ended = ending(pair.stream)
    assert (ended.how, str(ended)) == (CopyEnd.COPY_FAIL, "copy ended by CopyFail: disk full")
    pair.session.send_error("57014", str(ended))
    assert [type(m) for m in pair.client.receive_until(State.IDLE)] == [
        ErrorResponse,
        ReadyForQuery,
    ]


def test_an_error_ends_the_copy_and_not_the_session(pair: Pair) -> None:
    pair.session.send_error("58P01", "requested WAL segment has already been removed")
    pair.client.send(CopyData(b"under way"))
    pair.client.receive_until(State.IDLE)
    pair.client.send(Query("SHOW a"))
    assert pair.session.read_command() == "SHOW a"


def test_terminate(pair: Pair) -> None:
    pair.client.send(CopyData(b"x"), Terminate())
    assert drained(pair.stream) == [b"x"]
    assert ending(pair.stream).how is CopyEnd.TERMINATE
    assert pair.session.read_command() is None


def test_the_end_of_the_stream(pair: Pair) -> None:
    pair.client.send(CopyData(b"x"))
    pair.client.socket.sendall(b"d\0\0\0\x09cut")
    pair.client.socket.close()
    assert drained(pair.stream) == [b"x"]
    assert ending(pair.stream).how is CopyEnd.DISCONNECT
    assert pair.session.read_command() is None


def test_sending_to_a_disconnected_client(pair: Pair) -> None:
    pair.client.socket.close()
    with pytest.raises(CopyEnded) as caught:
        pair.stream.send(b"x")
    assert caught.value.how is CopyEnd.DISCONNECT
    with pytest.raises(CopyEnded):
        pair.stream.end_copy()


def test_another_thread_ends_it(pair: Pair) -> None:
    ended: list[CopyEnd] = []

    def drain() -> None:
        try:
            pair.stream.drain()
        except CopyEnded as error:
            ended.append(error.how)

    thread = threading.Thread(target=drain)
    thread.start()
    pair.session.shutdown()
    thread.join(5)
    assert ended == [CopyEnd.DISCONNECT]


def test_a_server_that_stops_tells_the_client(pair: Pair) -> None:
    pair.client.socket.shutdown(socket.SHUT_WR)
    pair.stream.stop()
    assert pair.client.receive_all() == [CommandComplete("COPY 0")]
    assert pair.session.fileno() == -1


def test_garbage_in_a_copy_gets_an_error_and_ends_the_session(pair: Pair) -> None:
    pair.client.socket.sendall(CopyData(b"good").encode() + b"Q")
    pair.client.socket.shutdown(socket.SHUT_WR)
    assert drained(pair.stream) == [b"good"]
    with pytest.raises(ProtocolError, match="invalid frontend message type 81 in state COPY_BOTH"):
        pair.stream.drain()
    (report,) = pair.client.receive_all()
    assert isinstance(report, ErrorResponse)
    assert report.severity == "FATAL"


def test_one_thread_receives_while_another_one_sends(pair: Pair) -> None:
    """With both directions full, a thread that did both would block for ever."""
    count, size = 200, 100_000
    client = pair.client

    def client_sends() -> None:
        for _ in range(count):
            client.socket.sendall(CopyData(bytes(size)).encode())

    def server_sends() -> None:
        for _ in range(count):
            pair.stream.send(bytes(size))

    def client_receives() -> None:
        for _ in range(count):
            assert client.receive() == CopyData(bytes(size))

    threads = [
        threading.Thread(target=target) for target in (client_sends, server_sends, client_receives)
    ]
    for thread in threads:
        thread.start()
    received = 0
    while received < count * size:
        received += sum(map(len, pair.stream.drain(timeout=5)))
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()
