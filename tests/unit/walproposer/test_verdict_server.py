"""The coordinator's port on real sockets: psycopg asks, cancels, vanishes; and clients that are not
psycopg at all."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from random import Random
from threading import Event, active_count
from typing import Any

import psycopg
import pytest
from psycopg import generators, pq
from verdict_port import DEADLINE_SECONDS, TERM, OneNumber, Port, running

from access.access import AccessConfig
from access.admission import ConnectionLimits
from pg_fixtures.waiting import wait_until
from pgwal.lsn import Lsn
from pgwire.connection import ClientConnection, State
from pgwire.messages import (
    BackendKeyData,
    CommandComplete,
    DataRow,
    ErrorResponse,
    Message,
    Query,
    ReadyForQuery,
)
from pgwire.startup import CancelRequest, StartupMessage
from walproposer.qsync.answers import Confirmation, LimboRow
from walproposer.qsync.limbo_events import Verdict
from walproposer.qsync.port_session import (
    BUFFERED_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    MESSAGES_A_TURN,
    PortSession,
)
from walproposer.qsync.verbs import WaitLsn
from walproposer.qsync.verdict_server import PORT_LIMITS, PortConfig, VerdictServer
from walproposer.stream.event_loop import EventLoop

LOOPBACK = PortConfig("127.0.0.1", 0)
GID = f"skq1.d.19c1f0a3e55.1-16b374d848-2f1.{'0' * 32}"
LONG_MS = 60_000
WAITERS = 32
IDLE_CLIENTS = 200
QUIET_SECONDS = 0.3
SMALL_BYTES = 4096
READY = ReadyForQuery().encode()


@pytest.fixture
def port() -> Iterator[Port]:
    with running(LOOPBACK) as port:
        yield port


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(WAITERS) as threads:
        yield threads


class RawClient:
    """Sends what it likes."""

    def __init__(self, port: Port, buffer_bytes: int = 0) -> None:
        self.socket = socket.socket()
        if buffer_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        self.socket.settimeout(DEADLINE_SECONDS)
        self.socket.connect(port.address)
        self.connection = ClientConnection()
        self._tail = b""

    def start(self) -> BackendKeyData:
        self.send(StartupMessage({"user": "app"}))
        greeting = self.receive_until(ReadyForQuery)
        return next(message for message in greeting if isinstance(message, BackendKeyData))

    def send(self, *messages: Message) -> None:
        self.socket.sendall(self.connection.send(*messages))

    def send_ahead(self, *messages: Message) -> None:
        """Whether it is this client's turn or not."""
        self.socket.sendall(b"".join(message.encode() for message in messages))

    def receive_until(self, kind: type[Message]) -> list[Message]:
        found: list[Message] = []
        while not found or not isinstance(found[-1], kind):
            message = self.connection.next()
            if isinstance(message, Message):
                found.append(message)
            elif data := self.socket.recv(1 << 16):
                self.connection.feed(data)
            else:
                raise AssertionError(f"closed after {found}")
        return found

    def reads_answers(self, count: int, bytes_max: int = 1 << 20) -> None:
        """So many are told from their ends, which is cheaper than to decode them."""
        while self._tail.count(READY) < count:
            data = self.socket.recv(bytes_max)
            assert data, "closed"
            self._tail += data
        for _ in range(count):
            self._tail = self._tail.partition(READY)[2]

    def reads_the_end(self) -> bytes:
        """All there is until the server closes."""
        found = b""
        try:
            while data := self.socket.recv(1 << 16):
                found += data
        except ConnectionResetError:
            pass  # it had not read all that was sent
        return found

    def close(self) -> None:
        self.socket.close()


def waiting(verdicts: OneNumber, count: int) -> None:
    wait_until(lambda: verdicts.waiting == count, DEADLINE_SECONDS, f"{count} waiters")


def is_quiet(port: Port) -> bool:
    """Whether the loop does not turn for a while."""
    turns = port.turns
    Event().wait(QUIET_SECONDS)
    return port.turns == turns


def row(result: psycopg.Cursor[tuple[Any, ...]]) -> tuple[Any, ...]:
    found = result.fetchone()
    assert found is not None
    return found


# ---- questions and answers


