"""The client of replication connections, against servers that a test controls.

They run in threads of the test's process: a client that kept the interpreter lock while it waits
would never get an answer.
"""

from __future__ import annotations

import fcntl
import os
import socket
import termios
import threading
from array import array
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
import trustme
from psycopg import pq
from wire_server import LocalListener

from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.pg_fixtures.process_table import rss_bytes
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pgclient.connection import connect, connect_safekeeper
from quorum_wal.pgclient.errors import ConnectionLost, NotConnected, ServerError, Silent
from quorum_wal.pgclient.questions import (
    SystemPosition,
    ask,
    identify_system,
    read_server_facts,
    read_timeline_history,
    show,
)
from quorum_wal.pgclient.stream import ReplicationStream, start_copy
from quorum_wal.pgwal.history import TimelineHistory, TimelineSwitch
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.pgwire.blocking import ServerConfig, Session, accept_connection
from quorum_wal.pgwire.errors import CopyEnded
from quorum_wal.pgwire.messages import Column
from quorum_wal.pgwire.replication import Keepalive, StandbyStatus, XLogData, parse_standby_message
from quorum_wal.pgwire.tls import ServerTls, TlsFiles

SILENCE_SECONDS = 10.0
#: More than the buffers of libpq and TLS together.
WAL_BYTES = 300_000
MESSAGE_HEADER_BYTES = 5

#: The reaction of a server to a command.
Script = Callable[[Session], None]


class ScriptedServer(LocalListener):
    """Commands that are not in `scripts` are refused."""

    def __init__(self, scripts: dict[str, Script], tls: ServerTls | None = None) -> None:
        super().__init__()
        self._scripts = scripts
        self._config = ServerConfig(server_version="16.4 (of a distribution)", tls=tls)

    def serve_client(self, sock: socket.socket) -> None:
        session = accept_connection(sock, self._config)
        if session is None:
            return
        try:
            with session:
                while (command := session.read_command()) is not None:
                    self._scripts.get(command, refuse)(session)
        except (CopyEnded, Leaves):
            return


def refuse(session: Session) -> None:
    session.send_error("42601", "syntax error", hint="Say something else.")


class Leaves(Exception):
    """The server disconnects."""


def leave(session: Session) -> None:
    raise Leaves


def rows(names: str, *values: tuple[str | None, ...]) -> Script:
    columns = tuple(Column(name) for name in names.split())
    return lambda session: session.send_rows(columns, values, "SELECT")


Connect = Callable[..., pq.abc.PGconn]


@pytest.fixture
def connected() -> Iterator[Connect]:
    """A connection to a server with these scripts."""
    opened: list[ScriptedServer | psycopg.Connection] = []

    def make(scripts: dict[str, Script], conninfo: str = "", **options: ServerTls) -> pq.abc.PGconn:
        server = ScriptedServer(scripts, **options)
        opened.append(server)
        server.start()
        keywords = f"host=127.0.0.1 port={server.port} user=u {conninfo or 'sslmode=disable'}"
        connection = connect_safekeeper(keywords)
        opened.append(connection)
        return connection.pgconn

    yield make
    for each in reversed(opened):
        if isinstance(each, ScriptedServer):
            each.stop()
        else:
            each.close()


# ---- commands

POSITION = "systemid timeline xlogpos dbname"


def test_questions_and_answers(connected: Connect) -> None:
    pgconn = connected(
        {
            "IDENTIFY_SYSTEM": rows(POSITION, ("7123", "2", "0/5000000", None)),
            "TIMELINE_HISTORY 2": rows("filename content", ("x", "1\t0/3000110\twhy\n")),
            "SHOW wal_segment_size": rows("wal_segment_size", ("64MB",)),
            "SHOW nothing": rows("nothing", (None,)),
            "LIST": rows("a b", ("1", None), ("é", "2")),
        }
    )
    assert identify_system(pgconn) == SystemPosition(7123, 2, 0x5000000)
    switch = TimelineSwitch(1, Lsn(0x3000110), "why")
    assert read_timeline_history(pgconn, 2) == TimelineHistory(2, (switch,))
    assert read_timeline_history(pgconn, 1) == TimelineHistory(1)  # is not requested
    assert read_server_facts(pgconn, 7123) == ServerFacts(7123, 160004, 64 << 20)
    assert show(pgconn, "nothing") == ""
    assert ask(pgconn, "LIST") == [{"a": "1", "b": ""}, {"a": "é", "b": "2"}]


def test_a_refusal_has_the_text_of_the_server(connected: Connect) -> None:
    pgconn = connected({"SHOW x": rows("x", ("1",))})
    with pytest.raises(ServerError, match=r"^syntax error$") as refusal:
        ask(pgconn, "SELECT 2")
    assert (refusal.value.sqlstate, refusal.value.hint) == ("42601", "Say something else.")
    assert show(pgconn, "x") == "1"  # the connection is still usable


