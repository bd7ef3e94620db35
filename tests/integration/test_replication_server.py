"""A safekeeper's answers to the replication commands, compared with those of a real walsender."""

from __future__ import annotations

import os
import socket
import statistics
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import psycopg2
import psycopg2.extras
import pytest
from psycopg import pq
from replication_client import Answer, ReplicationClient, ServerError

from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.safekeeper import SafekeeperProcess
from quorum_wal.pg_fixtures.standby import replica_conninfo
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.pgwal.segment import format_segment_name
from quorum_wal.pgwire.replication import HotStandbyFeedback, Keepalive, XLogData
from quorum_wal.pgwire.startup import CancelRequest
from quorum_wal.safekeeper.send_wal import KEEPALIVE_SECONDS

TIMEOUT = 120.0
SEG_SIZE = 1 << 20
SILENCE_SECONDS = 3
PAGE = 8192


@pytest.fixture(scope="module")
def cluster_options() -> dict[str, Any]:
    return {
        "safekeeper_arguments": ["--wal-sender-timeout", str(SILENCE_SECONDS)],
        "settings": {"wal_keep_size": "64MB"},
    }


@pytest.fixture
def keeper(cluster: QuorumCluster) -> SafekeeperProcess:
    return cluster.safekeepers[0]


@pytest.fixture
def client(keeper: SafekeeperProcess) -> Iterator[ReplicationClient]:
    with ReplicationClient(replica_conninfo([keeper.address]), application_name="by-hand") as made:
        yield made


@pytest.fixture
def walsender(cluster: QuorumCluster) -> Iterator[ReplicationClient]:
    """The primary's walsender, as the reference."""
    with ReplicationClient(cluster.postgres.dsn(application_name="oracle")) as made:
        yield made


def settled_lsn(cluster: QuorumCluster) -> int:
    """Write something, and return the end of the WAL when all safekeepers have it as committed."""
    cluster.postgres.execute("SELECT pg_logical_emit_message(true, 'x', repeat('y', 30000))")
    lsn = cluster.postgres.flush_lsn()

    def is_known() -> bool:
        return all(
            (t := s.timeline()) is not None and Lsn.parse(t["commit_lsn"]) >= lsn
            for s in cluster.safekeepers
        )

    wait_until(is_known, TIMEOUT, "all to know what is committed")
    return int(lsn)


def outcome(client: ReplicationClient, command: str) -> list[Answer] | tuple[str, str]:
    """The results, or SQLSTATE and text."""
    try:
        return client.command(command)
    except ServerError as error:
        return error.sqlstate, error.message


@pytest.mark.parametrize(
    "commands",
    [
        ("SHOW data_directory_mode", "SHOW wal_segment_size;", "SHOW server_version_num"),
        ("SHOW integer_datetimes", "SHOW datestyle ", "SHOW no_such_setting"),
        ("READ_REPLICATION_SLOT nobody", "DROP_REPLICATION_SLOT nobody"),
        (
            'CREATE_REPLICATION_SLOT "a" PHYSICAL',
            'CREATE_REPLICATION_SLOT "a" PHYSICAL',
            "READ_REPLICATION_SLOT a",
            'START_REPLICATION SLOT "b" 0/1000000',
            'DROP_REPLICATION_SLOT "a" WAIT;',
        ),
        ('CREATE_REPLICATION_SLOT "A" PHYSICAL', "CREATE_REPLICATION_SLOT a-b PHYSICAL"),
        ("CREATE_REPLICATION_SLOT t TEMPORARY PHYSICAL RESERVE_WAL", "DROP_REPLICATION_SLOT t"),
        ("CREATE_REPLICATION_SLOT t TEMPORARY PHYSICAL (RESERVE_WAL)", "DROP_REPLICATION_SLOT t"),
        ("TIMELINE_HISTORY 1", "TIMELINE_HISTORY 7"),
        ("START_REPLICATION 0/1000000 TIMELINE 7", "START_REPLICATION"),
    ],
    ids=lambda commands: commands[0],
)
def test_the_answers_are_those_of_a_walsender(
    client: ReplicationClient, walsender: ReplicationClient, commands: tuple[str, ...]
) -> None:
    """Columns, types, rows, tags; of errors the code, and the text except for syntax errors."""
    for command in commands:
        ours, theirs = outcome(client, command), outcome(walsender, command)
        if isinstance(theirs, tuple) and theirs[0] == "42601":
            ours, theirs = ours[:1], theirs[:1]
        assert ours == theirs, command


