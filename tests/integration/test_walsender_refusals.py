"""What a walsender refuses besides commands, compared with a safekeeper: the extended query
protocol, messages out of place, and errors in a startup packet."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator

import psycopg
import pytest
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from replication_client import ReplicationClient, ServerError

from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.postgres import SUPERUSER
from quorum_wal.pg_fixtures.safekeeper import SafekeeperProcess
from quorum_wal.pg_fixtures.standby import replica_conninfo
from quorum_wal.pgwire.connection import NEED_DATA, ClientConnection, State
from quorum_wal.pgwire.extended_query import FunctionCall
from quorum_wal.pgwire.messages import ErrorResponse
from quorum_wal.pgwire.startup import StartupMessage
from quorum_wal.safekeeper.session_settings import ENCODINGS, SESSION_SETTINGS

TIMEOUT = 120.0


@pytest.fixture
def keeper(cluster: QuorumCluster) -> SafekeeperProcess:
    return cluster.safekeepers[0]


@pytest.fixture
def client(keeper: SafekeeperProcess) -> Iterator[ReplicationClient]:
    with ReplicationClient(replica_conninfo([keeper.address])) as made:
        yield made


@pytest.fixture
def walsender(cluster: QuorumCluster) -> Iterator[ReplicationClient]:
    """The primary's walsender, as the reference."""
    with ReplicationClient(cluster.postgres.dsn()) as made:
        yield made


# ---- the extended query protocol


def refused_query(client: ReplicationClient, send: Callable[[pq.abc.PGconn], None]) -> list[str]:
    """SQLSTATE and text of all errors."""
    send(client.pgconn)
    client.pgconn.flush()
    errors = []
    while (result := client.pgconn.get_result()) is not None:
        errors += [str(ServerError(result))]
    return errors


@pytest.mark.parametrize(
    "send",
    [
        lambda pgconn: pgconn.send_query_params(b"SHOW wal_segment_size", [b"1", None]),
        lambda pgconn: pgconn.send_prepare(b"name", b"SHOW wal_segment_size"),
        lambda pgconn: pgconn.send_query_prepared(b"name", []),
        lambda pgconn: pgconn.send_describe_portal(b"name"),
    ],
    ids=["parameters", "Parse", "Bind and Execute", "Describe"],
)
def test_an_extended_query_is_an_error_and_not_the_end(
    client: ReplicationClient, walsender: ReplicationClient, send: Callable[[pq.abc.PGconn], None]
) -> None:
    ours, theirs = refused_query(client, send), refused_query(walsender, send)
    assert (
        ours
        == theirs
        == ["08P01: extended query protocol not supported in a replication connection"]
    )
    assert client.row("SHOW wal_segment_size") == (b"1MB",)


def test_a_query_of_psycopg_with_parameters(keeper: SafekeeperProcess) -> None:
    conninfo = make_conninfo(
        replica_conninfo([keeper.address]), dbname="replication", replication="true"
    )
    with psycopg.connect(conninfo, autocommit=True) as connection:
        for _ in range(2):
            with pytest.raises(psycopg.errors.ProtocolViolation, match="extended query protocol"):
                connection.execute("SHOW %s", ("wal_segment_size",))
            assert connection.pgconn.exec_(b"SHOW wal_segment_size").get_value(0, 0) == b"1MB"


@pytest.mark.parametrize("what", ["a function call", "a message of no known type"])
def test_other_messages_out_of_place(keeper: SafekeeperProcess, cluster: QuorumCluster,
                                     what: str) -> None:  # fmt: skip
    """As a walsender answers them: severity, SQLSTATE and text."""
    message = FunctionCall(bytes(8)) if what == "a function call" else None
    sent = b"!\0\0\0\4" if message is None else message.encode()
    postgres = cluster.postgres
    ours, theirs = (
        answer_to(host, port, user, sent)
        for host, port, user in (
            ("127.0.0.1", int(keeper.address.rpartition(":")[2]), "walproposer"),
            ("127.0.0.1", postgres.port, SUPERUSER),
        )
    )
    assert (ours.severity, ours.sqlstate) == (theirs.severity, theirs.sqlstate)
    assert ours.message.startswith(theirs.message)


def answer_to(host: str, port: int, user: str, sent: bytes) -> ErrorResponse:
    """The first error after the greeting."""
    connection = ClientConnection()
    with socket.create_connection((host, port), TIMEOUT) as sock:
        sock.sendall(connection.send(StartupMessage({"user": user, "replication": "true"})))
        while connection.state is not State.IDLE:
            if connection.next() is NEED_DATA:
                connection.feed(sock.recv(4096))
        sock.sendall(sent)
        connection.state = State.BUSY
        while not isinstance(message := connection.next(), ErrorResponse):
            assert message is NEED_DATA
            connection.feed(sock.recv(4096))
    return message


# ---- the startup packet


