"""Shared fixtures of this ring: a cluster for each file, ledgers, failovers, servers of the
wire."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

import pytest
from failover_world import SETTINGS, FailoverWorld
from secured_cluster import Secrets, write_secrets
from shared_cluster import TIMEOUT, SharedCluster, repair
from wire_server import Server

from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.data_directory import Setting
from quorum_wal.pg_fixtures.ledger import Ledger
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.proxy import TcpProxy
from quorum_wal.pg_server.binaries import PostgresBinaries
from quorum_wal.pgwire.blocking import ServerConfig

SEGMENT_BYTES = 1 << 20
CLIENTS = 3

_numbers = count(1)


@pytest.fixture(scope="module")
def cluster_options() -> dict[str, Any]:
    """Options of the shared cluster. A file can override them."""
    return {}


@pytest.fixture(scope="module")
def shared_cluster(
    pg_binaries: PostgresBinaries,
    initdb_template: Callable[[PostgresBinaries, int], Path],
    tmp_path_factory: pytest.TempPathFactory,
    cluster_options: dict[str, Any],
) -> Iterator[SharedCluster[QuorumCluster]]:
    def make() -> QuorumCluster:
        return QuorumCluster(
            tmp_path_factory.mktemp("shared") / "cluster",
            binaries=pg_binaries,
            wal_seg_size=SEGMENT_BYTES,
            template=initdb_template(pg_binaries, SEGMENT_BYTES),
            **cluster_options,
        )

    shared = SharedCluster(make, repair)
    yield shared
    shared.discard()


@pytest.fixture
def cluster(
    shared_cluster: SharedCluster[QuorumCluster], request: pytest.FixtureRequest
) -> Iterator[QuorumCluster]:
    """Three safekeepers, 1 MB segments, everything running. After a failed test a new one is
    created."""
    yield from shared_cluster.lent(request)


@pytest.fixture
def ledger_of() -> Iterator[Callable[[QuorumCluster], Ledger]]:
    """`ledger_of(cluster)` starts clients that commit to a table of their own."""
    ledgers: list[Ledger] = []

    def make(cluster: QuorumCluster, clients: int = CLIENTS) -> Ledger:
        ledger = Ledger(cluster.postgres.dsn(), clients=clients, table=f"ledger_{next(_numbers)}")
        ledgers.append(ledger)
        ledger.start()
        ledger.wait_for_progress(10, TIMEOUT)
        return ledger

    yield make
    for ledger in ledgers:
        ledger.stop()


@pytest.fixture
def ledger(cluster: QuorumCluster, ledger_of: Callable[[QuorumCluster], Ledger]) -> Ledger:
    """Clients that commit on the shared cluster for as long as the test runs."""
    return ledger_of(cluster)


@pytest.fixture
def failover_world(
    quorum_cluster: Callable[..., QuorumCluster],
    standby_factory: Callable[..., Postgres],
) -> Iterator[Callable[..., FailoverWorld]]:
    """`failover_world()`: its standby follows the safekeepers, or the server in
    `conninfo(cluster)`."""
    with ExitStack() as stack:

        def make(
            conninfo: Callable[[QuorumCluster], str] = QuorumCluster.replica_conninfo,
            safekeeper_arguments: Sequence[str] = (),
            settings: Mapping[str, Setting] = MappingProxyType({}),
        ) -> FailoverWorld:
            cluster = quorum_cluster(
                proxied=True,
                wal_seg_size=SEGMENT_BYTES,
                settings={**SETTINGS, **settings},
                safekeeper_arguments=safekeeper_arguments,
            )
            standby = standby_factory(cluster.postgres, "standby", conninfo(cluster))
            front = stack.enter_context(TcpProxy("127.0.0.1", cluster.postgres.port))
            return FailoverWorld(cluster, standby, front)

        yield make


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A folder that any account may enter. The folders of pytest are only for one user."""
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture(scope="module")
def secret_files(tmp_path_factory: pytest.TempPathFactory) -> Secrets:
    """The files of a secured installation, for all tests of a file."""
    return write_secrets(tmp_path_factory.mktemp("secrets"))


# ---- the server side of the wire, for libpq


@pytest.fixture
def serve_with() -> Iterator[Callable[..., Server]]:
    servers = []

    def start(**settings: object) -> Server:
        server = Server(ServerConfig(server_version="18.1", **settings))  # type: ignore[arg-type]
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.stop()
