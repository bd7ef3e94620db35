"""Our server in a thread, and libpq in the test's own thread.

psycopg's blocking calls hold the interpreter lock while libpq waits, which would stop the server,
so only its non-blocking calls are used here.
"""

from __future__ import annotations

import os
import queue
import select
import socket
import threading
from collections.abc import Callable

from psycopg import pq
from psycopg.pq.abc import PGresult

from quorum_wal.pgwire.auth import make_verifier
from quorum_wal.pgwire.blocking import ServerConfig, Session, accept_connection
from quorum_wal.pgwire.commands import (
    IdentifySystem,
    OptionCommand,
    Show,
    TimelineHistory,
    parse_command,
)
from quorum_wal.pgwire.errors import CommandSyntaxError, CopyEnd, CopyEnded, WireError
from quorum_wal.pgwire.messages import INT8_OID, Column

TIMEOUT_S = 10.0
WAL_MESSAGE_BYTES = 128 * 1024  # MAX_SEND_SIZE of a walsender
PASSWORD = "pässword"
VERIFIERS = {"walproposer": make_verifier(PASSWORD, bytes(range(16)))}
NEXT_TIMELINE = (Column("next_tli", INT8_OID), Column("next_tli_startpos"))


class LocalListener:
    """A port on 127.0.0.1, with a thread for each client; a subclass implements `serve_client`."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._listen)]

    def start(self) -> None:
        self._threads[0].start()

    def stop(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(TIMEOUT_S)
            assert not thread.is_alive()
        self._listener.close()

    def serve_client(self, sock: socket.socket) -> None:
        raise NotImplementedError

    def _listen(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return  # stop() was called
            thread = threading.Thread(target=self.serve_client, args=(sock,))
            self._threads.append(thread)
            thread.start()


class Server(LocalListener):
    """`outcomes`: a Session, None or an error for each client."""

    def __init__(self, config: ServerConfig) -> None:
        super().__init__()
        self.config = config
        self.outcomes: queue.Queue[Session | WireError | None] = queue.Queue()
        self.start()

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

    def serve_client(self, sock: socket.socket) -> None:
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
    """Send back all data, until the client ends the copy, or the payload `end_after` has come."""
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
        """All results up to the end of the command, or the start of a copy."""
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
    """Small and large messages, one by one and many at once."""
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