def refusal(conninfo: str, **keywords: str) -> tuple[str, str]:
    """SQLSTATE and text with which a connection is refused; empty if it is accepted."""
    host, port, user = (conninfo_to_dict(conninfo)[name] for name in ("host", "port", "user"))
    connection = ClientConnection()
    with socket.create_connection((str(host), int(str(port))), TIMEOUT) as sock:
        packet = StartupMessage({"user": str(user), "replication": "true", **keywords})
        sock.sendall(connection.send(packet))
        while connection.state is not State.IDLE:
            message = connection.next()
            if isinstance(message, ErrorResponse):
                assert message.severity == "FATAL"
                return message.sqlstate, message.message
            if message is NEED_DATA:
                connection.feed(sock.recv(4096))
    return "", ""


@pytest.mark.parametrize(
    "packet",
    [
        {"replication": "bogus"},
        {"replication": "o"},
        {"replication": ""},
        {"replication": "TRUEE"},
        {"replication": "tr"},
        {"replication": "ON"},
        {"replication": "1"},
        {"replication": "Yes"},
        {"replication": "off"},
        {"client_encoding": "bogus"},
        {"client_encoding": "utf-8"},
        {"client_encoding": "LATIN1"},
        {"options": "-c client_encoding=klingon"},
        {"options": "-c timelineid=1"},
        {"options": "-c Timeline.Id=1"},
        {"options": "-c no_such_thing=1 -c datestyle=iso"},
        {"options": "--no-such-thing=1"},
        {"options": "-c user=me"},
        {"no_such_thing": "1"},
        {"DateStyle": "ISO", "TimeZone": "UTC", "extra_float_digits": "3"},  # pgjdbc
        {"options": "-cdatestyle=iso"},  # barman
        {"search_path": "a", "statement_timeout": "0", "application_name": "x"},
        {"options": "-c wal_sender_timeout=60s -c my_ext.setting=1"},
        {"geqo": "on", "datestyle": "ISO", "timezone": "UTC"},  # PGGEQO, PGDATESTYLE, PGTZ
    ],
    ids=str,
)
def test_a_startup_packet_is_refused_as_by_a_walsender(
    keeper: SafekeeperProcess, cluster: QuorumCluster, packet: dict[str, str]
) -> None:
    ours = refusal(replica_conninfo([keeper.address], user="walproposer"), **packet)
    theirs = refusal(cluster.postgres.dsn(dbname="postgres"), database="postgres", **packet)
    assert ours == theirs


def test_all_session_settings_of_postgres_are_accepted(
    keeper: SafekeeperProcess, cluster: QuorumCluster
) -> None:
    rows = cluster.postgres.execute(
        "SELECT name FROM pg_settings WHERE context IN "
        "('user', 'superuser', 'backend', 'superuser-backend') AND name NOT LIKE '%.%'"
    )
    unknown = {name.lower() for (name,) in rows} - SESSION_SETTINGS
    # A minor release that is newer than the list may have added some.
    assert len(unknown) < 5, f"add these to safekeeper/session_settings.py: {sorted(unknown)}"
    encodings_unknown = cluster.postgres.execute(
        "SELECT name FROM unnest(%s::text[]) AS name WHERE pg_char_to_encoding(name) < 0",
        (sorted(ENCODINGS),),
    )
    assert encodings_unknown == []
    encodings = cluster.postgres.execute(
        "SELECT pg_encoding_to_char(number) FROM generate_series(0, 99) AS number"
    )
    folded = {re.sub("[^a-z0-9]", "", name.lower()) for (name,) in encodings if name}
    assert folded - ENCODINGS == set()


@pytest.mark.parametrize(
    ("options", "sqlstate", "words"),
    [
        ("-c timeline_id=xyz", "22023", 'invalid value for parameter "timeline_id": "xyz"'),
        ("-c tenant_id=0", "22023", 'invalid value for parameter "tenant_id": "0"'),
        ("-c timeline_ld=00", "42704", 'unrecognized configuration parameter "timeline_ld"'),
        ("-c tenant=00", "42704", 'unrecognized configuration parameter "tenant"'),
    ],
)
def test_a_wrong_timeline_name_is_not_ignored(
    keeper: SafekeeperProcess, options: str, sqlstate: str, words: str
) -> None:
    conninfo = replica_conninfo([keeper.address], user="walproposer")
    assert refusal(conninfo, options=options) == (sqlstate, words)


def test_names_are_case_insensitive(keeper: SafekeeperProcess) -> None:
    """As for every setting: `Timeline_ID` is the same name, and is not ignored."""
    conninfo = replica_conninfo([keeper.address])
    with (
        ReplicationClient(conninfo, options=f"-c Timeline-ID={'7' * 32}") as other,
        pytest.raises(ServerError, match="no such timeline") as caught,
    ):
        other.command("IDENTIFY_SYSTEM")
    assert caught.value.sqlstate == "42704"


def test_unknown_options_of_commands_are_refused(client: ReplicationClient) -> None:
    for command, words in {
        "START_REPLICATION 0/1000000 (nodeid '1/00')": "unrecognized option: nodeid",
        "TIMELINE_STATUS (tenant_id '00', timeline '00')": 'unrecognized option "timeline"',
        "DELETE_TIMELINE (unfinshed 'true')": 'unrecognized option "unfinshed" of DELETE_TIMELINE',
        "LIST_TIMELINES (all)": 'unrecognized option "all" of LIST_TIMELINES',
    }.items():
        with pytest.raises(ServerError, match=words) as caught:
            client.command(command)
        assert caught.value.sqlstate == "22023"