def test_every_verb_by_psycopg(port: Port) -> None:
    port.verdicts.rows = [limbo_row()]
    at = port.verdicts.rows[0].prepared_at
    with port.connect() as connection:
        admitted = connection.execute("ADMIT")
        assert [c.name for c in admitted.description or ()] == ["term", "limbo_len"]
        assert row(admitted) == (TERM, 0)
        assert row(connection.execute("WAIT_LSN 0/1 TIMEOUT 0")) == ("pending", "0/0", TERM)
        port.verdicts.advance(0x20)
        confirmed = ("confirmed", "0/20", TERM)
        assert row(connection.execute(f"WAIT_LSN 0/1 TIMEOUT 9 GID '{GID}'")) == confirmed
        assert row(connection.execute("BARRIER 0/20 TIMEOUT 9")) == confirmed
        assert row(connection.execute(f"OUTCOME '{GID}' LSN 0/1")) == ("unknown", None)
        assert row(connection.execute("QSYNC_STATUS")) == ({"term": TERM, "list": [1, "é"]},)
        listed = (GID, "d", "o", at, 1.5, "0/10", True, False, "detach", at, "prepared")
        assert connection.execute("QSYNC_LIST").fetchall() == [listed]
        resolved = connection.execute(f"RESOLVE '{GID}' ROLLBACK")
        assert row(resolved)[0] == "rolled_back"


def test_with_parameters_and_prepared_after_a_while(port: Port) -> None:
    port.verdicts.advance(0x20)
    with port.connect() as connection:
        for number in range(12):
            sent = ("0/10", 1000 + number, GID)
            found = connection.execute("WAIT_LSN %s TIMEOUT %s GID %s", sent)
            assert row(found)[0] == "confirmed"
            assert row(connection.execute("ADMIT")) == (TERM, 0)
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="is no LSN"):
            connection.execute("WAIT_LSN %s TIMEOUT %s GID %s", ("x", 1, GID))
        assert row(connection.execute("ADMIT")) == (TERM, 0)
    verbs = [question.verb for question in port.verdicts.asked]
    assert len({verb.timeout_ms for verb in verbs if isinstance(verb, WaitLsn)}) == 12


def test_by_libpq_alone(port: Port) -> None:
    """Its blocking calls hold the interpreter, which the port needs, too: psycopg waits for it."""
    with port.connect() as connection:
        pgconn = connection.pgconn

        def answer() -> Any:
            (result,) = connection.wait(generators.execute(pgconn))
            return result

        pgconn.send_query(b"ADMIT")
        simple = answer()
        assert simple.status == pq.ExecStatus.TUPLES_OK
        assert simple.get_value(0, 0) == str(TERM).encode()
        pgconn.send_query_params(b"WAIT_LSN $1 TIMEOUT $2", [b"0/1", b"0"])
        assert answer().get_value(0, 0) == b"pending"
        pgconn.send_query_params(b"ADMIT", None, result_format=pq.Format.BINARY)
        assert answer().error_field(pq.DiagnosticField.SQLSTATE) == b"0A000"
        pgconn.send_query(b"")
        assert answer().status == pq.ExecStatus.EMPTY_QUERY


def test_in_a_pipeline_answers_keep_the_order_of_questions(
    port: Port, threads: ThreadPoolExecutor
) -> None:
    def advance() -> None:
        waiting(port.verdicts, 1)
        port.verdicts.advance(0x10)

    with port.connect() as connection:
        threads.submit(advance)
        with connection.pipeline():
            wait = connection.execute(f"WAIT_LSN 0/10 TIMEOUT {LONG_MS}")
            admit = connection.execute("ADMIT")
        assert (row(wait)[0], row(admit)[0]) == ("confirmed", TERM)


def test_what_is_sent_ahead_waits_for_its_turn(port: Port) -> None:
    with closing(RawClient(port)) as client:
        client.start()
        wait = Query(f"WAIT_LSN 0/10 TIMEOUT {LONG_MS}")
        client.connection.send(wait)
        client.send_ahead(wait, *[Query("ADMIT")] * 100)
        waiting(port.verdicts, 1)
        port.verdicts.advance(0x10)
        answers = client.receive_until(ReadyForQuery)
        assert DataRow((b"confirmed", b"0/10", b"7")) in answers
        for _ in range(100):
            client.connection.send(Query("ADMIT"))
            assert CommandComplete("ADMIT 1") in client.receive_until(ReadyForQuery)