@pytest.mark.parametrize(
    "script",
    [
        rows(POSITION),
        rows(POSITION, ("1", "1", "0/1", None), ("1", "1", "0/1", None)),
        rows("systemid", ("1",)),
        rows(POSITION, ("one", "1", "0/1", None)),
        rows(POSITION, ("1", None, "0/1", None)),
        rows(POSITION, ("1", "1", "nowhere", None)),
        lambda session: session.send_complete("IDENTIFY_SYSTEM"),
    ],
)
def test_invalid_positions(connected: Connect, script: Script) -> None:
    with pytest.raises(ConnectionLost, match=r"^invalid answer to IDENTIFY_SYSTEM"):
        identify_system(connected({"IDENTIFY_SYSTEM": script}))


def test_invalid_histories_and_sizes(connected: Connect) -> None:
    pgconn = connected(
        {
            "TIMELINE_HISTORY 2": rows("filename content", ("x", "once upon a time")),
            "SHOW wal_segment_size": rows("wal_segment_size", ("99999999999999MB",)),
            "IDENTIFY_SYSTEM": lambda session: session.start_copy_both().end_copy(),
        }
    )
    with pytest.raises(ConnectionLost, match=r"^invalid answer to TIMELINE_HISTORY: syntax error"):
        read_timeline_history(pgconn, 2)
    with pytest.raises(ConnectionLost, match=r"^invalid answer to TIMELINE_HISTORY: timeline 0"):
        read_timeline_history(pgconn, 0)
    with pytest.raises(ConnectionLost, match=r"^invalid wal_segment_size '99999999999999MB'"):
        read_server_facts(pgconn, 1)
    with pytest.raises(ConnectionLost, match=r"^unexpected answer to IDENTIFY_SYSTEM: COPY_BOTH"):
        identify_system(pgconn)


def test_a_server_that_leaves_is_lost(connected: Connect) -> None:
    pgconn = connected({"SHOW x": leave})
    with pytest.raises(ConnectionLost, match=r"^server closed the connection unexpectedly$"):
        show(pgconn, "x")
    with pytest.raises(ConnectionLost):
        show(pgconn, "x")


# ---- streams