def test_identify_system(
    cluster: QuorumCluster, client: ReplicationClient, walsender: ReplicationClient
) -> None:
    lsn = settled_lsn(cluster)
    (ours,), (theirs,) = (c.command("IDENTIFY_SYSTEM") for c in (client, walsender))
    assert ours == theirs
    assert ours.rows[0][1:] == (b"1", str(Lsn(lsn)).encode(), None)
    parameters = {
        name: client.pgconn.parameter_status(name)
        for name in (b"server_version", b"integer_datetimes", b"IntervalStyle", b"DateStyle")
    }
    real = {name: walsender.pgconn.parameter_status(name) for name in parameters}
    real[b"server_version"] = (real[b"server_version"] or b"").split()[0]  # of Debian, for example
    assert parameters == real


@pytest.mark.parametrize(
    "command",
    [
        "BASE_BACKUP (LABEL 'x')",
        'CREATE_REPLICATION_SLOT "l" LOGICAL "pgoutput"',
        'START_REPLICATION SLOT "l" LOGICAL 0/0',
        "UPLOAD_MANIFEST",
        "ALTER_REPLICATION_SLOT l (FAILOVER)",
    ],
)
def test_commands_that_only_a_primary_supports_are_refused(
    client: ReplicationClient, command: str
) -> None:
    with pytest.raises(ServerError, match="connect to the primary for it") as error:
        client.command(command)
    assert f": {command.split()[0]} " in str(error.value)  # in the client's terms, not in ours
    assert error.value.sqlstate == "0A000"
    assert client.row("SHOW wal_segment_size") == (b"1MB",)  # the connection is still usable


def test_where_the_log_begins(client: ReplicationClient, keeper: SafekeeperProcess) -> None:
    """No walsender reports this."""
    status = keeper.timeline()
    assert status is not None
    assert client.row("SHOW timeline_start_lsn") == (status["start_lsn"].encode(),)


def test_the_timeline_may_be_named(cluster: QuorumCluster, keeper: SafekeeperProcess) -> None:
    status = keeper.timeline()
    assert status is not None
    conninfo = replica_conninfo([keeper.address])
    named = f"-c tenant_id={status['tenant_id']} -c timeline_id={status['timeline_id']}"
    with ReplicationClient(conninfo, options=named) as client:
        assert client.row("IDENTIFY_SYSTEM")[0] == status["system_id"].encode()
    wrong = f"-c tenant_id={status['tenant_id']} -c timeline_id={'9' * 32}"
    with ReplicationClient(conninfo, options=wrong) as client:
        with pytest.raises(ServerError, match="no such timeline") as error:
            client.command("IDENTIFY_SYSTEM")
        assert error.value.sqlstate == "42704"


# ---- streams


def test_the_wal_is_the_primarys(cluster: QuorumCluster, client: ReplicationClient) -> None:
    """From the middle of a segment, past its end, to the end of the committed WAL."""
    begin_lsn = settled_lsn(cluster)
    begin_lsn -= begin_lsn % PAGE
    cluster.postgres.execute("SELECT pg_logical_emit_message(true, 'x', repeat('y', 3 << 20))")
    end_lsn = settled_lsn(cluster)
    client.start(f"START_REPLICATION {Lsn(begin_lsn)}")
    wal = client.receive_wal(begin_lsn, end_lsn)
    assert client.end_lsn_max <= settled_lsn(cluster)
    with ReplicationClient(cluster.postgres.dsn()) as walsender:
        walsender.start(f"START_REPLICATION {Lsn(begin_lsn)}")
        assert wal == walsender.receive_wal(begin_lsn, end_lsn)
    assert [answer.tag for answer in client.end()] == ["START_STREAMING", "START_REPLICATION"]
    assert client.row("SHOW wal_segment_size") == (b"1MB",)


