"""Sessions on a real socket: failed handshakes, commands and answers, last error messages."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator, Mapping

import pytest
from socket_client import CONFIG, STARTUP, SocketClient

from quorum_wal.pgwire.blocking import ServerConfig, Session, accept_connection
from quorum_wal.pgwire.connection import State
from quorum_wal.pgwire.errors import ConnectionRefused, CopyEnd, CopyEnded, ProtocolError
from quorum_wal.pgwire.messages import (
    INT8_OID,
    BackendKeyData,
    Column,
    CommandComplete,
    DataRow,
    EmptyQueryResponse,
    ErrorResponse,
    ParameterStatus,
    Query,
    ReadyForQuery,
    RowDescription,
    Terminate,
)
from quorum_wal.pgwire.startup import CancelRequest, StartupMessage
from quorum_wal.pgwire.transport import prepare_socket


@pytest.fixture
def client() -> Iterator[SocketClient]:
    client = SocketClient()
    yield client
    client.close()


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    """A client's socket and the server's, over TCP."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        return client, listener.accept()[0]


def accept(client: SocketClient, config: ServerConfig = CONFIG) -> Session | None:
    return accept_connection(client.server_socket, config)


def test_the_greeting_has_the_parameters_that_stock_clients_need(client: SocketClient) -> None:
    client.send(STARTUP)
    with accept(client) or pytest.fail("no session") as session:
        assert session.parameters == STARTUP.parameters
        assert not session.encrypted
        messages = client.receive_until(State.IDLE)
    status = {m.name: m.value for m in messages if isinstance(m, ParameterStatus)}
    assert status["server_version"] == "18.1"
    assert status["integer_datetimes"] == "on", "pg_receivewal exits without it"
    assert status["standard_conforming_strings"] == "on"
    assert status["client_encoding"] == status["server_encoding"] == "UTF8"
    assert status["DateStyle"].startswith("ISO"), "psycopg2 and pgjdbc refuse others"
    assert (status["application_name"], status["session_authorization"]) == ("standby1", "u")
    assert isinstance(messages[-2], BackendKeyData)
    assert len(messages[-2].secret_key) == 4, "protocol 3.0 has no other length"
    assert messages[-1] == ReadyForQuery()


def test_the_version_may_depend_on_the_startup_parameters(client: SocketClient) -> None:
    def version_of(parameters: Mapping[str, str]) -> str:
        if "timeline_id" not in parameters:
            raise ConnectionRefused("no timeline named", sqlstate="3D000")
        return {"a": "15.8", "b": "18.1"}[parameters["timeline_id"]]

    config = ServerConfig(server_version=version_of)
    client.send(StartupMessage({"user": "u", "options": "-c timeline_id=a"}))
    with accept(client, config) or pytest.fail("no session"):
        assert ParameterStatus("server_version", "15.8") in client.receive_until(State.IDLE)

    other = SocketClient()
    other.send(STARTUP)
    other.socket.shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionRefused):
        accept(other, config)
    report = other.receive_all()[-1]
    assert isinstance(report, ErrorResponse)
    assert (report.severity, report.sqlstate) == ("FATAL", "3D000")
    other.close()


def test_commands_and_answers(client: SocketClient) -> None:
    session = client.start()
    columns = (Column("systemid"), Column("timeline", INT8_OID), Column("dbname"))
    client.send(Query("IDENTIFY_SYSTEM"))
    assert session.read_command() == "IDENTIFY_SYSTEM"
    session.send_rows(columns, [("76", 1, None), (b"\xff", 2, "é")], "IDENTIFY_SYSTEM")
    assert client.receive_until(State.IDLE) == [
        RowDescription(columns),
        DataRow((b"76", b"1", None)),
        DataRow((b"\xff", b"2", "é".encode())),
        CommandComplete("IDENTIFY_SYSTEM"),
        ReadyForQuery(),
    ]
    client.send(Query("SELECT"))
    assert session.read_command() == "SELECT"
    session.send_error("42601", "syntax error", detail="d", hint="h", position=1)
    assert client.receive_until(State.IDLE) == [
        ErrorResponse("ERROR", "42601", "syntax error", "d", "h", 1),
        ReadyForQuery(),
    ]
    client.send(Query("CREATE_TIMELINE"))
    assert session.read_command() == "CREATE_TIMELINE"
    session.send_complete("CREATE_TIMELINE")
    assert client.receive_until(State.IDLE) == [CommandComplete("CREATE_TIMELINE"), ReadyForQuery()]
    client.send(Terminate())
    assert session.read_command() is None
    assert session.read_command() is None
    session.close()


def test_an_empty_command_is_answered_at_once(client: SocketClient) -> None:
    session = client.start()
    client.socket.sendall(Query(" ;\n").encode() + Query("SHOW a").encode())
    assert session.read_command() == "SHOW a"
    client.connection.state = State.BUSY
    assert client.receive_until(State.IDLE) == [EmptyQueryResponse(), ReadyForQuery()]
    session.close()


