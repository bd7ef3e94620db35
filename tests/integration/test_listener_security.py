"""TLS, users and tokens on every port, and no secret in any output.

The cluster of this file has everything at once: TLS with its own CA, SCRAM on the safekeepers'
port, TLS and a token on all HTTP ports.
"""

from __future__ import annotations

import ipaddress
import json
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import click
import psycopg
import pytest
import trustme
from psycopg import pq
from psycopg.conninfo import make_conninfo
from reckoning import assert_nothing_lost
from secured_cluster import (
    PASSWORD,
    PRIMARY_PASSWORD,
    TOKEN,
    USER,
    Secrets,
    SecuredProposer,
    SecuredSafekeeper,
    https_get,
)

from quorum_wal.access.admission import DEFAULT_LIMITS
from quorum_wal.cli.listening import HostPort
from quorum_wal.cli.main import cli
from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.http_status import http_get
from quorum_wal.pg_fixtures.ledger import Ledger
from quorum_wal.pg_fixtures.process_table import session_members
from quorum_wal.pg_fixtures.processes import SK
from quorum_wal.pg_fixtures.proposer import ProposerProcess
from quorum_wal.pg_fixtures.safekeeper import SafekeeperProcess
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_server.binaries import PostgresBinaries
from quorum_wal.pg_server.program import run_program
from quorum_wal.pgwire.connection import NEED_DATA, ClientConnection
from quorum_wal.pgwire.messages import ErrorResponse
from quorum_wal.pgwire.startup import CancelRequest, SSLRequest, StartupMessage

SEG_SIZE = 1 << 20
TIMEOUT = 120.0
UNAUTHORIZED = 401
SSL_REQUEST = SSLRequest().encode()


@pytest.fixture(scope="module")
def secured(
    pg_binaries: PostgresBinaries,
    initdb_template: Callable[[PostgresBinaries, int], Path],
    tmp_path_factory: pytest.TempPathFactory,
    secret_files: Secrets,
) -> Iterator[QuorumCluster]:
    root = tmp_path_factory.mktemp("secured") / "cluster"
    cluster = QuorumCluster(
        root,
        binaries=pg_binaries,
        wal_seg_size=SEG_SIZE,
        template=initdb_template(pg_binaries, SEG_SIZE),
    )
    cluster.safekeepers = [
        SecuredSafekeeper(id, root / f"safekeeper-{id}", secret_files) for id in (1, 2, 3)
    ]
    cluster.proposer = SecuredProposer(cluster, secret_files)
    with cluster:
        yield cluster


# ---- everything at once


def test_a_secured_cluster_commits_and_shows_no_secret(
    secured: QuorumCluster,
    secret_files: Secrets,
    ledger_of: Callable[[QuorumCluster], Ledger],
) -> None:
    ledger = ledger_of(secured)
    ledger.wait_for_progress(100, TIMEOUT)
    secured.safekeepers[0].restart()
    assert_nothing_lost(secured, ledger)

    services: list[SafekeeperProcess | ProposerProcess] = [*secured.safekeepers, secured.proposer]
    seen = {
        **{f"log of {s.name}": s.log_text() for s in services},
        **{f"status of {s.name}": json.dumps(s.status()) for s in services},
        **{
            f"command line of {s.name}": Path(f"/proc/{entry.pid}/cmdline").read_text()
            for s in services
            for entry in session_members(s.pid)
        },
        "metrics": https_get(services[0].http_address, "/metrics", secret_files)[1],
        "log of Postgres": secured.postgres.log_text(),
    }
    keys = secret_files.verifier.rpartition("$")[2].split(":")
    for where, text in seen.items():
        assert text, where
        for secret in (PASSWORD, PRIMARY_PASSWORD, TOKEN, *keys, "PRIVATE KEY"):
            assert secret not in text, where
    assert "Traceback" not in "".join(seen.values())


# ---- the safekeepers' port


def first_error(address: str) -> ErrorResponse:
    """The error of a client that starts without encryption."""
    host, _, port = address.rpartition(":")
    connection = ClientConnection()
    with socket.create_connection((host, int(port)), TIMEOUT) as sock:
        sock.sendall(connection.send(StartupMessage({"user": USER, "replication": "true"})))
        while (message := connection.next()) is NEED_DATA:
            data = sock.recv(4096)
            assert data, "the connection was closed without a word"
            connection.feed(data)
    assert isinstance(message, ErrorResponse)
    return message