def error_of_stream(client: ReplicationClient, command: str) -> ServerError:
    """The error at the end of a stream that has begun."""
    client.start(command)
    while client.receive() is not None:
        continue
    with pytest.raises(ServerError) as error:
        client.results()
    return error.value


def test_starts_beyond_the_end_and_below_the_oldest(
    cluster: QuorumCluster, client: ReplicationClient, walsender: ReplicationClient
) -> None:
    """With the texts of a walsender, after the copy has begun, as a walsender does."""
    beyond = f"START_REPLICATION {Lsn(settled_lsn(cluster) + SEG_SIZE)}"
    ours, theirs = error_of_stream(client, beyond), error_of_stream(walsender, beyond)
    assert (ours.sqlstate, ours.message) == (theirs.sqlstate, theirs.message)
    below = f"START_REPLICATION {Lsn(0)}"
    ours = error_of_stream(client, below)
    assert ours.sqlstate == "58P01"
    assert ours.message == (
        "requested WAL segment 000000010000000000000000 has already been removed"
    )


def test_a_reply_is_given_and_a_silent_client_is_dropped(
    cluster: QuorumCluster, client: ReplicationClient, keeper: SafekeeperProcess
) -> None:
    begin_lsn = settled_lsn(cluster)
    client.start(f"START_REPLICATION PHYSICAL {Lsn(begin_lsn)} TIMELINE 1")
    client.status(begin_lsn, reply_requested=True)
    while not isinstance(client.receive(), Keepalive):
        continue
    begun, asked = time.monotonic(), False
    while not asked:
        message = client.receive()
        asked = isinstance(message, Keepalive) and message.reply_requested
    with pytest.raises(psycopg.OperationalError, match="closed the connection"):
        client.receive_wal(begin_lsn, begin_lsn + SEG_SIZE)
    assert SILENCE_SECONDS - 1 < time.monotonic() - begun < SILENCE_SECONDS * 3
    wait_until(lambda: "replication timeout" in keeper.log_text(), TIMEOUT, "the log to say why")


def replicas_of(keeper: SafekeeperProcess) -> list[dict[str, Any]]:
    status = keeper.timeline()
    assert status is not None
    return list(status["replicas"])


@pytest.mark.parametrize("payload", [b"z", b"r", b"h" * 100, b"r" * 33])
def test_an_invalid_message_ends_the_connection(
    cluster: QuorumCluster,
    client: ReplicationClient,
    keeper: SafekeeperProcess,
    payload: bytes,
) -> None:
    client.start(f"START_REPLICATION {Lsn(settled_lsn(cluster))}")
    client.pgconn.put_copy_data(payload)
    client.pgconn.flush()
    while client.receive() is not None:
        continue
    result = client.pgconn.get_result()
    assert result is not None
    assert result.error_field(pq.DiagnosticField.SQLSTATE) == b"08P01"
    with ReplicationClient(replica_conninfo([keeper.address])) as other:
        assert other.row("SHOW integer_datetimes") == (b"on",)
    wait_until(lambda: not replicas_of(keeper), TIMEOUT, "the replica to be forgotten")


def test_a_copy_that_the_client_fails_is_over(
    cluster: QuorumCluster, client: ReplicationClient
) -> None:
    client.start(f"START_REPLICATION {Lsn(settled_lsn(cluster))}")
    client.pgconn.put_copy_end(b"enough")
    client.pgconn.flush()
    while client.receive() is not None:
        continue
    with pytest.raises(ServerError, match="enough") as error:
        client.results()
    assert error.value.sqlstate == "57014"
    assert client.row("SHOW integer_datetimes") == (b"on",)