def test_a_client_that_disconnects_between_commands(client: SocketClient) -> None:
    session = client.start()
    client.socket.close()
    assert session.read_command() is None
    session.close()


def test_garbage_between_commands_gets_an_error_and_ends_the_session(client: SocketClient) -> None:
    session = client.start()
    client.socket.sendall(b"\xff")
    client.socket.shutdown(socket.SHUT_WR)
    with pytest.raises(ProtocolError, match="invalid frontend message type 255"):
        session.read_command()
    (report,) = client.receive_all()
    assert isinstance(report, ErrorResponse)
    assert (report.severity, report.sqlstate) == ("FATAL", "08P01")
    assert session.fileno() == -1


def test_a_session_may_be_refused_later(client: SocketClient) -> None:
    session = client.start()
    client.socket.shutdown(socket.SHUT_WR)
    session.send_fatal(ConnectionRefused("shutting down", sqlstate="57P01"))
    assert [m.sqlstate for m in client.receive_all() if isinstance(m, ErrorResponse)] == ["57P01"]
    assert session.fileno() == -1


@pytest.mark.parametrize("data", [b"", CancelRequest(1, b"2345").encode(), STARTUP.encode()[:9]])
def test_a_client_that_disconnects_or_cancels_gets_no_answer(
    client: SocketClient, data: bytes
) -> None:
    client.socket.sendall(data)
    client.socket.shutdown(socket.SHUT_WR)
    assert accept(client) is None
    assert client.socket.recv(1) == b""


@pytest.mark.parametrize(
    ("data", "sqlstate", "error"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "08P01", ProtocolError),
        (b"\0\0\0\x08\0\2\0\0", "0A000", ConnectionRefused),
        (b"\0\0\0\x09\0\3\0\0\0", "28000", ConnectionRefused),
    ],
)
def test_a_refused_client_gets_the_reason(
    client: SocketClient, data: bytes, sqlstate: str, error: type[Exception]
) -> None:
    client.socket.sendall(data)
    client.socket.shutdown(socket.SHUT_WR)
    with pytest.raises(error):
        accept(client)
    answer = client.socket.makefile("rb").read()
    report = ErrorResponse.decode(answer[5:])
    assert (report.severity, report.sqlstate) == ("FATAL", sqlstate)
    assert client.server_socket.fileno() == -1


def test_the_reason_is_not_lost_behind_unread_bytes() -> None:
    """Closing with unread bytes resets the connection; the error was sent before that."""
    client, sock = tcp_pair()
    with client:
        client.sendall(b"GET / HTTP/1.1\r\n" + 100_000 * b"x")
        client.shutdown(socket.SHUT_WR)
        with pytest.raises(ProtocolError):
            accept_connection(sock, CONFIG)
        assert b"08P01" in client.recv(1000)


def test_a_silent_client_times_out(client: SocketClient) -> None:
    config = ServerConfig(server_version="18.1", handshake_timeout_s=0.05)
    with pytest.raises(ConnectionRefused, match=r"not done within 0\.05 s") as caught:
        accept(client, config)
    assert caught.value.sqlstate == "57014"


def test_a_slow_client_times_out(client: SocketClient) -> None:
    """The limit is for the whole handshake: single bytes in time do not extend it."""
    config = ServerConfig(server_version="18.1", handshake_timeout_s=0.3)
    stopped = threading.Event()

    def dribble() -> None:
        data = StartupMessage({"user": "u" * 5000}).encode()
        for i in range(len(data)):
            if stopped.wait(0.02):
                return
            client.socket.sendall(data[i : i + 1])

    thread = threading.Thread(target=dribble)
    thread.start()
    begin = time.monotonic()
    try:
        with pytest.raises(ConnectionRefused, match="not done within"):
            accept(client, config)
        assert time.monotonic() - begin < 3, "the whole packet takes 100 s"
    finally:
        stopped.set()
        thread.join()


def test_tls_may_not_be_required_without_a_certificate() -> None:
    with pytest.raises(ValueError, match="require_tls needs TLS files"):
        ServerConfig(server_version="18.1", require_tls=True)


def test_accepted_sockets_answer_at_once_and_detect_dead_peers() -> None:
    client, sock = tcp_pair()
    with client, sock:
        prepare_socket(sock)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


def test_a_session_ends_from_another_thread(client: SocketClient) -> None:
    session = client.start()
    ended = threading.Event()

    def read() -> None:
        assert session.read_command() is None
        ended.set()

    thread = threading.Thread(target=read)
    thread.start()
    session.shutdown()
    assert ended.wait(5)
    thread.join()
    session.close()
    session.shutdown()  # again, after the end: harmless


def test_a_reset_counts_as_a_disconnect() -> None:
    client, sock = tcp_pair()
    client.sendall(STARTUP.encode() + Query("START_WAL_PUSH").encode())
    session = accept_connection(sock, CONFIG)
    assert session is not None
    assert session.read_command() == "START_WAL_PUSH"
    stream = session.start_copy_both()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    with pytest.raises(CopyEnded) as caught:
        stream.drain()
    assert caught.value.how is CopyEnd.DISCONNECT
    session.close()