def test_many_messages_that_ask_nothing_are_all_answered(port: Port) -> None:
    with closing(RawClient(port)) as client:
        client.start()
        client.send_ahead(*[Query("")] * (10 * MESSAGES_A_TURN))
        client.reads_answers(10 * MESSAGES_A_TURN)


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("SELECT 1", psycopg.errors.SyntaxError),
        ("WAIT_LSN 0/1 TIMEOUT 1 GID 'x'", psycopg.errors.InvalidParameterValue),
        (f"OUTCOME '{GID}'", psycopg.errors.UndefinedObject),
    ],
)
def test_an_error_has_its_sqlstate_and_the_connection_lives(
    port: Port, command: str, error: type[psycopg.Error]
) -> None:
    with port.connect() as connection:
        for parameters in (None, ()):  # simple, extended
            with pytest.raises(error):
                connection.execute(command, parameters, prepare=parameters is not None)
            assert row(connection.execute("ADMIT")) == (TERM, 0)


def test_a_connection_that_begins_transactions_is_told(port: Port) -> None:
    with psycopg.connect(port.conninfo()) as connection:
        with pytest.raises(psycopg.errors.SyntaxError, match="connect with autocommit"):
            connection.execute("ADMIT")
        connection.autocommit = True
        assert row(connection.execute("ADMIT")) == (TERM, 0)


# ---- waits