def test_plaintext_is_refused(secured: QuorumCluster) -> None:
    error = first_error(secured.safekeepers[0].address)
    assert error.sqlstate == "28000"
    assert "is not encrypted, and this server requires TLS" in error.message
    assert error.hint == "Connect with sslmode=require, or better with verify-full."


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ({"password": "wrong"}, 'password authentication failed for user "walproposer"'),
        ({"password": PASSWORD, "user": "nobody"}, 'authentication failed for user "nobody"'),
        ({"passfile": "/dev/null"}, "no password supplied"),
        ({"password": PASSWORD, "sslrootcert": "another CA"}, "certificate verify failed"),
        ({"password": PASSWORD, "sslmode": "disable"}, "this server requires TLS"),
    ],
    ids=["wrong password", "unknown user", "no password", "unknown CA", "no TLS"],
)
def test_a_refused_client_gets_the_reason(
    secured: QuorumCluster,
    secret_files: Secrets,
    tmp_path: Path,
    how: dict[str, str],
    sentence: str,
) -> None:
    if how.get("sslrootcert"):
        trustme.CA().cert_pem.write_to_path(str(tmp_path / "ca.pem"))
        how = {**how, "sslrootcert": str(tmp_path / "ca.pem")}
    safekeeper = secured.safekeepers[0]
    with pytest.raises(psycopg.OperationalError, match=sentence):
        connect(safekeeper, secret_files.conninfo(**how))
    assert PASSWORD not in safekeeper.log_text()


def connect(safekeeper: SafekeeperProcess, conninfo: str) -> psycopg.Connection:
    host, _, port = safekeeper.address.rpartition(":")
    return psycopg.connect(
        make_conninfo(conninfo, host=host, port=port, dbname="replication", replication="true"),
        autocommit=True,
    )


def test_the_right_password_comes_from_the_environment(
    secured: QuorumCluster, secret_files: Secrets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    with connect(secured.safekeepers[0], secret_files.conninfo()) as connection:
        assert connection.pgconn.ssl_in_use
        answer = connection.pgconn.exec_(b"IDENTIFY_SAFEKEEPER")
        assert answer.get_value(0, 0) == b"1"


@pytest.mark.parametrize("protocol", ["3.0", "3.2"])
def test_a_stream_is_canceled_over_tls(
    secured: QuorumCluster, secret_files: Secrets, protocol: str
) -> None:
    """libpq cancels as it is connected, over TLS. A cancel request in clear text or without the key
    ends no stream."""
    safekeeper = secured.safekeepers[0]
    how = {"user": "reader", "password": PASSWORD, "min_protocol_version": protocol}
    conninfo = secret_files.conninfo(**how, max_protocol_version=protocol)
    with connect(safekeeper, conninfo) as connection:
        pgconn = connection.pgconn
        start_lsn = pgconn.exec_(b"IDENTIFY_SYSTEM").get_value(0, 2) or b""
        pgconn.send_query(b"START_REPLICATION " + start_lsn)
        started = pgconn.get_result()
        assert started is not None
        assert started.status == pq.ExecStatus.COPY_BOTH
        with dial(safekeeper.address) as sock:
            sock.sendall(CancelRequest(pgconn.backend_pid, b"a guess!").encode())
            assert sock.recv(1) == b""
        size, _ = pgconn.get_copy_data(0)
        assert size > 0, "the stream goes on"
        connection.cancel_safe(timeout=TIMEOUT)
        while pgconn.get_copy_data(0)[0] > 0:
            continue
        ended = pgconn.get_result()
        assert ended is not None
        assert ended.error_field(pq.DiagnosticField.SQLSTATE) == b"57014"
        assert pgconn.get_result() is None
        assert pgconn.exec_(b"IDENTIFY_SYSTEM").status == pq.ExecStatus.TUPLES_OK


def test_an_attach_with_a_wrong_password_says_so(
    secured: QuorumCluster, secret_files: Secrets
) -> None:
    done = run_program(
        [
            *(*SK, "attach", "--primary", secured.postgres.dsn(), "--http", "127.0.0.1:0"),
            *("--safekeepers", ",".join(s.address for s in secured.safekeepers)),
            *("--safekeeper-conninfo", secret_files.conninfo()),
        ],
        env={"PGPASSWORD": "wrong guess"},
        check=False,
        timeout=TIMEOUT,
    )
    assert done.returncode != 0
    assert 'password authentication failed for user "walproposer"' in done.stderr
    assert "wrong guess" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_silent_strangers_delay_no_commit(
    secured: QuorumCluster, ledger_of: Callable[[QuorumCluster], Ledger]
) -> None:
    """More half-open connections to every port than its limit, while clients commit."""
    ledger = ledger_of(secured)
    addresses = [s.address for s in secured.safekeepers]
    addresses += [s.http_address for s in (*secured.safekeepers, secured.proposer)]
    openings = (b"", b"\0\0", SSL_REQUEST, b"\x16\x03\x01\x02\x00")
    with ExitStack() as crowd:
        for number in range(DEFAULT_LIMITS.unauthenticated_max + 20):
            for address in addresses:
                sock = crowd.enter_context(dial(address))
                sock.sendall(openings[number % len(openings)])
        ledger.wait_for_progress(50, TIMEOUT)
        for safekeeper in secured.safekeepers:
            assert safekeeper.status()["timelines"][0]["proposer"] is not None
        assert secured.proposer.status()["quorum"]["connected"] == 3
    assert_nothing_lost(secured, ledger)


def dial(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), TIMEOUT)


# ---- the HTTP ports


