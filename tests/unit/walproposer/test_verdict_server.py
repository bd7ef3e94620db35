"""The coordinator's port on real sockets: psycopg asks, cancels, disconnects; and other clients."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

import psycopg
import pytest
from psycopg import generators, pq
from raw_port_client import RawClient
from verdict_port import (
    DEADLINE_SECONDS,
    GID,
    LONG_MS,
    TERM,
    OneNumber,
    Port,
    limbo_row,
    row,
    running,
    waiting,
)

from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.pgwire.connection import State
from quorum_wal.pgwire.messages import (
    CommandComplete,
    DataRow,
    ErrorResponse,
    Query,
    ReadyForQuery,
)
from quorum_wal.pgwire.startup import CancelRequest
from quorum_wal.walproposer.qsync.answers import Confirmation
from quorum_wal.walproposer.qsync.limbo_events import Verdict
from quorum_wal.walproposer.qsync.port_session import (
    BUFFERED_BYTES_MAX,
    MESSAGES_A_TURN,
)
from quorum_wal.walproposer.qsync.verbs import WaitLsn
from quorum_wal.walproposer.qsync.verdict_server import PortConfig, VerdictServer
from quorum_wal.walproposer.stream.event_loop import EventLoop

LOOPBACK = PortConfig("127.0.0.1", 0)
WAITERS = 32


@pytest.fixture
def port() -> Iterator[Port]:
    with running(LOOPBACK) as port:
        yield port


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(WAITERS) as threads:
        yield threads


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
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="is not an LSN"):
            connection.execute("WAIT_LSN %s TIMEOUT %s GID %s", ("x", 1, GID))
        assert row(connection.execute("ADMIT")) == (TERM, 0)
    verbs = [question.verb for question in port.verdicts.asked]
    assert len({verb.timeout_ms for verb in verbs if isinstance(verb, WaitLsn)}) == 12


def test_by_libpq_alone(port: Port) -> None:
    """Its blocking calls hold the interpreter lock, which the port needs too, so psycopg waits for
    it."""
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


def test_a_connection_that_begins_transactions_gets_a_hint(port: Port) -> None:
    with psycopg.connect(port.conninfo()) as connection:
        with pytest.raises(psycopg.errors.SyntaxError, match="Connect with autocommit"):
            connection.execute("ADMIT")
        connection.autocommit = True
        assert row(connection.execute("ADMIT")) == (TERM, 0)


# ---- waits


def test_many_waiters_are_answered_by_one_advance(port: Port, threads: ThreadPoolExecutor) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(port.connect()) for _ in range(WAITERS)]
        stack.callback(port.verdicts.advance, 0x100)  # or a failure would wait for its clients
        turns = []

        def advance() -> None:
            turns.append(port.turns)
            port.verdicts.advance(0x10 + WAITERS // 2 - 1)

        found = [
            threads.submit(client.execute, f"WAIT_LSN 0/{0x10 + number:X} TIMEOUT {LONG_MS}")
            for number, client in enumerate(clients)
        ]
        waiting(port.verdicts, WAITERS)
        port.server.post(advance)  # as the coordinator's core does it, on the loop
        for future in found[: WAITERS // 2]:
            assert row(future.result(DEADLINE_SECONDS))[0] == "confirmed"
        assert port.turns - turns[0] <= 2
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
def test_a_vanished_client_is_reported(port: Port, how: str) -> None:
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


def test_a_client_that_has_asked_is_reported_when_it_disconnects(port: Port) -> None:
    with port.connect() as silent:
        assert silent.info.server_version > 0
        with port.connect() as connection:
            connection.execute("ADMIT")
            assert port.verdicts.left == []
        wait_until(lambda: len(port.verdicts.left) == 1, DEADLINE_SECONDS, "it to be told of")
    wait_until(lambda: port.server.connections == 0, DEADLINE_SECONDS, "both to be gone")
    assert len(port.verdicts.left) == 1


# ---- the end


def test_when_the_port_closes_every_client_gets_an_error(threads: ThreadPoolExecutor) -> None:
    patient = PortConfig("127.0.0.1", 0, handshake_timeout_seconds=10 * DEADLINE_SECONDS)
    with ExitStack() as stack, running(patient) as port:
        waiter, idle = (stack.enter_context(port.connect()) for _ in range(2))
        stranger = stack.enter_context(closing(RawClient(port)))
        found = threads.submit(waiter.execute, f"WAIT_LSN 0/10 TIMEOUT {LONG_MS}")
        waiting(port.verdicts, 1)
        port.server.post(port.server.close)
        with pytest.raises(psycopg.errors.AdminShutdown, match="the coordinator is shutting down"):
            found.result(DEADLINE_SECONDS)
        with pytest.raises(psycopg.errors.AdminShutdown):
            idle.execute("ADMIT")
        assert stranger.reads_the_end() == b""
        assert len(port.verdicts.left) == 1
        with pytest.raises(psycopg.OperationalError, match="refused"):
            port.connect()
    assert stranger.connection.state is State.STARTUP


def test_a_handshake_while_the_port_closes_gets_an_error(threads: ThreadPoolExecutor) -> None:
    with closing(EventLoop()) as loop:
        server = VerdictServer(LOOPBACK, OneNumber(), loop)
        host, _, number = server.address.rpartition(":")
        found = threads.submit(psycopg.connect, f"host={host} port={number} user=app")
        admission = server.access.admission

        def has_arrived() -> bool:
            loop.run_once(0.01)
            return admission.unauthenticated + admission.authenticated > 0

        wait_until(has_arrived, DEADLINE_SECONDS, "a client")
        with found.result(DEADLINE_SECONDS) as connection:  # no thread runs the loop any more
            server.close()
            with pytest.raises(psycopg.errors.AdminShutdown):
                connection.execute("ADMIT")
        assert admission.authenticated == 0