def test_positions_and_feedback_are_shown_and_leave_with_the_client(
    cluster: QuorumCluster, keeper: SafekeeperProcess, client: ReplicationClient
) -> None:
    lsn = settled_lsn(cluster)
    client.command("CREATE_REPLICATION_SLOT held PHYSICAL (RESERVE_WAL)")
    client.start(f"START_REPLICATION SLOT held PHYSICAL {Lsn(lsn)}")
    client.status(lsn)
    client.send(HotStandbyFeedback(0, 700, 0, 650, 0))

    wait_until(
        lambda: [replica["xmin"] for replica in replicas_of(keeper)] == [700],
        TIMEOUT,
        "the feedback to arrive",
    )
    (replica,) = replicas_of(keeper)
    assert replica["application_name"] == "by-hand"
    assert replica["flush_lsn"] == replica["replay_lsn"] == str(Lsn(lsn))
    with ReplicationClient(replica_conninfo([keeper.address])) as other:
        for command in ("START_REPLICATION SLOT held 0/1000000", "DROP_REPLICATION_SLOT held"):
            with pytest.raises(ServerError, match="is active for") as error:
                other.command(command)
            assert error.value.sqlstate == "55006"
        assert other.row("READ_REPLICATION_SLOT held") == (
            b"physical",
            str(Lsn(lsn)).encode(),
            b"1",
        )
        client.pgconn.finish()
        other.command("DROP_REPLICATION_SLOT held WAIT")
    assert replicas_of(keeper) == []


def test_a_temporary_slot_ends_with_its_connection(keeper: SafekeeperProcess) -> None:
    conninfo = replica_conninfo([keeper.address])
    with ReplicationClient(conninfo) as client, ReplicationClient(conninfo) as other:
        client.command("CREATE_REPLICATION_SLOT temp TEMPORARY PHYSICAL RESERVE_WAL")
        assert other.row("READ_REPLICATION_SLOT temp")[0] == b"physical"
        client.pgconn.finish()
        wait_until(
            lambda: other.row("READ_REPLICATION_SLOT temp") == (None, None, None),
            TIMEOUT,
            "the slot to end",
        )


def test_a_stop_sends_what_is_committed_and_ends_cleanly(cluster: QuorumCluster) -> None:
    keeper = cluster.safekeepers[2]
    begin_lsn = settled_lsn(cluster)
    with ReplicationClient(replica_conninfo([keeper.address])) as client:
        client.start(f"START_REPLICATION {Lsn(begin_lsn)}")
        assert keeper.terminate() == 0
        while client.receive() is not None:
            continue
        result = client.pgconn.get_result()
        assert result is not None
        assert result.command_status == b"COPY 0"
    assert "Traceback" not in keeper.log_text()
    (left,) = [line for line in keeper.log_text().splitlines() if "replica disconnected" in line]
    assert "the safekeeper shuts down" in left


def test_the_cursor_of_psycopg2(cluster: QuorumCluster, keeper: SafekeeperProcess) -> None:
    begin_lsn = settled_lsn(cluster)
    begin_lsn -= begin_lsn % SEG_SIZE
    end_lsn = settled_lsn(cluster)
    connection = psycopg2.connect(
        replica_conninfo([keeper.address]),
        connection_factory=psycopg2.extras.PhysicalReplicationConnection,
    )
    try:
        cursor = connection.cursor()
        cursor.create_replication_slot("psycopg2")
        cursor.start_replication(slot_name="psycopg2", start_lsn=begin_lsn, timeline=1)
        wal = b""
        while begin_lsn + len(wal) < end_lsn:
            message = cursor.read_message()
            if message is None:
                continue
            assert message.data_start == begin_lsn + len(wal)
            wal += message.payload
            cursor.send_feedback(flush_lsn=begin_lsn + len(wal), force=True)
        assert wal == wal_of(cluster.postgres, begin_lsn, len(wal))
    finally:
        connection.close()
    with ReplicationClient(replica_conninfo([keeper.address])) as client:
        client.command("DROP_REPLICATION_SLOT psycopg2 WAIT")


