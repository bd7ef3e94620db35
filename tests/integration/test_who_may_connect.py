"""One safekeeper with real libpq clients: roles, client certificates, reloads, limits."""

from __future__ import annotations

import http.client
import json
import re
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
import trustme
from psycopg import pq
from psycopg.conninfo import make_conninfo
from sk_command import assert_refused, sk

from quorum_wal.access.admission import DEFAULT_LIMITS as LIMITS
from quorum_wal.cli.output import ExitCode
from quorum_wal.pg_fixtures.processes import SK, ServiceProcess
from quorum_wal.pg_fixtures.safekeeper import READY_TIMEOUT, SafekeeperProcess
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pgwire.auth import make_verifier
from quorum_wal.pgwire.messages import Query, SaslInitialResponse
from quorum_wal.pgwire.startup import SSLRequest, StartupMessage
from quorum_wal.safekeeper.service import STOP_TIMEOUT_SECONDS
from quorum_wal.telemetry.status_server import HTTP_CONNECTIONS_MAX

TIMEOUT = 120.0
PASSWORD = "correct horse"
TOKEN = "0123456789-open-sesame"
VERIFIER = str(make_verifier(PASSWORD, b"0123456789abcdef", 4))
USERS = {"pusher": "proposer", "reader": "replica", "watcher": "monitor", "root": "admin"}
COMMANDS = {
    "START_WAL_PUSH": {"pusher", "root"},
    "CREATE_TIMELINE": {"pusher", "root"},
    "START_REPLICATION 0/1000000 (node_id '1/00000000000000000000000000000000')": {
        "pusher",
        "root",
    },
    "DELETE_TIMELINE (tenant_id 'x')": {"root"},
    "FORGET_PAGESERVER (tenant_id 'x')": {"root"},
    "START_REPLICATION 0/1000000": {"reader", "root"},
    "IDENTIFY_SYSTEM": {"reader", "root"},
    "BASE_BACKUP": {"reader", "root"},
    "LIST_TIMELINES": {"pusher", "watcher", "root"},
    "IDENTIFY_SAFEKEEPER": set(USERS),
}


