"""Our server against real libpq: authentication, TLS, options, commands, copies in both directions.

The server runs in a thread and libpq in the test's own. psycopg's blocking calls hold the
interpreter's lock while libpq waits, which would stop the server, so only its non-blocking calls
are used here.
"""

from __future__ import annotations

import os
import queue
import select
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme
from psycopg import pq
from psycopg.pq.abc import PGresult

from pgwire.auth import make_verifier
from pgwire.blocking import ServerConfig, Session, accept_connection
from pgwire.commands import IdentifySystem, OptionCommand, Show, TimelineHistory, parse_command
from pgwire.errors import CommandSyntaxError, CopyEnd, CopyEnded, WireError
from pgwire.messages import INT8_OID, TEXT_OID, Column
from pgwire.tls import TlsFiles, server_tls_context

TIMEOUT_S = 10.0
WAL_MESSAGE_BYTES = 128 * 1024  # MAX_SEND_SIZE of a walsender
PASSWORD = "pässword"
VERIFIERS = {"walproposer": make_verifier(PASSWORD, bytes(range(16)))}
NEXT_TIMELINE = (Column("next_tli", INT8_OID), Column("next_tli_startpos"))


class Server:
    """A thread for each client. `outcomes`: a Session, None or an error for each of them."""

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.outcomes: queue.Queue[Session | WireError | None] = queue.Queue()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._listen)]
        self._threads[0].start()

    def outcome(self) -> Session | WireError | None:
        return self.outcomes.get(timeout=TIMEOUT_S)

    def session(self) -> Session:
        outcome = self.outcome()
        assert isinstance(outcome, Session), outcome
        return outcome

    def refusal(self) -> str:
        outcome = self.outcome()
        assert isinstance(outcome, WireError), outcome
        return str(outcome)

    def stop(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(TIMEOUT_S)
            assert not thread.is_alive()
        self._listener.close()

    def _listen(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return  # stop() was called
            thread = threading.Thread(target=self._accept, args=(sock,))
            self._threads.append(thread)
            thread.start()

    def _accept(self, sock: socket.socket) -> None:
        try:
            session = accept_connection(sock, self.config)
        except WireError as error:
            self.outcomes.put(error)
            return
        self.outcomes.put(session)
        if session is not None:
            with session:
                serve(session)


def serve(session: Session) -> None:
    while (text := session.read_command()) is not None:
        try:
            command = parse_command(text)
        except CommandSyntaxError as error:
            session.send_error(error.sqlstate, str(error), hint=error.hint, position=error.position)
            continue
        match command:
            case IdentifySystem():
                columns = (Column("systemid"), Column("timeline", INT8_OID), Column("dbname"))
                session.send_rows(columns, [("7123", 1, None)], "IDENTIFY_SYSTEM")
            case Show(name):
                session.send_rows((Column(name),), [(session.parameters.get(name),)], "SHOW")
            case TimelineHistory(timeline):
                session.send_error("58P01", f"timeline {timeline} does not exist", detail="d")
            case OptionCommand("START_WAL_PUSH", options):
                echo(session, options.get("end_after", "never").encode())
            case _:
                session.send_error("0A000", f"{command} is not supported")


def echo(session: Session, end_after: bytes) -> None:
    """Send back what comes, until the client ends the copy, or the payload `end_after` has come."""
    stream = session.start_copy_both()
    try:
        while True:
            for payload in map(bytes, stream.drain()):
                stream.send(b"echo ", payload)
                if payload == end_after:
                    stream.end_copy(columns=NEXT_TIMELINE, rows=[(2, "0/3000000")])
                    return
                if payload == b"fail":
                    session.send_error("XX001", "bad record")
                    return
    except CopyEnded as ended:
        if ended.how is CopyEnd.COPY_DONE:
            stream.end_copy()
        elif ended.how is CopyEnd.COPY_FAIL:
            session.send_error("57014", str(ended))


@pytest.fixture
def serve_with() -> Iterator[Callable[..., Server]]:
    servers = []

    def start(**settings: object) -> Server:
        server = Server(ServerConfig(server_version="18.1", **settings))  # type: ignore[arg-type]
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.stop()


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def tls(authority: trustme.CA, tmp_path: Path) -> dict[str, object]:
    """The settings of a server with a certificate; its authority is in tmp_path/root.crt."""
    pem = tmp_path / "server.pem"
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(pem))
    authority.cert_pem.write_to_path(str(tmp_path / "root.crt"))
    return {"tls": server_tls_context(TlsFiles(pem, pem))}


class Libpq:
    """A libpq connection that never blocks in C."""

    def __init__(self, server: Server, conninfo: str = "") -> None:
        defaults = (
            f"host=localhost hostaddr=127.0.0.1 port={server.port} user=walproposer "
            "replication=true sslmode=disable gssencmode=disable connect_timeout=10 "
        )
        self.pgconn = pq.PGconn.connect_start((defaults + conninfo).encode())
        finish_polling(self.pgconn.connect_poll, lambda: self.pgconn.socket)
        if self.pgconn.status == pq.ConnStatus.OK:
            self.pgconn.nonblocking = 1

    @property
    def error(self) -> str:
        return self.pgconn.get_error_message() if self.pgconn.status != pq.ConnStatus.OK else ""

    def query(self, command: str) -> list[PGresult]:
        self.pgconn.send_query(command.encode())
        self.flush()
        return self.results()

    def results(self) -> list[PGresult]:
        """Up to the end of the command, or the start of a copy."""
        results: list[PGresult] = []
        while (result := self._result()) is not None:
            results.append(result)
            if result.status == pq.ExecStatus.COPY_BOTH:
                break
        return results

    def put(self, payload: bytes) -> None:
        self.pgconn.put_copy_data(payload)
        self.flush()

    def get(self) -> bytes | None:
        """The next CopyData; None at the end of the copy."""
        while True:
            size, data = self.pgconn.get_copy_data(1)
            if size != 0:
                return None if size == -1 else bytes(data)
            self._wait(select.POLLIN)
            self.pgconn.consume_input()

    def flush(self) -> None:
        while self.pgconn.flush():
            self._wait(select.POLLIN | select.POLLOUT)
            self.pgconn.consume_input()

    def finish(self) -> None:
        self.pgconn.finish()

    def __enter__(self) -> Libpq:
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def _result(self) -> PGresult | None:
        while self.pgconn.is_busy():
            self._wait(select.POLLIN)
            self.pgconn.consume_input()
        return self.pgconn.get_result()

    def _wait(self, events: int) -> None:
        wait(self.pgconn.socket, events)


def wait(descriptor: int, events: int) -> None:
    poll = select.poll()
    poll.register(descriptor, events)
    assert poll.poll(TIMEOUT_S * 1000), "the server says nothing"


def finish_polling(step: Callable[[], int], descriptor: Callable[[], int]) -> None:
    """Run libpq's polling until it has succeeded or failed."""
    status: int = pq.PollingStatus.WRITING
    while status not in (pq.PollingStatus.OK, pq.PollingStatus.FAILED):
        reading = status == pq.PollingStatus.READING
        wait(descriptor(), select.POLLIN if reading else select.POLLOUT)
        status = step()


def start_copy(client: Libpq, command: str = "START_WAL_PUSH") -> None:
    (result,) = client.query(command)
    assert result.status == pq.ExecStatus.COPY_BOTH, result.error_message


def assert_echoes(client: Libpq) -> None:
    """Small and large, one by one and many at once."""
    start_copy(client)
    for size in (1, 8192, WAL_MESSAGE_BYTES, 1024 * 1024):
        payload = os.urandom(size)
        client.put(payload)
        assert client.get() == b"echo " + payload
    batch = [os.urandom(100 + i) for i in range(500)]
    for payload in batch:
        client.put(payload)
    assert [client.get() for _ in batch] == [b"echo " + payload for payload in batch]
    client.pgconn.put_copy_end()
    client.flush()
    assert client.get() is None
    assert [(r.status, r.command_status) for r in client.results()] == [
        (pq.ExecStatus.COMMAND_OK, b"START_STREAMING"),
        (pq.ExecStatus.COMMAND_OK, b"START_REPLICATION"),
    ]


def test_commands_and_their_results(serve_with: Callable[..., Server]) -> None:
    with Libpq(serve_with()) as client:
        assert client.error == ""
        assert client.pgconn.server_version == 180001
        assert client.pgconn.parameter_status(b"integer_datetimes") == b"on"
        (result,) = client.query("IDENTIFY_SYSTEM")
        assert result.status == pq.ExecStatus.TUPLES_OK
        assert [result.get_value(0, i) for i in range(3)] == [b"7123", b"1", None]
        assert [result.fname(i) for i in range(3)] == [b"systemid", b"timeline", b"dbname"]
        assert [result.ftype(i) for i in range(3)] == [TEXT_OID, INT8_OID, TEXT_OID]
        (empty,) = client.query("")
        assert empty.status == pq.ExecStatus.EMPTY_QUERY
        (failed,) = client.query("SHOW  ;")
        assert failed.error_field(pq.DiagnosticField.SQLSTATE) == b"42601"
        assert failed.error_field(pq.DiagnosticField.STATEMENT_POSITION) == b"7"
        (missing,) = client.query("TIMELINE_HISTORY 9")
        assert missing.error_field(pq.DiagnosticField.SQLSTATE) == b"58P01"
        assert missing.error_field(pq.DiagnosticField.MESSAGE_DETAIL) == b"d"
        assert client.query("IDENTIFY_SYSTEM")[0].status == pq.ExecStatus.TUPLES_OK


def test_startup_parameters_and_options(serve_with: Callable[..., Server]) -> None:
    server = serve_with()
    # A connection string takes one level of backslashes off, the server the second one.
    options = r"-c tenant_id=a1 -cdatestyle=iso --proposer-http=a\\ b\\\\c"
    with Libpq(server, f"application_name=standby1 options='{options}'") as client:
        assert client.error == ""
        parameters = server.session().parameters
        assert parameters["user"] == "walproposer"
        assert parameters["database"] == "walproposer" or "database" not in parameters
        assert (parameters["replication"], parameters["application_name"]) == ("true", "standby1")
        assert (parameters["tenant_id"], parameters["datestyle"]) == ("a1", "iso")
        assert parameters["proposer_http"] == "a b\\c"
        assert client.pgconn.parameter_status(b"application_name") == b"standby1"


def test_bad_options_are_refused_with_a_hint(serve_with: Callable[..., Server]) -> None:
    with Libpq(serve_with(), "options='-x 1'") as client:
        assert "FATAL:  invalid command-line argument for server process: -x" in client.error
        assert "-c name=value" in client.error


def test_a_copy_in_both_directions(serve_with: Callable[..., Server]) -> None:
    with Libpq(serve_with()) as client:
        assert_echoes(client)
        assert client.query("IDENTIFY_SYSTEM")[0].status == pq.ExecStatus.TUPLES_OK
        assert_echoes(client)


def test_the_end_of_a_timeline(serve_with: Callable[..., Server]) -> None:
    """As libpqwalreceiver sees it: the end of the copy, a row, two tags."""
    with Libpq(serve_with()) as client:
        start_copy(client, "START_WAL_PUSH (end_after 'that''s all')")
        client.put(b"that's all")
        assert client.get() == b"echo that's all"
        assert client.get() is None
        client.pgconn.put_copy_end()
        client.flush()
        row, *tags = client.results()
        assert (row.get_value(0, 0), row.get_value(0, 1)) == (b"2", b"0/3000000")
        assert row.command_status == b"START_STREAMING"
        assert [tag.command_status for tag in tags] == [b"START_REPLICATION"]
        assert client.query("IDENTIFY_SYSTEM")[0].status == pq.ExecStatus.TUPLES_OK


def test_an_error_in_a_copy_leaves_the_session(serve_with: Callable[..., Server]) -> None:
    with Libpq(serve_with()) as client:
        start_copy(client)
        client.put(b"fail")
        assert client.get() == b"echo fail"
        client.put(b"under way")
        assert client.get() is None
        (failed,) = client.results()
        assert failed.error_field(pq.DiagnosticField.SQLSTATE) == b"XX001"
        assert client.query("IDENTIFY_SYSTEM")[0].status == pq.ExecStatus.TUPLES_OK


def test_a_client_gives_up_a_copy(serve_with: Callable[..., Server]) -> None:
    with Libpq(serve_with()) as client:
        start_copy(client)
        client.pgconn.put_copy_end(b"disk full")
        client.flush()
        assert client.get() is None
        (failed,) = client.results()
        assert b"copy ended by CopyFail: disk full" in failed.error_message
        assert client.query("IDENTIFY_SYSTEM")[0].status == pq.ExecStatus.TUPLES_OK


def test_scram(serve_with: Callable[..., Server]) -> None:
    with Libpq(serve_with(verifiers=VERIFIERS), f"password={PASSWORD}") as client:
        assert client.error == ""
        assert client.pgconn.used_password
        assert_echoes(client)


@pytest.mark.parametrize("user", ["walproposer", "nobody"])
def test_a_wrong_password(serve_with: Callable[..., Server], user: str) -> None:
    server = serve_with(verifiers=VERIFIERS)
    with Libpq(server, f"user={user} password=wrong") as client:
        assert f'FATAL:  password authentication failed for user "{user}"' in client.error
    assert server.refusal() == f'password authentication failed for user "{user}"'


def test_no_password(serve_with: Callable[..., Server], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSFILE", os.devnull)
    server = serve_with(verifiers=VERIFIERS)
    with Libpq(server) as client:
        assert "no password supplied" in client.error
    assert server.outcome() is None


def test_tls(serve_with: Callable[..., Server], tls: dict[str, object]) -> None:
    server = serve_with(**tls)
    with Libpq(server, "sslmode=require sslrootcert=''") as client:
        assert client.error == ""
        assert client.pgconn.ssl_in_use
        assert server.session().encrypted
        assert_echoes(client)


@pytest.mark.parametrize("negotiation", ["postgres", "direct"])
def test_tls_that_is_verified_and_scram_within(
    serve_with: Callable[..., Server],
    tls: dict[str, object],
    tmp_path: Path,
    negotiation: str,
) -> None:
    server = serve_with(**tls, verifiers=VERIFIERS, require_tls=True)
    conninfo = (
        f"sslmode=verify-full sslrootcert={tmp_path / 'root.crt'} "
        f"sslnegotiation={negotiation} password={PASSWORD}"
    )
    with Libpq(server, conninfo) as client:
        assert client.error == ""
        assert server.session().encrypted
        assert_echoes(client)


def test_a_certificate_of_another_authority(
    serve_with: Callable[..., Server], tls: dict[str, object], tmp_path: Path
) -> None:
    other = tmp_path / "other.crt"
    trustme.CA().cert_pem.write_to_path(str(other))
    server = serve_with(**tls)
    with Libpq(server, f"sslmode=verify-full sslrootcert={other}") as client:
        assert "certificate verify failed" in client.error
    assert server.refusal() == "could not accept TLS connection: TLSV1_ALERT_UNKNOWN_CA"


def test_a_plain_connection_where_tls_is_demanded(
    serve_with: Callable[..., Server], tls: dict[str, object]
) -> None:
    server = serve_with(**tls, require_tls=True)
    with Libpq(server, "sslmode=disable") as client:
        assert 'connection of user "walproposer" is not encrypted' in client.error
        assert "HINT:  connect with sslmode=require" in client.error
    assert "requires TLS" in server.refusal()


def test_a_server_without_tls(serve_with: Callable[..., Server]) -> None:
    server = serve_with()
    with Libpq(server, "sslmode=require sslrootcert=''") as client:
        assert "server does not support SSL, but SSL was required" in client.error
    assert server.outcome() is None
    with Libpq(server, "sslmode=prefer sslrootcert=''") as client:
        assert client.error == ""
        assert not client.pgconn.ssl_in_use


def test_channel_binding_is_not_offered(
    serve_with: Callable[..., Server], tls: dict[str, object]
) -> None:
    server = serve_with(**tls, verifiers=VERIFIERS)
    conninfo = f"sslmode=require sslrootcert='' password={PASSWORD} channel_binding=require"
    with Libpq(server, conninfo) as client:
        assert "channel binding is required" in client.error
    assert server.outcome() is None


@pytest.mark.skipif(pq.version() < 180000, reason="libpq before 18 knows protocol 3.0 alone")
def test_newer_protocols(serve_with: Callable[..., Server]) -> None:
    server = serve_with()
    with Libpq(server, "max_protocol_version=latest") as client:
        assert client.error == ""
        assert_echoes(client)
    assert server.outcome() is not None
    with Libpq(server, "min_protocol_version=3.2 max_protocol_version=3.2") as client:
        assert "protocol" in client.error
        assert "3.0" in client.error


@pytest.mark.skipif(pq.version() < 170000, reason="libpq before 17 cancels by blocking alone")
def test_a_cancel_request_is_closed_silently(serve_with: Callable[..., Server]) -> None:
    server = serve_with()
    with Libpq(server) as client:
        session = server.session()
        cancel = client.pgconn.cancel_conn()
        cancel.start()
        finish_polling(cancel.poll, lambda: cancel.socket)
        assert cancel.get_error_message() == "no error details available"
        assert server.outcome() is None
        assert client.query("IDENTIFY_SYSTEM")[0].status == pq.ExecStatus.TUPLES_OK
        assert session.fileno() >= 0
