"""The arguments and variables of packaging/kubernetes/, run as processes on this machine.

Only paths, addresses and ports are replaced. Options, users, passwords, TLS, and the SQL of the
ConfigMap are those of the manifests.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
from kubernetes_manifests import (
    ROOT,
    Container,
    container_named,
    image_environment,
    read_manifests,
)
from secured_cluster import (
    PASSWORD,
    TIMEOUT,
    Secrets,
    SecuredProposer,
    SecuredSafekeeper,
    write_secrets,
)

from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.processes import SK
from quorum_wal.pg_fixtures.proposer import ProposerProcess
from quorum_wal.pg_fixtures.safekeeper import SafekeeperProcess
from quorum_wal.pg_fixtures.waiting import wait_until

PRIMARY_PASSWORD = "0123abcd"
SECRETS = {
    "walproposer/password": PRIMARY_PASSWORD,
    "proposer/safekeeper-password": f"'{PASSWORD}'",  # with spaces, unlike that of the page
    "postgres/password": "4567ef01",
}
PGDATA = "/var/lib/postgresql/data/pgdata"
SYNC = "SELECT application_name, sync_state FROM pg_stat_replication"


def replaced(text: str, by: Mapping[str, str]) -> str:
    for ours, theirs in by.items():
        text = text.replace(ours, theirs)
    return text


def files_of(secrets: Secrets) -> dict[str, str]:
    """The paths of the mounted Secrets, and their files here."""
    return {
        "/etc/sk/ca.crt": str(secrets.ca),
        "/etc/cnpg/ca.crt": str(secrets.ca),
        "/etc/sk/tls.crt": str(secrets.certificate),
        "/etc/sk/tls.key": str(secrets.key),
        "/etc/sk/users": str(secrets.user_file),
        "/etc/sk/token": str(secrets.token_file),
    }


class ManifestSafekeeper(SecuredSafekeeper):
    """The container `safekeeper` of the Pod with this index."""

    def __init__(self, index: int, data_dir: Path, secrets: Secrets) -> None:
        super().__init__(index, data_dir, secrets)
        container = container_named("safekeepers", "safekeeper")
        words = [replaced(word, files_of(secrets)) for word in container.arguments]
        self.program = [*SK, *words]
        self.env = {
            **image_environment(),
            **container.environment(SECRETS, index),
            "SK_SAFEKEEPER_RUN_DATA_DIR": str(data_dir),
            "SK_SAFEKEEPER_RUN_LISTEN": self.address,
            "SK_SAFEKEEPER_RUN_HTTP": self.http_address,
        }


class ManifestProposer(ProposerProcess):
    """The container `proposer` of a file."""

    status = SecuredProposer.status

    def __init__(self, file: str, log_path: Path, secrets: Secrets, by: Mapping[str, str]) -> None:
        super().__init__("", [], log_path=log_path)
        self.files = secrets
        self.program, self.env = run_of(container_named(file, "proposer"), secrets, by)
        self.env["SK_ATTACH_HTTP"] = self.http_address


def run_of(
    container: Container, secrets: Secrets, by: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """The command line and the variables; `by` are further replacements."""
    changes = {**by, **files_of(secrets)}
    environment = container.environment(SECRETS)
    return (
        [*SK, *(replaced(word, changes) for word in container.arguments)],
        {**image_environment(), **{k: replaced(v, changes) for k, v in environment.items()}},
    )


@pytest.fixture
def secrets(tmp_path: Path) -> Secrets:
    folder = tmp_path / "access"
    folder.mkdir()
    files = write_secrets(folder)
    with open(files.user_file, "a") as users:
        users.write(f"primary1:proposer:{files.verifier}\n")
    return files


@pytest.fixture
def addresses(tmp_path: Path, secrets: Secrets) -> Iterator[dict[str, str]]:
    """Three running safekeepers: the address of each, by its address in the manifests."""
    with ExitStack() as stack:
        members: list[SafekeeperProcess] = []
        for index in (1, 2, 3):
            member = ManifestSafekeeper(index, tmp_path / f"safekeeper-{index}", secrets)
            member.start()
            stack.callback(member.kill)
            members.append(member)
        for member in members:
            member.wait_ready(TIMEOUT)
        yield {f"safekeeper-{each.id}.safekeeper:5454": each.address for each in members}


def test_the_commands_of_the_page_make_the_secrets(tmp_path: Path) -> None:
    """With a kubectl that writes its arguments to a file, one per line."""
    page = (ROOT / "docs/kubernetes.md").read_text()
    section = page.partition("\n## Secrets\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("    ")]
    script = 'sk() { "$PYTHON" -m quorum_wal.cli.main "$@"; }\n'
    script += "kubectl() { printf '%s\\n' \"$@\" >>words; }\n" + "\n".join(lines)
    subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHON": SK[0]},
        capture_output=True,
        check=True,
    )
    words = (tmp_path / "words").read_text().splitlines()
    sources = [word.partition("--from-file=")[2].rpartition("=")[2] for word in words]
    assert all((tmp_path / name).stat().st_size for name in filter(None, sources))
    assert (tmp_path / "users").read_text().startswith("primary1:proposer:SCRAM-SHA-256$")
    for name, hosts in (
        ("safekeeper", [f"safekeeper-{n}.safekeeper" for n in (1, 2, 3)]),
        ("proposer", ["postgres", "pg-proposer"]),
    ):
        for host in hosts:
            verify = ["openssl", "verify", "-CAfile", "ca.crt", "-verify_hostname", host]
            subprocess.run([*verify, f"{name}.crt"], cwd=tmp_path, capture_output=True, check=True)


def demand_passwords(postgres: Postgres) -> None:
    """Require passwords of the role walproposer, as initdb with --auth-host does, or as the
    operator does."""
    hba = postgres.data_dir / "pg_hba.conf"
    line = "host all,replication walproposer 127.0.0.1/32 scram-sha-256\n"
    hba.write_text(line + hba.read_text())
    postgres.configure(log_connections="on")  # reloads


def test_postgres_with_a_sidecar(
    postgres: Postgres, tmp_path: Path, secrets: Secrets, addresses: dict[str, str]
) -> None:
    (config_map,) = (m.object for m in read_manifests() if m.object["kind"] == "ConfigMap")
    subprocess.run(
        ["bash", "-e", "-c", config_map["data"]["walproposer.sh"]],
        env={
            **postgres.client_env,
            "PATH": f"{postgres.binaries.program('psql').parent}:{os.environ['PATH']}",
            "WALPROPOSER_PASSWORD": PRIMARY_PASSWORD,
        },
        check=True,
    )
    demand_passwords(postgres)
    by = {**addresses, PGDATA: str(postgres.data_dir)}
    proposer = ManifestProposer("postgres", tmp_path / "proposer.log", secrets, by)
    proposer.env["PGPORT"] = str(postgres.port)
    with proposer:
        proposer.wait_streaming(TIMEOUT)
        assert_commits_wait_for_it(postgres)
        postgres.restart()
        assert_commits_wait_for_it(postgres)
        changes = {**addresses, **files_of(secrets)}
        wait_until(
            lambda: status_is_ok(replaced(status_command(), changes), proposer.env),
            TIMEOUT,
            "sk status to say OK",
        )


def test_cloudnativepg(
    postgres_factory: Callable[..., Postgres],
    tmp_path: Path,
    secrets: Secrets,
    addresses: dict[str, str],
) -> None:
    """`synchronous_standby_names` is set before a proposer exists."""
    postgres = postgres_factory(settings={"synchronous_standby_names": 'FIRST 1 ("walproposer")'})
    with_tls(postgres, secrets)
    for statement in (
        f"CREATE ROLE walproposer LOGIN REPLICATION PASSWORD '{PRIMARY_PASSWORD}'",
        "GRANT pg_monitor TO walproposer",
    ):
        postgres.execute(statement, options="-c synchronous_commit=local")
    demand_passwords(postgres)
    by = {**addresses, "host=pg-rw": f"host=127.0.0.1 port={postgres.port}"}
    program, env = run_of(container_named("cloudnativepg", "timeline"), secrets, by)
    subprocess.run(program, env={**os.environ, **env}, check=True)
    log_path = tmp_path / "proposer.log"
    with ManifestProposer("cloudnativepg", log_path, secrets, by) as proposer:
        proposer.wait_streaming(TIMEOUT)
        assert_commits_wait_for_it(postgres)


def status_command() -> str:
    """The command that the page runs with kubectl in the container of the proposer."""
    section = (ROOT / "docs/kubernetes.md").read_text().partition("\n## Look at it\n")[2]
    begin, end = "kubectl exec postgres-0 -c proposer -- sh -c '", "'\n"
    return section.partition(begin)[2].partition(end)[0]


def status_is_ok(command: str, env: Mapping[str, str]) -> bool:
    """Its exit code is 0, and its verdict is OK."""
    words = [f'sk() {{ {SK[0]} -m {SK[2]} "$@"; }}\n{command}']
    shell = ["bash", "-e", "-c", *words]
    done = subprocess.run(shell, env={**os.environ, **env}, capture_output=True, text=True)
    return done.returncode == 0 and "\nOK" in done.stdout


def with_tls(postgres: Postgres, secrets: Secrets) -> None:
    """A key with TLS settings; the key belongs to the right account."""
    for source, name in ((secrets.certificate, "server.crt"), (secrets.key, "server.key")):
        target = postgres.data_dir / name
        shutil.copy(source, target)
        target.chmod(0o600)
        owner = postgres.data_dir.stat()
        os.chown(target, owner.st_uid, owner.st_gid)
    postgres.configure(ssl="on")


def assert_commits_wait_for_it(postgres: Postgres) -> None:
    wait_until(
        lambda: postgres.execute(SYNC) == [("walproposer", "sync")],
        TIMEOUT,
        "the proposer to be sync",
    )
    postgres.execute("SELECT pg_logical_emit_message(true, 'a', 'b')")