class Folder:
    """The files of one installation; they can be changed while it runs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.authority = trustme.CA()
        self.authority.cert_pem.write_to_path(str(path / "ca.pem"))
        self.write_certificate(self.authority)
        self.write_users()
        self.write_secret("token", TOKEN)

    def write_secret(self, name: str, text: str) -> None:
        """Write the whole file, with the mode of a secret."""
        replacement = self.path / f"{name}.new"
        replacement.touch(mode=0o600)
        replacement.write_text(text)
        replacement.rename(self.path / name)

    def write_certificate(self, authority: trustme.CA, until: datetime | None = None) -> None:
        issued = authority.issue_cert("127.0.0.1", "localhost", not_after=until)
        self.write_secret("key.pem", issued.private_key_pem.bytes().decode())
        issued.cert_chain_pems[0].write_to_path(str(self.path / "cert.pem"))

    def write_users(self, users: dict[str, str] = USERS) -> None:
        lines = [f"{user}:{role}:{VERIFIER}\n" for user, role in users.items()]
        self.write_secret("users", "".join(lines))

    def client_certificate(self, name: str, authority: trustme.CA | None = None) -> dict[str, str]:
        """The libpq settings that present a certificate with this name."""
        issued = (authority or self.authority).issue_cert(f"{name}@x", common_name=name)
        key, cert = self.path / f"{name}.key", self.path / f"{name}.crt"
        issued.private_key_pem.write_to_path(str(key))
        issued.cert_chain_pems[0].write_to_path(str(cert))
        key.chmod(0o600)
        return {"sslkey": str(key), "sslcert": str(cert)}

    @property
    def arguments(self) -> list[str]:
        path = self.path
        return [
            *("--tls-cert", f"{path}/cert.pem", "--tls-key", f"{path}/key.pem"),
            *("--user-file", f"{path}/users", "--http-token-file", f"{path}/token"),
        ]


class Keeper(SafekeeperProcess):
    """A secured safekeeper; `connect` uses libpq."""

    def __init__(self, folder: Folder, *more: str) -> None:
        super().__init__(1, folder.path / "data", arguments=[*folder.arguments, *more])
        self.folder = folder

    def wait_ready(self, timeout: float = READY_TIMEOUT) -> None:
        self.wait_until(lambda: "safekeeper started" in self.log_text(), timeout, "its start")

    def connect(self, user: str, password: str = PASSWORD, **more: str) -> psycopg.Connection:
        host, _, port = self.address.rpartition(":")
        settings = {
            **dict(host=host, port=port, user=user, password=password, dbname="replication"),
            **dict(replication="true", sslmode="verify-full", gssencmode="disable"),
            "sslrootcert": str(self.folder.path / "ca.pem"),
            **more,
        }
        return psycopg.connect(make_conninfo("", **settings), autocommit=True)

    def sqlstate(self, user: str, command: str) -> str:
        """The SQLSTATE of the answer to one command; "" without an error."""
        with closing(self.connect(user)) as connection:
            result = connection.pgconn.exec_(command.encode())
            if result.status != pq.ExecStatus.FATAL_ERROR:
                return ""
            return (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()

    def refusal(self, user: str, **more: str) -> str:
        """The reason why a connection is refused; "" if it is accepted."""
        try:
            self.connect(user, **more).close()
        except psycopg.OperationalError as error:
            return str(error)
        return ""


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


@pytest.fixture
def keeper(folder: Folder) -> Iterator[Keeper]:
    with Keeper(folder) as keeper:
        yield keeper


@pytest.fixture
def keeper_with(folder: Folder) -> Iterator[Callable[..., Keeper]]:
    with ExitStack() as stack:
        yield lambda *more: stack.enter_context(Keeper(folder, *more))


# ---- roles


def test_the_rights_of_each_role(keeper: Keeper) -> None:
    for command, allowed in COMMANDS.items():
        for user in USERS:
            is_denied = keeper.sqlstate(user, command) == "42501"
            assert is_denied == (user not in allowed), (user, command)
    with closing(keeper.connect("watcher")) as connection:
        result = connection.pgconn.exec_(b"START_WAL_PUSH")
        assert (
            'permission denied for user "watcher": START_WAL_PUSH needs the role proposer or admin'
            in result.error_message.decode()
        )
        assert connection.pgconn.exec_(b"LIST_TIMELINES").status == pq.ExecStatus.TUPLES_OK


def test_changed_users_apply_from_the_next_command_on(keeper: Keeper) -> None:
    with closing(keeper.connect("watcher")) as watcher, closing(keeper.connect("root")) as root:
        keeper.folder.write_users({"watcher": "replica", "new": "monitor"})
        denied = watcher.pgconn.exec_(b"LIST_TIMELINES")
        assert denied.error_field(pq.DiagnosticField.SQLSTATE) == b"42501"
        denied = root.pgconn.exec_(b"LIST_TIMELINES")
        assert denied.error_field(pq.DiagnosticField.SQLSTATE) == b"42501"
    assert keeper.sqlstate("new", "LIST_TIMELINES") == ""
    assert 'password authentication failed for user "root"' in keeper.refusal("root")

    (keeper.folder.path / "users").write_text("new:monitor:hunter2\n")
    assert keeper.sqlstate("new", "LIST_TIMELINES") == ""
    assert keeper.sqlstate("new", "LIST_TIMELINES") == ""
    log = keeper.log_text()
    assert log.count("changed files are unusable") == 1
    assert "hunter2" not in log
    assert VERIFIER not in log


@pytest.mark.parametrize("after", ["startup", "first message"])
def test_no_command_before_authentication(keeper: Keeper, after: str) -> None:
    host, _, port = keeper.address.rpartition(":")
    context = ssl.create_default_context(cafile=keeper.folder.path / "ca.pem")
    context.set_alpn_protocols(["postgresql"])
    plain = socket.create_connection((host, int(port)), TIMEOUT)
    sent = StartupMessage({"user": "root", "replication": "true"}).encode()
    if after == "first message":
        sent += SaslInitialResponse("SCRAM-SHA-256", b"n,,n=,r=nonce").encode()
    with context.wrap_socket(plain, server_hostname=host) as sock:
        sock.sendall(sent + Query("LIST_TIMELINES").encode())
        answer = b"".join(iter(lambda: sock.recv(4096), b""))
    assert b"C08P01\0" in answer
    for kind in (b"Z\0\0\0\5", b"R\0\0\0\x08\0\0\0\0", b"T\0\0"):  # ready, accepted, rows
        assert kind not in answer


# ---- certificates


@pytest.mark.parametrize("negotiation", ["postgres", "direct"])
def test_a_new_certificate_needs_no_restart(keeper: Keeper, negotiation: str) -> None:
    def refusal() -> str:
        return keeper.refusal("watcher", sslnegotiation=negotiation, channel_binding="require")

    assert refusal() == ""
    other = trustme.CA()
    with closing(keeper.connect("watcher")) as connection:
        keeper.folder.write_certificate(other)
        assert "certificate verify failed" in refusal()
        other.cert_pem.write_to_path(str(keeper.folder.path / "ca.pem"))
        assert refusal() == ""
        assert https_status(keeper) == 401
        # Existing connections continue.
        result = connection.pgconn.exec_(b"LIST_TIMELINES")
        assert result.status == pq.ExecStatus.TUPLES_OK

    (keeper.folder.path / "cert.pem").write_text("broken")
    assert refusal() == ""
    assert https_status(keeper) == 401
    keeper.folder.authority.issue_cert("127.0.0.1").private_key_pem.write_to_path(
        str(keeper.folder.path / "key.pem")
    )
    assert refusal() == ""
    assert "changed files are unusable, the old content stays in force" in keeper.log_text()
    keeper.folder.write_certificate(other)
    assert refusal() == ""


def test_a_new_token_needs_no_restart(keeper: Keeper) -> None:
    assert https_status(keeper, TOKEN) == 200
    (keeper.folder.path / "token").write_text("another-token-0123456789")
    assert https_status(keeper, TOKEN) == 401
    assert https_status(keeper, "another-token-0123456789") == 200


def https_status(keeper: Keeper, token: str = "") -> int:
    return https_get(keeper, "/status", token)[0]


def https_get(keeper: Keeper, path: str, token: str) -> tuple[int, str]:
    context = ssl.create_default_context(cafile=keeper.folder.path / "ca.pem")
    connection = http.client.HTTPSConnection(keeper.http_address, timeout=TIMEOUT, context=context)
    with closing(connection):
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        return response.status, response.read().decode()


def test_client_certificates(keeper_with: Callable[..., Keeper], folder: Folder) -> None:
    keeper = keeper_with("--tls-client-ca", str(folder.path / "ca.pem"))
    own = folder.client_certificate("watcher")
    assert keeper.refusal("watcher", **own) == ""
    assert keeper.refusal("watcher", sslnegotiation="direct", **own) == ""
    none = {"sslcert": "", "sslcertmode": "disable"}
    assert "connection requires a valid client certificate" in keeper.refusal("watcher", **none)
    assert 'certificate authentication failed for user "reader"' in keeper.refusal("reader", **own)
    wrong = keeper.refusal("watcher", password="guess", **own)
    assert 'password authentication failed for user "watcher"' in wrong
    foreign = folder.client_certificate("root", trustme.CA())
    assert "unknown ca" in keeper.refusal("root", **foreign)
    assert https_status(keeper, TOKEN) == 200  # a scraper needs none


# ---- invalid files


SECRETS = {"key.pem": "TLS certificate", "users": "user file", "token": "HTTP port"}


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_that_others_can_read_is_refused_at_the_start(folder: Folder, name: str) -> None:
    (folder.path / name).chmod(0o644)
    run = ("safekeeper", "run", "--id", "1", "--data-dir", folder.path / "data")
    done = sk(*run, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", *folder.arguments)
    sentence = f'"{folder.path / name}" has group or world access: its mode is 0644'
    assert SECRETS[name] in done.stderr
    assert_refused(done, ExitCode.FAILED, sentence, "with mode 0600 or less, or to root, with mode")


@pytest.mark.parametrize("content", ["", "# nobody\n\n"])
def test_a_user_file_without_users_is_refused_at_the_start(folder: Folder, content: str) -> None:
    folder.write_secret("users", content)
    run = ("safekeeper", "run", "--id", "1", "--data-dir", folder.path / "data")
    done = sk(*run, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", *folder.arguments)
    assert_refused(done, ExitCode.FAILED, "it has no users", "sk user add")


def test_an_emptied_user_file_is_not_used(keeper: Keeper) -> None:
    """A file that others can read, or half a file, is not used either: the old contents stay in
    force, and this is reported."""
    users = keeper.folder.path / "users"
    whole = users.read_text()
    for reason, damage in (
        ("it has no users", lambda: users.write_text("")),
        ("line 2", lambda: users.write_text(whole[: len(whole) // 2])),
        ("could not be read: No such file", users.unlink),
        ("its mode is 0606", lambda: (keeper.folder.write_users(), users.chmod(0o606))),
    ):
        damage()
        with closing(keeper.connect("root")) as connection:
            result = connection.pgconn.exec_(b"LIST_TIMELINES")
            assert result.status == pq.ExecStatus.TUPLES_OK
        unusable = json.loads(https_get(keeper, "/status", TOKEN)[1])["unusable_files"]
        assert list(unusable) == [str(users)]
        assert reason in unusable[str(users)]
        assert gauge(https_get(keeper, "/metrics", TOKEN)[1], "sk_unusable_files") == 1
        assert reason in keeper.log_text()
    keeper.folder.write_users({"root": "admin"})
    assert "password authentication failed" in keeper.refusal("watcher")
    assert gauge(https_get(keeper, "/metrics", TOKEN)[1], "sk_unusable_files") == 0


@pytest.mark.parametrize("name", ["key.pem", "token"])
def test_a_secret_that_becomes_readable_for_others_is_not_reread(keeper: Keeper, name: str) -> None:
    secret = keeper.folder.path / name
    secret.chmod(0o604)
    assert keeper.refusal("root") == ""
    assert https_status(keeper, TOKEN) == 200
    assert "has group or world access: its mode is 0604" in keeper.log_text()
    secret.chmod(0o600)
    assert keeper.refusal("root") == ""
    unusable = json.loads(https_get(keeper, "/status", TOKEN)[1])["unusable_files"]
    assert unusable == {}


# ---- limits


def test_too_many_connections_are_refused(keeper_with: Callable[..., Keeper]) -> None:
    keeper = keeper_with(
        *("--connections-max", "3", "--connections-per-user-max", "2"),
        *("--connections-reserved", "0"),
    )
    with ExitStack() as stack:
        for user in ("watcher", "watcher"):
            stack.enter_context(closing(keeper.connect(user)))
        assert 'too many connections for role "watcher"' in keeper.refusal("watcher")
        stack.enter_context(closing(keeper.connect("reader")))
        assert "sorry, too many clients already" in keeper.refusal("root")
    wait_until(lambda: not keeper.refusal("watcher"), TIMEOUT, "places to be free again")
    assert "sqlstate=53300" in keeper.log_text()


def test_idle_clients_leave_places_for_the_proposer(keeper: Keeper) -> None:
    """A hundred connections of a replica and of a monitor each, or as many as are accepted."""
    refusals = []
    with ExitStack() as crowd:
        for user in ("reader", "watcher"):
            for _ in range(LIMITS.connections_per_user_max):
                try:
                    crowd.enter_context(closing(keeper.connect(user)))
                except psycopg.OperationalError:
                    break
            refusals.append(keeper.refusal(user))
        assert keeper.sqlstate("pusher", "START_WAL_PUSH") == "22023"  # no timeline is named
        assert keeper.sqlstate("root", "LIST_TIMELINES") == ""
        assert 'too many connections for role "reader"' in refusals[0]
        assert "remaining connection slots are reserved for users with the role" in refusals[1]
        metrics = https_get(keeper, "/metrics", TOKEN)[1]
        others = LIMITS.connections_max - LIMITS.connections_reserved
        replicas = gauge(metrics, r'sk_connections_of_role\{role="replica"\}')
        monitors = gauge(metrics, r'sk_connections_of_role\{role="monitor"\}')
        assert replicas == LIMITS.connections_per_user_max
        assert replicas + monitors == gauge(metrics, "sk_connections") == others
    assert "sqlstate=53300" in keeper.log_text()


def test_guessing_is_refused_and_affects_only_that_user(keeper: Keeper) -> None:
    """Tries come back with time, so a slow machine needs some more guesses."""
    for _ in range(LIMITS.failed_tries_max):
        assert "password authentication failed" in keeper.refusal("watcher", password="guess")

    def is_refused() -> bool:
        keeper.refusal("watcher", password="guess")
        refusal = keeper.refusal("watcher")
        return 'too many failed authentication attempts of user "watcher"' in refusal

    wait_until(is_refused, TIMEOUT, "the right password to be refused")
    assert keeper.refusal("root") == ""
    assert "guess" not in keeper.log_text()


def test_strangers_block_no_user(keeper: Keeper) -> None:
    """More than the limit, silent in every phase of a connection."""
    tls_record = b"\x16\x03\x01\x02\x00\x01"
    ssl_request = SSLRequest().encode()
    with ExitStack() as crowd, closing(keeper.connect("watcher")) as connection:
        for number in range(3 * LIMITS.unauthenticated_max):
            sock = crowd.enter_context(dial(keeper.address))
            sock.sendall((b"", b"\0", tls_record, ssl_request)[number % 4])
        assert keeper.refusal("root") == ""
        result = connection.pgconn.exec_(b"LIST_TIMELINES")
        assert result.status == pq.ExecStatus.TUPLES_OK
        metrics = https_get(keeper, "/metrics", TOKEN)[1]
        assert gauge(metrics, "sk_connections") == 1
        assert 0 < gauge(metrics, "sk_connections_unauthenticated") <= LIMITS.unauthenticated_max
        assert gauge(metrics, "sk_connections_evicted_total") >= 2 * LIMITS.unauthenticated_max
    assert "Traceback" not in keeper.log_text()


def test_strangers_do_not_block_the_pages(keeper: Keeper) -> None:
    tls_record = b"\x16\x03\x01\x02\x00\x01"
    assert https_status(keeper, TOKEN) == 200  # the service serves its pages while they are loaded
    with ExitStack() as stack:
        crowd = [stack.enter_context(dial(keeper.http_address)) for _ in range(150)]
        for sock in crowd[::2]:
            sock.sendall(tls_record)
        assert https_status(keeper, TOKEN) == 200
        surplus = len(crowd) - HTTP_CONNECTIONS_MAX
        wait_until(lambda: all(map(is_cut_off, crowd[:surplus])), TIMEOUT, "the oldest to go")
        assert not any(map(is_cut_off, crowd[surplus + 5 :]))
    assert "Traceback" not in keeper.log_text()


def test_strangers_do_not_delay_a_stop(keeper: Keeper) -> None:
    assert https_status(keeper, TOKEN) == 200
    with ExitStack() as crowd:
        for _ in range(LIMITS.unauthenticated_max // 2):
            for address in (keeper.address, keeper.http_address):
                crowd.enter_context(dial(address))
        assert https_status(keeper, TOKEN) == 200
        keeper.terminate(STOP_TIMEOUT_SECONDS)
    assert "Traceback" not in keeper.log_text()


def dial(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), TIMEOUT)


def is_cut_off(sock: socket.socket) -> bool:
    sock.setblocking(False)
    try:
        return sock.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def gauge(metrics: str, name: str) -> float:
    found = re.search(rf"^{name} (\S+)$", metrics, re.MULTILINE)
    assert found is not None, metrics
    return float(found[1])


# ---- no protection


def listen(tmp_path: Path, *more: object) -> Any:
    run = ("safekeeper", "run", "--id", "1", "--data-dir", tmp_path / "data")
    return sk(*run, *more)


def test_an_open_port_must_be_requested(tmp_path: Path, folder: Folder) -> None:
    here, everywhere = "127.0.0.1:0", "0.0.0.0:0"
    done = listen(tmp_path, "--listen", everywhere, "--http", here)
    assert_refused(
        done,
        ExitCode.USAGE,
        "--listen 0.0.0.0 can be reached from other machines, without --tls-cert and --user-file",
        "--insecure",
    )
    tls = ("--tls-cert", tmp_path / "cert.pem", "--tls-key", tmp_path / "key.pem")
    done = listen(tmp_path, "--listen", everywhere, "--http", everywhere, *tls)
    sentence = "without --user-file; --http 0.0.0.0 can be reached from other machines, without"
    assert_refused(done, ExitCode.USAGE, sentence, "Give --user-file, --http-token-file; or")
    done = listen(tmp_path, "--listen", "[::]:0", "--http", here)
    assert_refused(done, ExitCode.USAGE, "--listen :: can be reached", "--insecure")
    assert not (tmp_path / "data").exists()
    attach = ("attach", "--primary", "host=/nowhere", "--safekeepers", "127.0.0.1:1")
    done = sk(*attach, "--http", everywhere)
    assert_refused(done, ExitCode.USAGE, "without --tls-cert and --http-token-file", "--insecure")


@pytest.mark.parametrize("protection", ["--insecure", "all of it"])
def test_an_open_port_that_is_requested_or_protected(folder: Folder, protection: str) -> None:
    more = ["--insecure"] if protection == "--insecure" else folder.arguments
    service = ServiceProcess(
        [*SK, "safekeeper", "run", "--id", "1", "--data-dir", folder.path / "data",
         "--listen", "0.0.0.0:0", "--http", "0.0.0.0:0", *more],
        log_path=folder.path / "log",
    )  # fmt: skip
    with service:
        service.wait_until(lambda: "safekeeper started" in service.log_text(), TIMEOUT, "a start")
