"""Access to the coordinator's port: TLS, SCRAM, roles, with psycopg."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
import trustme
from verdict_port import DEADLINE_SECONDS, GID, Port, running

from quorum_wal.access.access import AccessConfig
from quorum_wal.access.admission import ConnectionLimits
from quorum_wal.access.errors import AccessError
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pgwire.auth import make_verifier
from quorum_wal.pgwire.messages import Query
from quorum_wal.pgwire.startup import SSLRequest, StartupMessage
from quorum_wal.pgwire.tls import TlsFiles
from quorum_wal.walproposer.errors import WalProposerError
from quorum_wal.walproposer.qsync.verbs import WORDS
from quorum_wal.walproposer.qsync.verdict_server import PORT_LIMITS, PortConfig

TLS_RECORD_BYTES = 16 * 1024
PASSWORD = "correct horse"
VERIFIER = str(make_verifier(PASSWORD, b"0123456789abcdef", 4))
USERS = {"app": "client", "watcher": "monitor", "root": "admin", "primary1": "proposer"}
ALLOWED = {
    "ADMIT": {"app", "root"},
    "WAIT_LSN 0/1 TIMEOUT 0": {"app", "root"},
    "BARRIER 0/1 TIMEOUT 0": {"app", "root"},
    f"OUTCOME '{GID}' LSN 0/1": {"app", "root"},
    "QSYNC_STATUS": {"watcher", "root"},
    "QSYNC_LIST": {"watcher", "root"},
    f"RESOLVE '{GID}' COMMIT": {"root"},
}


class Files:
    def __init__(self, path: Path) -> None:
        authority = trustme.CA()
        issued = authority.issue_cert("127.0.0.1")
        self.ca, self.users = path / "ca.pem", path / "users"
        self.tls = TlsFiles(path / "cert.pem", path / "key.pem", None)
        authority.cert_pem.write_to_path(str(self.ca))
        issued.cert_chain_pems[0].write_to_path(str(self.tls.certificate))
        self.tls.key.touch(0o600)
        issued.private_key_pem.write_to_path(str(self.tls.key))
        self.write_users(USERS)

    def write_users(self, users: dict[str, str]) -> None:
        replacement = self.users.with_suffix(".new")
        replacement.touch(0o600)
        replacement.write_text("".join(f"{u}:{role}:{VERIFIER}\n" for u, role in users.items()))
        replacement.rename(self.users)

    def config(self, limits: ConnectionLimits = PORT_LIMITS) -> PortConfig:
        return PortConfig("127.0.0.1", 0, AccessConfig(self.tls, self.users, limits))


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
def port(files: Files) -> Iterator[Port]:
    with running(files.config()) as port:
        yield port


def connect(port: Port, files: Files, **settings: str) -> psycopg.Connection:
    secure = {"sslmode": "verify-full", "sslrootcert": str(files.ca), "password": PASSWORD}
    return port.connect(**{**secure, "channel_binding": "require", **settings})


@pytest.mark.parametrize("user", USERS)
def test_each_role_may_use_its_verbs(port: Port, files: Files, user: str) -> None:
    assert {command.split()[0] for command in ALLOWED} == set(WORDS.values())
    with connect(port, files, user=user) as connection:
        assert connection.pgconn.ssl_in_use
        for command, users in ALLOWED.items():
            if user in users:
                connection.execute(command)
                continue
            for prepare in (False, True):
                with pytest.raises(psycopg.errors.InsufficientPrivilege) as caught:
                    connection.execute(command, prepare=prepare)
                word = command.split()[0]
                said = f'permission denied for user "{user}": {word} needs the role '
                assert str(caught.value.diag.message_primary).startswith(said)
                assert "sk user add" in str(caught.value.diag.message_hint)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"password": "wrong"}, "password authentication failed"),
        ({"user": "stranger"}, "password authentication failed"),
        ({"sslmode": "disable", "channel_binding": "disable"}, "this server requires TLS"),
    ],
)
def test_a_client_without_authentication_is_refused(
    port: Port, files: Files, settings: dict[str, str], sentence: str
) -> None:
    with pytest.raises(psycopg.OperationalError, match=sentence):
        connect(port, files, **settings)
    assert port.verdicts.asked == []


def test_a_user_that_is_removed_can_ask_nothing_more(port: Port, files: Files) -> None:
    with connect(port, files) as connection:
        connection.execute("ADMIT")
        files.write_users({"other": "client"})
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("ADMIT")


def test_guessing_closes_the_door(files: Files) -> None:
    limits = ConnectionLimits(connections_max=9, connections_reserved=1, failed_tries_max=2)
    with running(files.config(limits)) as port:
        for _ in range(2):
            with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
                connect(port, files, password="wrong")
        with pytest.raises(psycopg.OperationalError, match="too many failed authentication"):
            connect(port, files)


def test_over_tls_a_wait_is_answered_canceled_and_left(port: Port, files: Files) -> None:
    wait = "WAIT_LSN 0/10 TIMEOUT 60000"
    with ThreadPoolExecutor() as threads, connect(port, files) as connection:
        for number, parameters in enumerate([None, (), None], 1):
            found = threads.submit(connection.execute, wait, parameters)
            wait_until(lambda: port.verdicts.waiting == 1, DEADLINE_SECONDS, "the question")
            if number < 3:
                connection.cancel_safe()
                with pytest.raises(psycopg.errors.QueryCanceled):
                    found.result(DEADLINE_SECONDS)
        port.verdicts.advance(0x10)
        assert found.result(DEADLINE_SECONDS).fetchone() == ("confirmed", "0/10", 7)
        threads.submit(connection.execute, "WAIT_LSN 0/20 TIMEOUT 60000")
        wait_until(lambda: port.verdicts.waiting == 1, DEADLINE_SECONDS, "the question")
        connection.pgconn.finish()
        wait_until(lambda: port.verdicts.waiting == 0, DEADLINE_SECONDS, "its end")


def test_over_tls_large_answers_and_questions_in_a_row(port: Port, files: Files) -> None:
    with connect(port, files) as connection, connection.pipeline():
        found = [connection.execute("ADMIT") for _ in range(500)]
        assert {result.fetchone() for result in found} == {(7, 0)}


def test_over_tls_what_is_sent_ahead_in_one_record_is_all_answered(files: Files) -> None:
    """The kernel does not know what TLS has already read from it."""
    config = PortConfig("127.0.0.1", 0, AccessConfig(files.tls, None, PORT_LIMITS))
    context = ssl.create_default_context(cafile=files.ca)
    wait, admit = Query("WAIT_LSN 0/10 TIMEOUT 60000").encode(), Query("ADMIT").encode()
    count = TLS_RECORD_BYTES // len(admit)
    with running(config) as port, socket.create_connection(port.address) as plain:
        plain.sendall(SSLRequest().encode())
        assert plain.recv(1) == b"S"
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as client:
            client.settimeout(DEADLINE_SECONDS)
            client.sendall(StartupMessage({"user": "app"}).encode())
            client.sendall(wait)
            wait_until(lambda: port.verdicts.waiting == 1, DEADLINE_SECONDS, "the question")
            client.sendall(b"H\0\0\0\4" * 100)  # so that not all of the record fits
            client.sendall(admit * count)
            ours = port.only_client()
            assert isinstance(ours, ssl.SSLSocket)
            wait_until(lambda: port.reads_no_more(ours), DEADLINE_SECONDS, "a part of the record")
            assert ours.pending(), "the rest of the record is within TLS"
            port.verdicts.advance(0x10)
            answers = b""
            while answers.count(b"ADMIT 1\0") < count:
                data = client.recv(1 << 16)
                assert data
                answers += data


def test_files_that_cannot_be_used_are_named(files: Files) -> None:
    files.users.write_text("alice\n")
    with pytest.raises(AccessError, match="line 1: expected user:role"), running(files.config()):
        pytest.fail("it runs")


def test_an_address_in_use_is_named(port: Port) -> None:
    config = PortConfig("127.0.0.1", port.address[1])
    with pytest.raises(WalProposerError, match="could not listen on"), running(config):
        pytest.fail("it runs")