def test_a_restarted_proposer_gets_a_connection_beside_a_crowd(
    secured: QuorumCluster, secret_files: Secrets
) -> None:
    """Idle replicas and monitors use all connections that they can get, on every safekeeper."""
    others = DEFAULT_LIMITS.connections_max - DEFAULT_LIMITS.connections_reserved
    with ExitStack() as stack:
        for safekeeper in secured.safekeepers:
            crowd = [
                connection
                for user in ("reader", "watcher")
                for connection in crowd_of(safekeeper, secret_files.conninfo(user=user))
            ]
            for connection in crowd:
                stack.enter_context(closing(connection))
            assert len(crowd) == others
        secured.proposer.kill()
        secured.proposer.start()
        secured.proposer.wait_streaming(TIMEOUT)
        secured.postgres.execute("CREATE TABLE in_a_crowd (a int)")
        wait_until(
            lambda: secured.proposer.status()["quorum"]["connected"] == 3, TIMEOUT, "all members"
        )
        for safekeeper in secured.safekeepers:
            for user in ("reader", "watcher"):
                assert not crowd_of(safekeeper, secret_files.conninfo(user=user))


def crowd_of(safekeeper: SafekeeperProcess, conninfo: str) -> list[psycopg.Connection]:
    """As many connections as are accepted."""
    crowd = []
    while True:
        try:
            crowd.append(connect(safekeeper, make_conninfo(conninfo, password=PASSWORD)))
        except psycopg.OperationalError as error:
            if not re.search("too many connections|connection slots are reserved", str(error)):
                raise
            return crowd


def test_the_http_ports_demand_tls_and_the_token(
    secured: QuorumCluster, secret_files: Secrets
) -> None:
    for service in (secured.safekeepers[0], secured.proposer):
        address = service.http_address
        assert https_get(address, "/healthz", secret_files, None)[0] == 200
        for path in ("/status", "/metrics"):
            assert https_get(address, path, secret_files, None)[0] == UNAUTHORIZED
            for wrong in ("wrong", "", TOKEN[:-1], f"{TOKEN}0", TOKEN.upper(), "\u00e9"):
                assert https_get(address, path, secret_files, wrong)[0] == UNAUTHORIZED
            assert https_get(address, path, secret_files)[0] == 200
        with pytest.raises(ConnectionError):  # no HTTP answer at all
            http_get(address, "/healthz")


# ---- settings


def test_by_default_nothing_listens_beyond_this_machine() -> None:
    """Every option of every command that names an address to listen on."""
    defaults = dict(listening_defaults(cli, click.Context(cli), "sk"))
    print(defaults)
    assert {"sk safekeeper run --listen", "sk safekeeper run --http", "sk attach --http"} <= set(
        defaults
    )
    for option, address in defaults.items():
        host = address.rpartition(":")[0]
        assert ipaddress.ip_address(host).is_loopback, option


def listening_defaults(
    command: click.Command, context: click.Context, name: str
) -> Iterator[tuple[str, str]]:
    for parameter in command.params:
        # Without a default no port listens unless the option is given.
        default = parameter.get_default(context)
        if isinstance(parameter.type, HostPort) and isinstance(default, str):
            yield f"{name} {parameter.opts[0]}", default
    if isinstance(command, click.Group):
        for word in command.list_commands(context):
            inner = command.get_command(context, word)
            assert inner is not None
            yield from listening_defaults(inner, click.Context(inner), f"{name} {word}")


@pytest.mark.parametrize(
    ("arguments", "exit_code", "sentence"),
    [
        (["--tls-cert", "cert.pem"], 2, "give both --tls-cert and --tls-key"),
        (["--tls-cert", "no.pem", "--tls-key", "no.pem"], 1, "could not load the TLS certificate"),
        (["--tls-client-ca", "ca.pem"], 2, "--tls-client-ca needs --tls-cert and --tls-key"),
        (["--user-file", "no-such-file"], 1, 'user file "no-such-file": could not be read'),
        (["--user-file", "plain"], 1, "line 2: expected user:role[,role]:SCRAM-SHA-256$"),
        (["--http-token-file", "no-such-file"], 1, "No such file or directory"),
        (["--http-token-file", "plain"], 1, "holds no token"),
    ],
    ids=[
        "half a pair",
        "no certificate",
        "half client certificates",
        "no user file",
        "a password in plain text",
        "no token file",
        "no token",
    ],
)
def test_a_safekeeper_that_cannot_be_secured_does_not_start(
    tmp_path: Path, arguments: list[str], exit_code: int, sentence: str
) -> None:
    plain = tmp_path / "plain"
    plain.touch(mode=0o600)
    plain.write_text(f"# users\n{USER}:{PASSWORD}\n")
    arguments = [str(plain) if word == "plain" else word for word in arguments]
    done = run_program(
        [
            *(*SK, "safekeeper", "run", "--id", "1", "--data-dir", tmp_path / "data"),
            *("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", *arguments),
        ],
        check=False,
        timeout=TIMEOUT,
    )
    assert done.returncode == exit_code
    assert sentence in done.stderr
    assert PASSWORD not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
