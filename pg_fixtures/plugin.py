"""The pytest plugin: fixtures for a real Postgres, our services as processes, and faults.

    pg_binaries       session   PostgresBinaries: --pg-major, else the preferred one (pg_server)
    postgres          function  Postgres, started
    postgres_factory  function  (name, **options of Postgres) -> Postgres, started
    quorum_cluster    function  (**options of QuorumCluster) -> QuorumCluster, streaming
    standby_factory   function  (primary, name, conninfo, **settings) -> Postgres, started
    tcp_proxy         function  (target_host, target_port) -> TcpProxy
    small_disk        function  (size_bytes) -> SmallDisk, mounted
    failing_disk      function  (only_below) -> FailingDisk
    free_port         function  int
    initdb_template   session   (binaries, wal_seg_size) -> folder to give to Postgres(template=...)

At the end of a test, factories end what they have made, in reverse order. If the machine lacks
something, the test is skipped with the reason; with SK_REQUIRE_ALL=1 it fails.

Every pytest run of the installation loads this plugin, also in projects that do not use it. So it
imports pg_fixtures only inside of fixtures, and prints its header line only if a collected test
needs it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from fcntl import LOCK_EX, flock
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from quorum_wal.pg_fixtures.cluster import QuorumCluster
    from quorum_wal.pg_fixtures.failing_disk import FailingDisk
    from quorum_wal.pg_fixtures.postgres import Postgres
    from quorum_wal.pg_fixtures.proxy import TcpProxy
    from quorum_wal.pg_fixtures.small_disk import SmallDisk
    from quorum_wal.pg_server.binaries import PostgresBinaries

REQUIRE_ALL_VARIABLE = "SK_REQUIRE_ALL"
XDIST_VARIABLE = "PYTEST_XDIST_WORKER"

TemplateOf = Callable[["PostgresBinaries", int], Path]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("pg_fixtures").addoption(
        "--pg-major", type=int, metavar="N", help="the major version of Postgres to test with"
    )


def pytest_report_collectionfinish(items: Sequence[pytest.Item]) -> list[str]:
    """The installed versions, if a collected test uses them."""
    if not any("pg_binaries" in getattr(item, "fixturenames", ()) for item in items):
        return []
    from quorum_wal.pg_server.binaries import all_postgres

    return [f"postgres: {', '.join(map(str, all_postgres())) or 'none found'}"]


@contextmanager
def skip_if_unavailable() -> Iterator[None]:
    """Turns Unavailable into a skip, or into a failure with SK_REQUIRE_ALL=1."""
    from quorum_wal.pg_server.errors import Unavailable

    try:
        yield
    except Unavailable as error:
        if os.environ.get(REQUIRE_ALL_VARIABLE) == "1":
            raise
        pytest.skip(f"{error}; hint: {error.hint}" if error.hint else str(error))


@pytest.fixture(scope="session")
def pg_binaries(request: pytest.FixtureRequest) -> PostgresBinaries:
    """The Postgres under test; parametrize it indirectly to choose others."""
    from quorum_wal.pg_server.binaries import PostgresBinaries, find_postgres

    chosen = getattr(request, "param", None)
    if isinstance(chosen, PostgresBinaries):
        return chosen
    with skip_if_unavailable():
        return find_postgres(request.config.getoption("--pg-major") if chosen is None else chosen)


@pytest.fixture(scope="session")
def initdb_template(tmp_path_factory: pytest.TempPathFactory) -> TemplateOf:
    """A data folder to copy, created by initdb once per server and segment size. The processes of
    pytest-xdist share them."""
    from quorum_wal.pg_fixtures.data_directory import DataDirectory

    root = tmp_path_factory.getbasetemp()
    if XDIST_VARIABLE in os.environ:
        root = root.parent

    @cache
    def template_of(binaries: PostgresBinaries, wal_seg_size: int) -> Path:
        folder = root / f"initdb-{binaries.version}-{wal_seg_size >> 20}"
        folder.mkdir(exist_ok=True)
        complete, template = folder / "complete", DataDirectory(folder / "template", binaries)
        with (folder / "lock").open("w") as lock:
            flock(lock, LOCK_EX)  # until the file is closed
            if not complete.exists():
                template.initdb(wal_seg_size=wal_seg_size)
                complete.touch()
        return template.path

    return template_of


@pytest.fixture
def postgres_factory(
    pg_binaries: PostgresBinaries, initdb_template: TemplateOf, tmp_path: Path
) -> Iterator[Callable[..., Postgres]]:
    """`postgres_factory("standby", settings={...})`: all options of Postgres, and two more.

    The servers of a session share a system identifier, except with `fresh=True`, which runs initdb.
    With `start=False` the test must start the server.
    """
    from quorum_wal.pg_fixtures.data_directory import WAL_SEG_SIZE
    from quorum_wal.pg_fixtures.postgres import Postgres

    with ExitStack() as servers:

        def make(
            name: str = "postgres",
            *,
            binaries: PostgresBinaries = pg_binaries,
            wal_seg_size: int = WAL_SEG_SIZE,
            fresh: bool = False,
            start: bool = True,
            **options: Any,
        ) -> Postgres:
            postgres = Postgres(
                binaries,
                tmp_path / name,
                wal_seg_size=wal_seg_size,
                template=None if fresh else initdb_template(binaries, wal_seg_size),
                **options,
            )
            servers.push(postgres)
            if start:
                postgres.start()
            return postgres

        yield make


@pytest.fixture
def postgres(postgres_factory: Callable[..., Postgres]) -> Postgres:
    """A started server with default settings."""
    return postgres_factory()


@pytest.fixture
def quorum_cluster(
    pg_binaries: PostgresBinaries, initdb_template: TemplateOf, tmp_path: Path
) -> Iterator[Callable[..., QuorumCluster]]:
    """`quorum_cluster(safekeepers=3, proxied=True)`: all options of QuorumCluster but its root."""
    from quorum_wal.pg_fixtures.cluster import QuorumCluster
    from quorum_wal.pg_fixtures.data_directory import WAL_SEG_SIZE

    with ExitStack() as clusters:

        def make(
            name: str = "cluster",
            *,
            binaries: PostgresBinaries = pg_binaries,
            wal_seg_size: int = WAL_SEG_SIZE,
            **options: Any,
        ) -> QuorumCluster:
            cluster = QuorumCluster(
                tmp_path / name,
                binaries=binaries,
                wal_seg_size=wal_seg_size,
                template=initdb_template(binaries, wal_seg_size),
                **options,
            )
            return clusters.enter_context(cluster)

        yield make


@pytest.fixture
def standby_factory(tmp_path: Path) -> Iterator[Callable[..., Postgres]]:
    """`standby_factory(cluster.postgres, "standby", cluster.replica_conninfo(), **settings)`."""
    from quorum_wal.pg_fixtures.standby import make_standby

    with ExitStack() as standbys:

        def make(primary: Postgres, name: str, conninfo: str, **settings: Any) -> Postgres:
            standby = make_standby(primary, tmp_path / name, conninfo, **settings)
            return standbys.enter_context(standby)

        yield make


@pytest.fixture
def tcp_proxy() -> Iterator[Callable[[str, int], TcpProxy]]:
    """`tcp_proxy("127.0.0.1", port)`."""
    from quorum_wal.pg_fixtures.proxy import TcpProxy

    with ExitStack() as proxies:
        yield lambda host, port: proxies.enter_context(TcpProxy(host, port))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], SmallDisk]]:
    """`small_disk(64 << 20)`; skips where nothing can be mounted."""
    from quorum_wal.pg_fixtures.small_disk import SmallDisk

    with ExitStack() as disks:

        def make(size_bytes: int, name: str = "small-disk") -> SmallDisk:
            with skip_if_unavailable():
                return disks.enter_context(SmallDisk(tmp_path / name, size_bytes))

        yield make


@pytest.fixture
def failing_disk(tmp_path: Path) -> Callable[..., FailingDisk]:
    """`failing_disk(only_below=tmp_path / "safekeeper-1")`; skips without a C compiler."""
    from quorum_wal.pg_fixtures.failing_disk import FailingDisk

    def make(*, only_below: Path | None = None, name: str = "failing-disk") -> FailingDisk:
        with skip_if_unavailable():
            return FailingDisk(tmp_path / name, only_below=only_below)

    return make


@pytest.fixture
def free_port() -> int:
    """A TCP port on 127.0.0.1 that no other test will use."""
    from quorum_wal.pg_fixtures.ports import free_port

    return free_port()
