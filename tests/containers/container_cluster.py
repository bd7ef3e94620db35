"""`ContainerCluster`: a `QuorumCluster` of containers on a network of their own.

    10.213.N.10 the primary   .11 .12 .13 the safekeepers   .20 and up the proposers

Faults are made by the engine (pause, kill, disconnect) and by the host's packet filter.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import docker
from container_network import PinnedNetwork
from container_service import READY_TIMEOUT, ServiceContainer
from firewall import Firewall
from remote_postgres import RemotePostgres

from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.data_directory import Setting
from quorum_wal.pg_fixtures.proposer import ProposerProcess
from quorum_wal.pg_fixtures.safekeeper import SafekeeperProcess
from quorum_wal.pg_fixtures.waiting import wait_until

PRIMARY_HOST = 10
SAFEKEEPER_HOST_FIRST = 11
PROPOSER_HOST_FIRST = 20

SAFEKEEPER_IDS = (1, 2, 3)
WAL_PORT = 5454
SAFEKEEPER_HTTP_PORT = 7676
PROPOSER_HTTP_PORT = 7677

PASSWORD = "from the environment"
PGDATA = "/var/lib/postgresql/data"
DATA_DIR = "/var/lib/sk"

# The image accepts clients, but not replication clients: `all` databases does not include those.
LET_REPLICATION_IN = 'echo "host replication all all scram-sha-256" >>"$PGDATA/pg_hba.conf"'


class ContainerPostgres(RemotePostgres):
    """The interface of Postgres, without the parts that need binaries and files of this machine."""

    def __init__(self, client: docker.DockerClient, network: PinnedNetwork, image: str) -> None:
        self.server = self._server = ServiceContainer(
            client,
            network,
            PRIMARY_HOST,
            image,
            ["postgres", "-c", "max_wal_senders=20"],
            name="primary",
            volume_path=PGDATA,
            env={
                "POSTGRES_PASSWORD": PASSWORD,
                "POSTGRES_INITDB_ARGS": "--wal-segsize=1",  # MB
            },
        )
        super().__init__(self.server.ip, PASSWORD)

    def init(self, *options: str) -> None:
        """Create the data folder, at the first start."""
        self.start()
        assert self.server.run("bash", "-c", LET_REPLICATION_IN) == (0, "")
        self.configure()

    def start(self, timeout: float = READY_TIMEOUT) -> None:
        self.server.start()
        self.wait_ready(timeout)

    def wait_ready(self, timeout: float = READY_TIMEOUT) -> None:
        self.server.wait_until(self.accepts_connections, timeout, "it to accept connections")

    def crash(self) -> None:
        self.server.kill()

    def configure(self, **settings: Setting | None) -> None:
        """By ALTER SYSTEM; new sessions have the settings on return."""
        (before,) = self.execute("SELECT pg_conf_load_time()")
        for name, value in settings.items():
            change = f"RESET {name}" if value is None else f"SET {name} = '{value}'"
            self.execute(f"ALTER SYSTEM {change}")
        self.execute("SELECT pg_reload_conf()")
        wait_until(
            lambda: self.execute("SELECT pg_conf_load_time()") != [before], READY_TIMEOUT, "reload"
        )

    def control_data(self) -> dict[str, str]:
        text = self.server.output_of("pg_controldata", PGDATA)
        pairs = (line.partition(":") for line in text.splitlines())
        return {name: value.strip() for name, _, value in pairs}

    @property
    def pg_wal(self) -> Path:
        """A copy of its present state."""
        return self.server.copy_of(f"{PGDATA}/pg_wal")


class ContainerSafekeeper(ServiceContainer, SafekeeperProcess):
    """`sk safekeeper run` in a container, its data in a volume."""

    def __init__(
        self, id: int, client: docker.DockerClient, network: PinnedNetwork, image: str
    ) -> None:
        self.id = id
        ServiceContainer.__init__(
            self,
            client,
            network,
            SAFEKEEPER_HOST_FIRST - 1 + id,
            image,
            # Only our containers are on the network.
            ["safekeeper", "run", "--id", str(id), "--insecure"],
            name=f"safekeeper-{id}",
            volume_path=DATA_DIR,
        )
        self.address = f"{self.ip}:{WAL_PORT}"
        self.http_address = f"{self.ip}:{SAFEKEEPER_HTTP_PORT}"

    @property
    def data_dir(self) -> Path:  # type: ignore[override]
        """A copy of its present state."""
        return self.copy_of(DATA_DIR)


class ContainerProposer(ServiceContainer, ProposerProcess):
    """`sk attach` in a container."""

    def __init__(
        self,
        number: int,
        client: docker.DockerClient,
        network: PinnedNetwork,
        image: str,
        primary: ContainerPostgres,
        safekeepers: Sequence[str],
        *,
        configure: bool,
    ) -> None:
        ServiceContainer.__init__(
            self,
            client,
            network,
            PROPOSER_HOST_FIRST + number,
            image,
            [
                *("attach", "--primary", primary.dsn(password=None)),
                *("--safekeepers", ",".join(safekeepers)),
                *(["--configure"] if configure else []),
                "--insecure",
            ],
            name=f"proposer-{number}",
            env={"PGPASSWORD": PASSWORD},
        )
        self.http_address = f"{self.ip}:{PROPOSER_HTTP_PORT}"


class ContainerCluster(QuorumCluster):
    """A context manager, as QuorumCluster: it streams inside the block."""

    def __init__(self, client: docker.DockerClient, sk_image: str, postgres_image: str) -> None:
        self.sk_image = sk_image
        self.postgres_image = postgres_image
        self.firewall = Firewall()
        self.network = PinnedNetwork(client)
        self.proxies = []
        self.client = client
        self._proposers: list[ContainerProposer] = []
        self._open = ExitStack()

    def __enter__(self) -> Self:
        with self._open:  # until everything has succeeded
            self._open.enter_context(self.network)
            self._open.callback(self.firewall.heal)
            self.postgres = ContainerPostgres(self.client, self.network, self.postgres_image)
            self._open.callback(self.postgres.server.discard)
            self.safekeepers = []
            for id in SAFEKEEPER_IDS:
                member = ContainerSafekeeper(id, self.client, self.network, self.sk_image)
                self._open.callback(member.discard)
                self.safekeepers.append(member)
            self.proposer = self.new_proposer(configure=True)
            self.postgres.init()
            self.start()
            self._open = self._open.pop_all()
        return self

    def close(self) -> None:
        self._open.close()

    def new_proposer(self, *, configure: bool = False) -> ContainerProposer:
        """Another proposer for this primary and these safekeepers; not started."""
        proposer = ContainerProposer(
            len(self._proposers),
            self.client,
            self.network,
            self.sk_image,
            self.postgres,
            [safekeeper.address for safekeeper in self.safekeepers],
            configure=configure,
        )
        self._proposers.append(proposer)
        self._open.callback(proposer.discard)
        return proposer

    def kill_all(self) -> None:
        for service in (self.proposer, *self.safekeepers, self.postgres.server):
            service.kill()

    def repair(self) -> None:
        """Undo every fault; return when commits proceed. Raises PgServerError."""
        self.firewall.heal()
        for service in (self.postgres.server, *self.safekeepers, self.proposer):
            service.resume()
            if service.alive and service.is_cut:
                service.connect()
        self.start()

    def wait_connected(self, count: int, timeout: float = READY_TIMEOUT) -> None:
        """Return when the proposer has that many safekeepers."""
        wait_until(
            lambda: self.proposer.status()["quorum"]["connected"] == count,
            timeout,
            f"{count} safekeepers to be connected",
        )