START = "START_REPLICATION PHYSICAL 0/1000 TIMELINE 1"
WAL = bytes(range(256)) * (WAL_BYTES // 256)


def sends(*messages: XLogData | Keepalive, then: Script | None = None) -> dict[str, Script]:
    """Sends pieces in CopyBoth, then ends the stream in good order, or does `then`."""

    def script(session: Session) -> None:
        stream = session.start_copy_both()
        for message in messages:
            stream.send(message.encode())
        if then is None:
            stream.end_copy(columns=(Column("next_tli"),), rows=[("2",)])
        else:
            then(session)

    return {START: script}


def wal_at(begin: int, end: int) -> XLogData:
    return XLogData(0x1000 + begin, 0x1000 + len(WAL), 0, WAL[begin:end])


def started(pgconn: pq.abc.PGconn, silence_seconds: float = SILENCE_SECONDS) -> ReplicationStream:
    assert start_copy(pgconn, START)
    return ReplicationStream(pgconn, 0x1000, silence_seconds)


KEEPALIVE = Keepalive(0x2000, 0, False)
SPLIT = (wal_at(0, 10), KEEPALIVE, wal_at(10, 200_000), wal_at(200_000, len(WAL)))


def test_a_stream_has_no_gap_and_an_end(connected: Connect) -> None:
    stream = started(connected(sends(*SPLIT)))
    assert stream.read(0x1000 + 5000) == WAL[:5000]
    assert stream.next_lsn == 0x1000 + 200_000
    assert b"".join(stream.pieces()) == WAL[200_000:]


def test_the_end_of_a_stream_arrives_with_the_last_piece(connected: Connect) -> None:
    is_started, messages = threading.Event(), (wal_at(0, 10), wal_at(10, 1000))

    def script(session: Session) -> None:
        stream = session.start_copy_both()
        is_started.wait(SILENCE_SECONDS)
        for message in messages:
            stream.send(message.encode())
        stream.end_copy()

    pgconn = connected({START: script})
    stream = started(pgconn)
    is_started.set()
    sent_bytes = sum(MESSAGE_HEADER_BYTES + len(message.encode()) for message in messages)
    with_the_end = sent_bytes + MESSAGE_HEADER_BYTES
    wait_until(lambda: arrived_bytes(pgconn) >= with_the_end, SILENCE_SECONDS, "all of it")
    batches = list(stream.batches(len(WAL)))
    assert b"".join(piece for batch in batches for piece in batch) == WAL[:1000]


def arrived_bytes(pgconn: pq.abc.PGconn) -> int:
    """The number of bytes in the socket. Source: tcp(7), FIONREAD."""
    count = array("i", [0])
    fcntl.ioctl(pgconn.socket, termios.FIONREAD, count)
    return count[0]


def test_a_stream_under_tls(connected: Connect, tmp_path: Path) -> None:
    """Answers and pieces of many TLS records."""
    pem = tmp_path / "server.pem"
    pem.touch(mode=0o600)
    certificate = trustme.CA().issue_cert("localhost")
    certificate.private_key_and_cert_chain_pem.write_to_path(str(pem))
    tls = ServerTls.load(TlsFiles(pem, pem))
    pgconn = connected(
        {**sends(*SPLIT), "LIST": rows("a", ("x" * 100_000,))}, "sslmode=require", tls=tls
    )
    assert ask(pgconn, "LIST") == [{"a": "x" * 100_000}]
    assert started(pgconn).read(0x1000 + len(WAL)) == WAL


def test_a_reader_without_new_wal_returns_nothing(connected: Connect) -> None:
    pieces = started(connected(sends(KEEPALIVE, wal_at(0, 3)))).pieces()
    assert list(map(bytes, pieces)) == [b"", WAL[:3]]


def test_a_reader_slower_than_its_server_keeps_its_memory(connected: Connect) -> None:
    """libpq keeps the bytes that it has read from the socket, and doubles that buffer for more."""
    data, count = b"x" * 200, 300_000
    frames = bytearray()
    for number in range(count):
        payload = XLogData(0x1000 + number * len(data), 0, 0, data).encode()
        frames += b"d" + (4 + len(payload)).to_bytes(4, "big") + payload

    def script(session: Session) -> None:
        session.start_copy_both().send_framed(frames)

    stream = started(connected({START: script}))
    before = rss_bytes(os.getpid())
    for batch in stream.batches(64 << 10):
        assert sum(map(len, batch)) <= 65 << 10
        if stream.next_lsn == 0x1000 + count * len(data):
            break
    assert rss_bytes(os.getpid()) - before < 8 << 20


def _fails(session: Session) -> None:
    session.send_error("58P01", "requested WAL segment has already been removed")


@pytest.mark.parametrize(
    ("scripts", "kind", "words"),
    [
        (sends(wal_at(8, 16)), ConnectionLost, "^expected WAL at 0/1000, got 0/1008$"),
        (sends(wal_at(0, 16)), ConnectionLost, "^the server ended the stream$"),
        (sends(wal_at(0, 16), then=leave), ConnectionLost, "^server closed the connection"),
        (sends(wal_at(0, 16), then=_fails), ServerError, "^requested WAL segment has already"),
    ],
)
def test_streams_that_are_interrupted(
    connected: Connect, scripts: dict[str, Script], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words) as error:
        started(connected(scripts)).read(0x1000 + len(WAL))
    assert getattr(error.value, "sqlstate", "58P01") == "58P01"


def test_invalid_messages_of_a_walsender(connected: Connect) -> None:
    def script(session: Session) -> None:
        session.start_copy_both().send(b"?")

    with pytest.raises(ConnectionLost, match="unexpected replication message type"):
        started(connected({START: script})).read(0x1001)


def test_silence(connected: Connect) -> None:
    """The server waits for a command that does not come."""
    pgconn = connected(sends(wal_at(0, 16), then=lambda session: None))
    with pytest.raises(Silent, match=r"^no message was received for 0\.2 s$"):
        started(pgconn, 0.2).read(0x1000 + len(WAL))


def test_at_the_end_of_a_timeline_there_is_no_stream(connected: Connect) -> None:
    pgconn = connected({START: rows("next_tli", ("2",)), "SHOW x": rows("x", ("1",))})
    assert not start_copy(pgconn, START)
    assert show(pgconn, "x") == "1"


def test_when_a_stream_has_ended_the_server_has_every_report(connected: Connect) -> None:
    heard = []

    def script(session: Session) -> None:
        stream = session.start_copy_both()
        heard.extend(parse_standby_message(bytes(payload)) for payload in stream.drain())
        stream.end_copy()

    pgconn = connected({START: script, "SHOW x": rows("x", ("1",))})
    stream, status = started(pgconn), StandbyStatus(2, 1, 0, 0)
    stream.send_status(status)
    stream.end()
    assert heard == [status]
    assert show(pgconn, "x") == "1"


# ---- connections


def test_each_address_of_a_name_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """No server listens at the first one."""
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{n}", 0)) for n in (2, 1)]
    server = ScriptedServer({"SHOW x": rows("x", ("1",))})
    server.start()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    conninfo = f"host=two.example port={server.port} user=u sslmode=disable"
    with closing(connect(conninfo, replication="true")) as connection:
        assert show(connection.pgconn, "x") == "1"
    server.stop()


@pytest.mark.parametrize(
    "conninfo",
    [
        "host=127.0.0.1 port=1",
        "host=no-such-host.invalid",
        f"host={'a' * 64}..b",
        "port=nonsense",
        "=",
    ],
)
def test_a_server_that_does_not_answer(conninfo: str) -> None:
    for opened in (connect, connect_safekeeper):
        with pytest.raises(NotConnected) as error:
            opened(conninfo)
        assert error.value.hint == ""
        assert "\n" not in str(error.value)