def test_many_waiters_are_answered_by_one_advance(port: Port, threads: ThreadPoolExecutor) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(port.connect()) for _ in range(WAITERS)]
        found = [
            threads.submit(client.execute, f"WAIT_LSN 0/{0x10 + number:X} TIMEOUT {LONG_MS}")
            for number, client in enumerate(clients)
        ]
        waiting(port.verdicts, WAITERS)
        before = port.turns
        port.verdicts.advance(0x10 + WAITERS // 2 - 1)
        for future in found[: WAITERS // 2]:
            assert row(future.result(DEADLINE_SECONDS))[0] == "confirmed"
        assert port.turns - before <= 2
        assert not any(future.done() for future in found[WAITERS // 2 :])
        port.verdicts.advance(0x100)
        assert {row(future.result(DEADLINE_SECONDS))[1] for future in found[WAITERS // 2 :]} == {
            "0/100"
        }


def test_a_canceled_wait_ends_and_takes_no_later_answer(
    port: Port, threads: ThreadPoolExecutor
) -> None:
    with port.connect() as connection:
        for number, parameters in enumerate([None, ()], 1):
            found = threads.submit(
                connection.execute, f"WAIT_LSN 0/10 TIMEOUT {LONG_MS}", parameters
            )
            waiting(port.verdicts, 1)
            question = port.verdicts.asked[-1]
            connection.cancel_safe()
            with pytest.raises(psycopg.errors.QueryCanceled, match="due to user request"):
                found.result(DEADLINE_SECONDS)
            assert len(port.verdicts.taken_back) == number
            question.refuse("XX000", "too late")
            assert row(connection.execute("ADMIT")) == (TERM, 0)
        found = threads.submit(connection.execute, f"WAIT_LSN 0/10 TIMEOUT {LONG_MS}")
        waiting(port.verdicts, 1)
        question.answer(Confirmation(Verdict.CONFIRMED, Lsn(0x10), TERM))  # the one of before
        port.verdicts.asked[-1].answer(Confirmation(Verdict.PENDING, Lsn(0), TERM))
        assert row(found.result(DEADLINE_SECONDS))[0] == "pending"
        connection.cancel_safe()  # nothing is asked
        assert row(connection.execute("WAIT_LSN 0/1 TIMEOUT 0"))[0] == "pending"
        assert port.verdicts.left == []


def test_a_cancel_request_needs_the_key(port: Port) -> None:
    with closing(RawClient(port)) as client:
        key = client.start()
        client.send(Query(f"WAIT_LSN 0/10 TIMEOUT {LONG_MS}"))
        waiting(port.verdicts, 1)
        for process_id, secret in ((key.process_id, b"none"), (4711, key.secret_key)):
            with closing(RawClient(port)) as stranger:
                stranger.send(CancelRequest(process_id, secret))
                assert stranger.reads_the_end() == b""
        assert port.verdicts.waiting == 1
        with closing(RawClient(port)) as friend:
            friend.send(CancelRequest(key.process_id, key.secret_key))
        assert isinstance(client.receive_until(ReadyForQuery)[0], ErrorResponse)


@pytest.mark.parametrize("how", ["close", "reset", "terminate", "full"])
def test_a_client_that_vanishes_is_told_of(port: Port, how: str) -> None:
    client = RawClient(port)
    client.start()
    client.send(Query(f"WAIT_LSN 0/10 TIMEOUT {LONG_MS} GID '{GID}'"))
    waiting(port.verdicts, 1)
    if how == "full":  # more than is read while a question is open
        client.send_ahead(*[Query("ADMIT")] * (2 * BUFFERED_BYTES_MAX // 10))
    if how == "terminate":
        client.send_ahead(Query("ADMIT"))
    if how == "reset":
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    waiter = port.verdicts.asked[0].waiter
    wait_until(lambda: port.verdicts.left == [waiter], DEADLINE_SECONDS, "it to be told of")
    assert port.verdicts.waiting == 0
    port.verdicts.asked[0].refuse("XX000", "too late")
    with port.connect() as connection:
        assert row(connection.execute("ADMIT")) == (TERM, 0)


def test_one_that_has_asked_is_told_of_when_it_leaves_later(port: Port) -> None:
    with port.connect() as silent:
        assert silent.info.server_version > 0
        with port.connect() as connection:
            connection.execute("ADMIT")
            assert port.verdicts.left == []
        wait_until(lambda: len(port.verdicts.left) == 1, DEADLINE_SECONDS, "it to be told of")
    wait_until(lambda: port.server.connections == 0, DEADLINE_SECONDS, "both to be gone")
    assert len(port.verdicts.left) == 1


# ---- those who cost nothing, and those who would


def test_idle_clients_cost_no_thread_and_no_turn_of_the_loop(port: Port) -> None:
    with ExitStack() as stack:
        before = active_count()
        for _ in range(IDLE_CLIENTS):
            stack.enter_context(port.connect())
        wait_until(lambda: active_count() == before, DEADLINE_SECONDS, "handshakes to end")
        wait_until(lambda: port.server.connections == IDLE_CLIENTS, DEADLINE_SECONDS, "all of them")
        wait_until(lambda: is_quiet(port), DEADLINE_SECONDS, "a loop that has nothing to do")
        with port.connect() as connection:
            assert row(connection.execute("ADMIT")) == (TERM, 0)


def limbo_row() -> LimboRow:
    at = datetime(2026, 11, 24, 10, tzinfo=UTC)
    return LimboRow(GID, "d", "o", at, 1.5, Lsn(16), True, False, "detach", at, "prepared")


def shrink_buffers(port: Port) -> None:
    """Of the kernel, for those who connect from now on."""
    port.server._listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BYTES)


def session_of(port: Port) -> PortSession:
    """Of the only client."""
    wait_until(lambda: port.server.connections == 1, DEADLINE_SECONDS, "one client")
    (session,) = port.server._sessions.values()
    return session


def test_a_client_that_does_not_read_delays_nobody_else(port: Port) -> None:
    shrink_buffers(port)
    port.verdicts.rows = [limbo_row()] * 100
    with closing(RawClient(port, SMALL_BYTES)) as client:
        client.start()
        session = session_of(port)
        client.send_ahead(*[Query("QSYNC_LIST")] * 10)
        wait_until(lambda: session._is_stuck, DEADLINE_SECONDS, "full buffers")
        with port.connect() as connection:
            assert row(connection.execute("ADMIT")) == (TERM, 0)
        assert session._is_stuck
        client.reads_answers(10)


@pytest.mark.parametrize("seed", range(4))
def test_a_slow_reader_gets_all_its_answers(port: Port, seed: int) -> None:
    """Buffers of the kernel that are full now and then, at every moment there is."""
    random = Random(seed)
    shrink_buffers(port)
    port.verdicts.rows = [limbo_row()] * 60
    times_stuck = 0
    for _ in range(10):
        with closing(RawClient(port, random.choice([SMALL_BYTES, 4 * SMALL_BYTES]))) as client:
            client.start()
            session = session_of(port)
            said = random.choices(["QSYNC_LIST", "ADMIT", ""], [2, 1, 1], k=random.randrange(1, 40))
            client.send_ahead(*map(Query, said))
            for _ in said:
                times_stuck += session._is_stuck
                client.reads_answers(1, random.choice([100, 1000, 100_000]))
        wait_until(lambda: not port.server.connections, DEADLINE_SECONDS, "it to be gone")
    assert times_stuck, f"seed {seed}"


def test_a_message_that_is_too_large_ends_its_connection_alone(port: Port) -> None:
    with port.connect() as other, closing(RawClient(port)) as client:
        client.start()
        client.send(Query("ADMIT" + " " * MESSAGE_BYTES_MAX))
        end = client.reads_the_end()
        assert b"FATAL" in end
        assert b"C08P01" in end
        assert row(other.execute("ADMIT")) == (TERM, 0)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("authenticated", [False, True])
def test_random_bytes_harm_nobody_else(port: Port, seed: int, authenticated: bool) -> None:
    random = Random(seed)
    valid = [Query("ADMIT").encode(), Query(f"WAIT_LSN 0/10 TIMEOUT {LONG_MS}").encode(),
             b"S\0\0\0\4", b"H\0\0\0\4", b"P\0\0\0\x0d\0ADMIT\0\0\0"]  # fmt: skip
    with port.connect() as other:
        for _ in range(20):
            with closing(RawClient(port)) as client:
                if authenticated:
                    client.start()
                pieces = random.choices([*valid, random.randbytes(9)], k=random.randrange(1, 9))
                data = bytearray(b"".join(pieces))
                data[random.randrange(len(data))] ^= 1 << random.randrange(8)
                client.socket.sendall(data)
        assert row(other.execute("ADMIT")) == (TERM, 0), f"seed {seed}"
        wait_until(lambda: port.server.connections == 1, DEADLINE_SECONDS, "the others to go")


def test_more_than_is_buffered_is_not_read_while_a_question_is_open(port: Port) -> None:
    with closing(RawClient(port)) as client:
        client.start()
        client.send(Query(f"WAIT_LSN 0/10 TIMEOUT {LONG_MS}"))
        waiting(port.verdicts, 1)
        ahead = Query("ADMIT").encode()
        count = 4 * BUFFERED_BYTES_MAX // len(ahead)
        client.socket.sendall(ahead * count)
        session = session_of(port)
        wait_until(session._is_full, DEADLINE_SECONDS, "the beginning")
        assert session._channel.connection.buffered < 3 * BUFFERED_BYTES_MAX
        wait_until(lambda: is_quiet(port), DEADLINE_SECONDS, "a loop that has nothing to do")
        port.verdicts.advance(0x10)
        client.receive_until(ReadyForQuery)
        for _ in range(count):
            client.connection.send(Query("ADMIT"))
            assert CommandComplete("ADMIT 1") in client.receive_until(ReadyForQuery)


def test_connections_are_limited() -> None:
    limits = ConnectionLimits(
        connections_max=3, connections_per_user_max=3, connections_reserved=1, unauthenticated_max=2
    )
    config = PortConfig("127.0.0.1", 0, AccessConfig(limits=limits), handshake_timeout_seconds=0.2)
    with running(config) as port, ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(port.connect())
        with pytest.raises(psycopg.OperationalError, match="remaining connection slots are res"):
            port.connect()
        strangers = [stack.enter_context(closing(RawClient(port))) for _ in range(4)]
        for stranger in strangers:  # they give way, or are too slow
            stranger.reads_the_end()
        assert port.server.connections == 2
    assert PORT_LIMITS.connections_max > PORT_LIMITS.connections_reserved


# ---- the end


def test_when_the_port_closes_everybody_is_told(threads: ThreadPoolExecutor) -> None:
    patient = PortConfig("127.0.0.1", 0, handshake_timeout_seconds=10 * DEADLINE_SECONDS)
    with ExitStack() as stack, running(patient) as port:
        waiter, idle = (stack.enter_context(port.connect()) for _ in range(2))
        stranger = stack.enter_context(closing(RawClient(port)))
        found = threads.submit(waiter.execute, f"WAIT_LSN 0/10 TIMEOUT {LONG_MS}")
        waiting(port.verdicts, 1)
        port.server.post(port.server.close)
        with pytest.raises(psycopg.errors.AdminShutdown, match="the coordinator ends"):
            found.result(DEADLINE_SECONDS)
        with pytest.raises(psycopg.errors.AdminShutdown):
            idle.execute("ADMIT")
        assert stranger.reads_the_end() == b""
        assert len(port.verdicts.left) == 1
        with pytest.raises(psycopg.OperationalError, match="refused"):
            port.connect()
    assert stranger.connection.state is State.STARTUP


def test_one_that_is_greeted_while_the_port_closes_is_told(threads: ThreadPoolExecutor) -> None:
    with closing(EventLoop()) as loop:
        server = VerdictServer(LOOPBACK, OneNumber(), loop)
        host, _, number = server.address.rpartition(":")
        found = threads.submit(psycopg.connect, f"host={host} port={number} user=app")
        wait_until(lambda: loop.run_once(0.01) or server._handshakes, DEADLINE_SECONDS, "a client")
        with found.result(DEADLINE_SECONDS) as connection:  # nobody runs the loop any more
            server.close()
            with pytest.raises(psycopg.errors.AdminShutdown):
                connection.execute("ADMIT")
        assert server.access.admission.authenticated == 0
