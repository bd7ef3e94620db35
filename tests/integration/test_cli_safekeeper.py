"""`sk safekeeper`: data directories and addresses of other processes; users and TLS."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
import trustme
from replication_client import ReplicationClient
from sk_command import Done, assert_refused, sk, sk_json

from quorum_wal.pg_fixtures.http_status import http_get, http_get_status
from quorum_wal.pg_fixtures.ports import free_port
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.processes import SK, ServiceProcess
from quorum_wal.pg_fixtures.proposer import ProposerProcess
from quorum_wal.pg_fixtures.safekeeper import SafekeeperProcess
from quorum_wal.pg_fixtures.standby import replica_conninfo

TIMEOUT = 120.0
PASSWORD = "correct horse"
TOKEN = "battery-staple-0123456789"


def run(data_dir: Path, *more: object, id: int = 1) -> Done:
    """Run one that must exit at once."""
    ports = ("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0")
    return sk("safekeeper", "run", "--id", id, "--data-dir", data_dir, *ports, *more)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_data_directory_is_used_by_one_process_with_its_own_id(tmp_path: Path) -> None:
    data_dir = tmp_path / "sk"
    with SafekeeperProcess(1, data_dir) as safekeeper:
        before = contents(data_dir)
        assert_refused(run(data_dir), 1, "is in use by another process", "its own --data-dir")
        http = ("--http", safekeeper.http_address)
        busy = run(tmp_path / "b", *http)
        assert_refused(busy, 1, f"could not listen on http {safekeeper.http_address}", "--http")
        busy = run(tmp_path / "c", "--listen", safekeeper.address)
        assert_refused(busy, 1, f"could not listen on {safekeeper.address}", "another --listen")
        assert safekeeper.status()["timelines"] == []
    done = run(data_dir, id=2)
    assert_refused(done, 1, "belongs to safekeeper 1, not 2", "Start it with --id 1")
    assert contents(data_dir) == before


def test_safekeepers_of_one_machine_find_their_http_ports(tmp_path: Path) -> None:
    """Without --http; each safekeeper reports its port to clients, and `sk status` shows it."""
    with ExitStack() as running:
        found = {}
        for id in (1, 2):
            listen = f"127.0.0.1:{free_port()}"
            words = ("safekeeper", "run", "--id", str(id), "--listen", listen)
            log_path = tmp_path / f"{id}.log"
            safekeeper = running.enter_context(
                ServiceProcess([*SK, *words, "--data-dir", tmp_path / str(id)], log_path=log_path)
            )
            safekeeper.wait_until(partial(is_started, log_path), TIMEOUT, "its start")
            with ReplicationClient(replica_conninfo([listen])) as client:
                row = [(value or b"").decode() for value in client.row("IDENTIFY_SAFEKEEPER")]
            found[id] = row[2]
            page = http_get_status(row[2])
            assert (row[0], page["safekeeper_id"], page["http"]) == (str(id), id, row[2])
        ports = [int(http.rpartition(":")[2]) for http in found.values()]
        assert ports[0] < ports[1]
        assert all(port % 2 == 0 for port in ports)  # the odd ports belong to proposers
        assert "http port in use, another taken" in log_path.read_text()


def is_started(log_path: Path) -> bool:
    return "safekeeper started" in log_path.read_text()


def test_a_data_directory_of_another_release_or_safekeeper(tmp_path: Path) -> None:
    identity = tmp_path / "sk" / "safekeeper.json"
    identity.parent.mkdir()
    (identity.parent / "lock").touch()
    identity.write_text('{"format": 99, "safekeeper_id": 1}')
    before = contents(tmp_path)
    assert_refused(run(identity.parent), 1, "has format 99, expected 2", "Another release")
    assert contents(tmp_path) == before

    identity.write_text("{")
    assert_refused(run(identity.parent), 1, f'could not read "{identity}"')

    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "precious").write_text("data")
    done = run(foreign)
    assert_refused(done, 1, "neither empty nor a safekeeper's data directory", "an empty or a new")
    assert (foreign / "precious").read_text() == "data"
    assert {path.name for path in foreign.iterdir()} <= {"precious", "lock"}

    assert_refused(run(foreign / "precious"), 1, "could not open data directory")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("alice:md5abc", "line 2: expected user:role[,role]:SCRAM-SHA-256$..."),
        ("alice:admin:md5abc", "line 2: invalid SCRAM verifier"),
        ("alice:king:SCRAM-SHA-256$1:a$b:c", "line 2: unknown role: expected proposer, replica"),
    ],
)
def test_a_broken_user_file(tmp_path: Path, line: str, sentence: str) -> None:
    user_file = tmp_path / "users"
    user_file.touch(mode=0o600)
    user_file.write_text(f"# users\n{line}\n")
    done = run(tmp_path / "sk", "--user-file", user_file)
    assert_refused(done, 1, sentence, f"sk user add {user_file} USER --role ROLE")
    assert "abc" not in done.stderr
    done = run(tmp_path / "sk", "--user-file", tmp_path / "none")
    assert_refused(done, 1, "No such file or directory", "sk user add")


def test_tls_and_passwords_on_every_port(
    tmp_path: Path, postgres_factory: Callable[..., Postgres]
) -> None:
    """A cluster of one safekeeper that requires authentication; `sk status` with the secrets shows
    all of it."""
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1", "localhost")
    authority.cert_pem.write_to_path(tmp_path / "root.pem")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    for secret in ("key.pem", "token"):
        (tmp_path / secret).touch(mode=0o600)
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    roles = ("--role", "proposer", "--role", "monitor")
    sk("user", "add", tmp_path / "users", "alice", *roles, stdin=PASSWORD)
    passfile = tmp_path / "passfile"
    passfile.write_text(f"*:*:*:alice:{PASSWORD}\n")
    passfile.chmod(0o600)
    access = (
        *("--tls-cert", tmp_path / "cert.pem", "--tls-key", tmp_path / "key.pem"),
        *("--http-token-file", tmp_path / "token"),
    )
    conninfo = f"user=alice passfile={passfile} sslmode=verify-full sslrootcert={tmp_path}/root.pem"

    postgres = postgres_factory()
    listen, http = (f"127.0.0.1:{free_port()}" for _ in range(2))
    safekeeper = ServiceProcess(
        [*SK, "safekeeper", "run", "--id", "1", "--data-dir", tmp_path / "sk",
         "--listen", listen, "--http", http, "--user-file", tmp_path / "users", *access],
        log_path=tmp_path / "sk.log",
    )  # fmt: skip
    proposer = ProposerProcess(
        postgres.dsn(),
        [listen],
        log_path=tmp_path / "proposer.log",
        configure=True,  # otherwise it is reported as not healthy after a while
        arguments=[*map(str, access), "--safekeeper-conninfo", conninfo],
    )
    token = ("--http-token-file", tmp_path / "token")
    members = ("--safekeepers", listen, "--safekeeper-conninfo")

    with safekeeper, proposer:
        safekeeper.wait_until(lambda: can_connect(listen), TIMEOUT, "it to listen")
        proposer.kill()  # it may have started too early
        proposer.start()

        def status() -> Done | None:
            done = sk("status", *members, conninfo, *token, "--json")
            return done if done.returncode == 0 and '"OK"' in done.stdout else None

        found = json.loads(proposer.wait_until(status, TIMEOUT, "all to be well").stdout)
        assert found["safekeepers"][0]["disk"]["free_bytes"] > 0
        (seen,) = found["timelines"][0]["proposers"]
        assert seen["http"] == f"https://{proposer.http_address}"
        assert seen["page"]["state"] == "streaming"
        without = sk_json("status", *members, conninfo)
        assert "requests a token: give --http-token-file" in without["safekeepers"][0]["error"]
        assert without["timelines"][0]["proposers"][0]["page"] is None

        for settings in (
            conninfo.replace("alice passfile", "bob passfile"),
            conninfo.replace(str(tmp_path / "root.pem"), "system"),
            "sslmode=disable",
            "user=alice password=wrong",
        ):
            (report,) = sk_json("status", *members, settings)["safekeepers"]
            assert not report["reachable"]
        for address in (http, proposer.http_address):
            with pytest.raises(ConnectionError):
                http_get(address, "/status")


def can_connect(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 1.0).close()
    except OSError:
        return False
    return True
