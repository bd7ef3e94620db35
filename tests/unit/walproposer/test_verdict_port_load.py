"""Clients of the coordinator's port that must not cost time: idle ones, garbage, crowds, slow
readers."""

from __future__ import annotations

import socket
from array import array
from collections.abc import Iterator
from contextlib import ExitStack, closing
from fcntl import ioctl
from random import Random
from termios import FIONREAD
from threading import Event, active_count

import psycopg
import pytest
from raw_port_client import RawClient
from verdict_port import (
    DEADLINE_SECONDS,
    LONG_MS,
    TERM,
    Port,
    limbo_row,
    row,
    running,
    waiting,
)

from quorum_wal.access.access import AccessConfig
from quorum_wal.access.admission import ConnectionLimits
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pgwire.messages import CommandComplete, Query, ReadyForQuery
from quorum_wal.walproposer.qsync.port_session import BUFFERED_BYTES_MAX, MESSAGE_BYTES_MAX
from quorum_wal.walproposer.qsync.verdict_server import PORT_LIMITS, PortConfig

IDLE_CLIENTS = 200
QUIET_SECONDS = 0.3
SMALL_BYTES = 4096


@pytest.fixture
def port() -> Iterator[Port]:
    with running(PortConfig("127.0.0.1", 0)) as port:
        yield port


def is_quiet(port: Port) -> bool:
    """Whether the loop does not turn for a while."""
    turns = port.turns
    Event().wait(QUIET_SECONDS)
    return port.turns == turns


def shrink_buffers(port: Port) -> None:
    """Shrink the kernel's buffers of new connections."""
    port.listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BYTES)


def unread_bytes(sock: socket.socket) -> int:
    """What has arrived, and was not taken from the kernel."""
    count = array("i", [0])
    ioctl(sock, FIONREAD, count)
    return count[0]


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


def test_a_client_that_does_not_read_delays_no_other(port: Port) -> None:
    shrink_buffers(port)
    port.verdicts.rows = [limbo_row()] * 100
    with closing(RawClient(port, SMALL_BYTES)) as client:
        client.start()
        ours = port.only_client()
        client.send_ahead(*[Query("QSYNC_LIST")] * 10)
        wait_until(lambda: port.waits_to_write(ours), DEADLINE_SECONDS, "full buffers")
        with port.connect() as connection:
            assert row(connection.execute("ADMIT")) == (TERM, 0)
        assert port.waits_to_write(ours)
        client.reads_answers(10)


@pytest.mark.parametrize("seed", range(4))
def test_a_slow_reader_gets_all_its_answers(port: Port, seed: int) -> None:
    """The kernel's buffers become full at every possible moment."""
    random = Random(seed)
    shrink_buffers(port)
    port.verdicts.rows = [limbo_row()] * 60
    times_stuck = 0
    for _ in range(10):
        with closing(RawClient(port, random.choice([SMALL_BYTES, 4 * SMALL_BYTES]))) as client:
            client.start()
            ours = port.only_client()
            said = random.choices(["QSYNC_LIST", "ADMIT", ""], [2, 1, 1], k=random.randrange(1, 40))
            client.send_ahead(*map(Query, said))
            for _ in said:
                times_stuck += port.waits_to_write(ours)
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
def test_random_bytes_harm_no_other_client(port: Port, seed: int, authenticated: bool) -> None:
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
        assert row(other.execute("ADMIT"))[0] == TERM, f"seed {seed}"
        wait_until(lambda: port.server.connections == 1, DEADLINE_SECONDS, "the others to go")
        assert row(other.execute("ADMIT")) == (TERM, 0), f"seed {seed}: nobody waits any more"


def test_more_than_is_buffered_is_not_read_while_a_question_is_open(port: Port) -> None:
    with closing(RawClient(port)) as client:
        client.start()
        client.send(Query(f"WAIT_LSN 0/10 TIMEOUT {LONG_MS}"))
        waiting(port.verdicts, 1)
        ahead = Query("ADMIT").encode()
        count = 4 * BUFFERED_BYTES_MAX // len(ahead)
        client.socket.sendall(ahead * count)
        ours = port.only_client()
        wait_until(lambda: port.reads_no_more(ours), DEADLINE_SECONDS, "the beginning")
        wait_until(lambda: is_quiet(port), DEADLINE_SECONDS, "a loop that has nothing to do")
        unread_min = len(ahead) * count - 3 * BUFFERED_BYTES_MAX
        wait_until(lambda: unread_bytes(ours) > unread_min, DEADLINE_SECONDS, "the rest to wait")
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
