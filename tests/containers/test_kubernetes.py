"""packaging/kubernetes/ in a container engine: Pods with the image, and the documented Secrets.

What the operator of CloudNativePG does is done here: its Postgres, its settings, its Secret.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import psycopg
import pytest
import trustme
from container_images import Engine, Images
from container_network import PinnedNetwork
from container_service import ServiceContainer
from kubernetes_manifests import ROOT, Manifest, create_secrets, read_manifests
from kubernetes_pods import Pod, Secrets
from pending_commit import PendingCommit
from reckoning import TIMEOUT
from remote_postgres import RemotePostgres

from quorum_wal.pg_fixtures.waiting import wait_until

SAFEKEEPER_HOST_FIRST = 11
POSTGRES_HOST = 20
OPERATOR_HOST = 30
PROPOSER_HOST = 31
JOB_HOST = 32

OPERATOR_PASSWORD = "of the operator"
SYNC = "SELECT application_name, sync_state FROM pg_stat_replication"


def manifest_of(kind: str, name: str) -> Manifest:
    (found,) = (
        manifest
        for manifest in read_manifests()
        if (manifest.object["kind"], manifest.object["metadata"]["name"]) == (kind, name)
    )
    return found


@pytest.fixture(scope="module")
def network(engine: Engine) -> Iterator[PinnedNetwork]:
    with PinnedNetwork(engine.client) as network:
        yield network


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Secrets:
    return create_secrets(tmp_path_factory.mktemp("secrets"))


@pytest.fixture(scope="module")
def safekeepers(
    engine: Engine, images: Images, network: PinnedNetwork, secrets: Secrets
) -> Iterator[list[Pod]]:
    """The Pods of the StatefulSet, ready."""
    manifest = manifest_of("StatefulSet", "safekeeper")
    first = manifest.object["spec"]["ordinals"]["start"]
    indices = range(first, first + manifest.object["spec"]["replicas"])
    with ExitStack() as stack:
        pods = [
            stack.enter_context(
                Pod(
                    *(engine.client, network, SAFEKEEPER_HOST_FIRST - first + index),
                    *(manifest, images, secrets),
                    names=(f"safekeeper-{index}.{manifest.object['spec']['serviceName']}",),
                    index=index,
                )
            )
            for index in indices
        ]
        for pod in pods:
            pod.wait_ready()
        yield pods


@pytest.fixture(scope="module")
def pod_of(
    engine: Engine, images: Images, network: PinnedNetwork, secrets: Secrets
) -> Callable[..., Pod]:
    """`pod_of(manifest, host, {more secrets})`; not started."""

    def make(manifest: Manifest, host: int, more: Secrets | None = None) -> Pod:
        return Pod(engine.client, network, host, manifest, images, {**secrets, **(more or {})})

    return make


def wait_sync(postgres: RemotePostgres) -> None:
    """The primary relies on the proposer."""

    def is_sync() -> bool:
        try:
            return postgres.execute(SYNC) == [("walproposer", "sync")]
        except psycopg.OperationalError:
            return False

    wait_until(is_sync, TIMEOUT, "the proposer to be sync")


def assert_commits_wait_for_a_quorum(postgres: RemotePostgres, safekeepers: list[Pod]) -> None:
    wait_sync(postgres)
    PendingCommit(postgres).wait_returned(TIMEOUT)
    for pod in safekeepers[1:]:
        pod.pause()
    try:
        commit = PendingCommit(postgres)
        commit.wait_blocked(TIMEOUT)
    finally:
        for pod in safekeepers[1:]:
            pod.resume()
    commit.wait_returned(TIMEOUT)


def test_postgres_with_a_sidecar(
    safekeepers: list[Pod], pod_of: Callable[..., Pod], secrets: Secrets
) -> None:
    with pod_of(manifest_of("StatefulSet", "postgres"), POSTGRES_HOST) as pod:
        pod.wait_ready()
        postgres = RemotePostgres(pod.ip, secrets["postgres"]["password"].decode())
        assert_commits_wait_for_a_quorum(postgres, safekeepers)
        # By the exit code: a busy engine drops what a command has printed.
        says_ok = f"{status_command()} | grep --quiet ^OK"
        wait_until(
            lambda: pod.run("proposer", "sh", "-c", says_ok)[0] == 0, TIMEOUT, "sk status to say OK"
        )
        for name in ("postgres", "proposer"):
            pod.restart(name)
            pod.wait_ready()
            wait_sync(postgres)
            PendingCommit(postgres).wait_returned(TIMEOUT)
        assert [pod.stop(name) for name in ("postgres", "proposer")] == [0, 0]


def status_command() -> str:
    """The command that the page has kubectl run in the container of the proposer."""
    text = (ROOT / "docs/kubernetes.md").read_text()
    begin = "kubectl exec postgres-0 -c proposer -- sh -c "
    (command,) = re.findall(f"{begin}'(sk status [^']*)'", text)
    return str(command)


@pytest.fixture
def operator(
    engine: Engine, images: Images, network: PinnedNetwork, secrets: Secrets
) -> Iterator[tuple[RemotePostgres, Secrets]]:
    """The server pg-rw of CloudNativePG, and the Secret pg-ca."""
    authority = trustme.CA()
    certificate = authority.issue_cert("pg-rw")
    password = secrets["walproposer"]["password"].decode()
    script = "\n".join(
        [
            "install -m 0600 /etc/pg-rw.key $PGDATA/server.key",
            """echo "ssl_cert_file = '/etc/pg-rw.crt'" >>$PGDATA/postgresql.conf""",
            "echo 'ssl = on' >>$PGDATA/postgresql.conf",
            'echo "hostssl all,replication walproposer all scram-sha-256" >>$PGDATA/pg_hba.conf',
            """echo "synchronous_standby_names = 'FIRST 1 (\\"walproposer\\")'" """
            ">>$PGDATA/postgresql.conf",
            "psql --username postgres --no-psqlrc --set ON_ERROR_STOP=1 <<'END'",
            "SET synchronous_commit = local;",
            f"CREATE ROLE walproposer LOGIN REPLICATION PASSWORD '{password}';",
            "GRANT pg_monitor TO walproposer;",
            "END",
        ]
    )
    server = ServiceContainer(
        *(engine.client, network, OPERATOR_HOST, images.postgres, []),
        name="pg-rw",
        env={"POSTGRES_PASSWORD": OPERATOR_PASSWORD},
        files={
            "/etc/pg-rw.crt": b"".join(blob.bytes() for blob in certificate.cert_chain_pems),
            "/etc/pg-rw.key": certificate.private_key_pem.bytes(),
            "/docker-entrypoint-initdb.d/operator.sh": script.encode(),
        },
    )
    postgres = RemotePostgres(server.ip, OPERATOR_PASSWORD)
    try:
        server.start()
        server.wait_until(postgres.accepts_connections, TIMEOUT, "pg-rw to accept connections")
        yield postgres, {"pg-ca": {"ca.crt": authority.cert_pem.bytes()}}
    finally:
        server.discard()


def test_cloudnativepg(
    safekeepers: list[Pod],
    pod_of: Callable[..., Pod],
    operator: tuple[RemotePostgres, Secrets],
) -> None:
    """`synchronous_standby_names` is set before there is a proposer."""
    postgres, more = operator
    commit = PendingCommit(postgres)
    commit.wait_blocked(TIMEOUT)
    with pod_of(manifest_of("Job", "pg-timeline"), JOB_HOST, more) as job:
        job.wait_complete()
    with pod_of(manifest_of("Deployment", "pg-proposer"), PROPOSER_HOST, more) as pod:
        pod.wait_ready()
        commit.wait_returned(TIMEOUT)
        assert_commits_wait_for_a_quorum(postgres, safekeepers)