def wal_of(primary: Postgres, lsn: int, length: int) -> bytes:
    name = format_segment_name(1, lsn // SEG_SIZE, SEG_SIZE)
    return (primary.pg_wal / name).read_bytes()[:length]


# ---- how a stream ends


def wait_quiet(client: ReplicationClient) -> None:
    """Wait until nothing is left to send to it."""
    while isinstance(client.receive(), XLogData):
        continue


def test_a_slot_is_free_once_its_client_has_left(
    cluster: QuorumCluster, keeper: SafekeeperProcess, client: ReplicationClient
) -> None:
    """However the client disconnects, and although nothing is to be sent to it: without waiting for
    the next keepalive, which comes after a second."""
    lsn = settled_lsn(cluster)
    seconds = []
    for leave in ("Terminate", "a lost connection", "CopyDone") * 2:
        client.command("CREATE_REPLICATION_SLOT leaving PHYSICAL")
        with ReplicationClient(replica_conninfo([keeper.address])) as leaving:
            leaving.start(f"START_REPLICATION SLOT leaving {Lsn(lsn)}")
            wait_quiet(leaving)
            begun = time.monotonic()
            if leave == "Terminate":
                leaving.pgconn.finish()
            elif leave == "CopyDone":
                leaving.end()
            else:
                sock = socket.socket(fileno=os.dup(leaving.pgconn.socket))
                sock.shutdown(socket.SHUT_RDWR)
                sock.close()
            client.command("DROP_REPLICATION_SLOT leaving WAIT")
            seconds.append(time.monotonic() - begun)
    print(f"slots were free after {statistics.mean(seconds):.3f} s, {max(seconds):.3f} s at most")
    assert statistics.mean(seconds) < KEEPALIVE_SECONDS / 4, seconds


def cancel_request(client: ReplicationClient, key: bytes = b"") -> None:
    """By libpq with its own key, or by hand with another one."""
    if not key:
        cancel = client.pgconn.cancel_conn()
        cancel.start()
        ends = (pq.PollingStatus.OK, pq.PollingStatus.FAILED)
        wait_until(lambda: cancel.poll() in ends, TIMEOUT, "the cancel request to be sent")
        assert cancel.status == pq.ConnStatus.OK, cancel.get_error_message()
        return
    with socket.create_connection((client.pgconn.host.decode(), int(client.pgconn.port))) as sock:
        sock.sendall(CancelRequest(client.pgconn.backend_pid, key).encode())
        assert sock.recv(1) == b""


def canceled(client: ReplicationClient) -> tuple[str, str]:
    while client.receive() is not None:
        continue
    with pytest.raises(ServerError) as caught:
        client.results()
    return caught.value.sqlstate, caught.value.message


@pytest.mark.parametrize("protocol", ["3.0", "3.2"])
def test_a_cancel_request_ends_a_stream(
    cluster: QuorumCluster, keeper: SafekeeperProcess, walsender: ReplicationClient, protocol: str
) -> None:
    lsn = settled_lsn(cluster)
    conninfo = replica_conninfo([keeper.address], max_protocol_version=protocol)
    with ReplicationClient(conninfo) as client:
        for _ in range(2):
            client.start(f"START_REPLICATION {Lsn(lsn)}")
            wait_quiet(client)
            cancel_request(client, b"not the key")
            wait_quiet(client)
            cancel_request(client)
            ours = canceled(client)
            assert client.row("SHOW wal_segment_size") == (b"1MB",)
        cancel_request(client)  # no stream runs: the request has no effect
        client.start(f"START_REPLICATION {Lsn(lsn)}")
        wait_quiet(client)
        client.end()
    walsender.start(f"START_REPLICATION {Lsn(lsn)}")
    walsender.receive()
    cancel_request(walsender)
    assert ours == canceled(walsender) == ("57014", "canceling statement due to user request")
