"""One engine, its images and one cluster for the whole ring, and a ledger for each test."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest

# Before testcontainers is imported: the image of its reaper may be unavailable, and this ring
# removes its own leftovers; containers are reached by their own addresses.
os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")
os.environ.setdefault("TESTCONTAINERS_CONNECTION_MODE", "docker_host")

import docker
from container_cluster import ContainerCluster
from container_engine import HOST_VARIABLE, answering_host, own_engine, remove_leftovers
from container_images import (
    NEWER_VERSION,
    VERSION,
    Engine,
    Images,
    build_postgres,
    build_sk,
    find_base,
)
from shared_cluster import SharedCluster

from quorum_wal.pg_fixtures.ledger import Ledger
from quorum_wal.pg_fixtures.plugin import skip_if_unavailable

FOLDER_VARIABLE = "SK_CONTAINERS_DIR"  # kept, so that the next run finds its images again
BUILD_TIMEOUT = 600  # seconds; an engine sends nothing while it pulls or unpacks
TIMEOUT = 120.0
CLIENTS = 3

RING = Path(__file__).parent

_numbers = count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The time limit is for the test; the engine and the images have their own limits."""
    for item in items:
        if item.path.parent == RING:
            item.add_marker(pytest.mark.timeout(func_only=True))


@pytest.fixture(scope="session")
def containers_dir() -> Iterator[Path]:
    """The folder of this ring. Its name is short, because paths of sockets are below it."""
    kept = os.environ.get(FOLDER_VARIABLE)
    if kept:
        Path(kept).mkdir(parents=True, exist_ok=True)
        yield Path(kept)
        return
    folder = Path(tempfile.mkdtemp(prefix="sk-containers-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def engine(containers_dir: Path) -> Iterator[Engine]:
    """A running engine, or one that this session starts and stops."""
    with ExitStack() as stack:
        with skip_if_unavailable():
            running = answering_host()
            host = running or stack.enter_context(own_engine(containers_dir))
            environment = stack.enter_context(pytest.MonkeyPatch.context())
            environment.setenv(HOST_VARIABLE, host)
            client = docker.DockerClient(base_url=host, timeout=BUILD_TIMEOUT)
            stack.callback(client.close)
            stack.callback(remove_leftovers, client, of_all_sessions=running is None)
            base = find_base(client, containers_dir, may_pull=running is not None)
        yield Engine(client, base)


@pytest.fixture(scope="session")
def images(engine: Engine) -> Images:
    with ThreadPoolExecutor() as pool:
        postgres = pool.submit(build_postgres, engine)
        return Images(
            sk=build_sk(engine, VERSION),
            newer=build_sk(engine, NEWER_VERSION),
            postgres=postgres.result(),
        )


@pytest.fixture(scope="session")
def shared_cluster(engine: Engine, images: Images) -> Iterator[SharedCluster[ContainerCluster]]:
    shared = SharedCluster(
        lambda: ContainerCluster(engine.client, images.sk, images.postgres), ContainerCluster.repair
    )
    yield shared
    shared.discard()


@pytest.fixture
def cluster(
    shared_cluster: SharedCluster[ContainerCluster], request: pytest.FixtureRequest
) -> Iterator[ContainerCluster]:
    """Three safekeepers, 1 MB segments, everything running; a failed test's is not used again."""
    yield from shared_cluster.lent(request)


@pytest.fixture
def ledger(cluster: ContainerCluster) -> Iterator[Ledger]:
    """Clients that commit on the cluster for as long as the test runs."""
    ledger = Ledger(cluster.postgres.dsn(), clients=CLIENTS, table=f"ledger_{next(_numbers)}")
    with ledger:
        ledger.wait_for_progress(10, TIMEOUT)
        yield ledger
