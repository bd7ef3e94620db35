"""A server with a limbo, a coordinator that a test controls, proxies to both, and both clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from accounts import OWNER, SLOW, finish, prepared
from scripted_coordinator import ScriptedCoordinator
from twins import TWINS, Twin

from quorum_wal.pg_fixtures.plugin import skip_if_unavailable
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.proxy import TcpProxy
from quorum_wal.pg_server.binaries import PostgresBinaries, find_postgres

SEGMENT_BYTES = 1 << 20
SETTINGS = {"max_prepared_transactions": 8, "max_connections": 60, "fsync": False}


@pytest.fixture(scope="module", params=[15])
def limbo_server(
    request: pytest.FixtureRequest,
    initdb_template: Callable[[PostgresBinaries, int], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Postgres]:
    """A file that needs more versions parametrizes it indirectly."""
    with skip_if_unavailable():
        binaries = find_postgres(request.param)
    with Postgres(
        binaries,
        tmp_path_factory.mktemp("qsync") / "primary",
        settings=SETTINGS,
        wal_seg_size=SEGMENT_BYTES,
        template=initdb_template(binaries, SEGMENT_BYTES),
    ) as postgres:
        postgres.execute("CREATE TABLE account (name text PRIMARY KEY, amount int NOT NULL)")
        postgres.execute(SLOW)
        # Members of a role whose name must be quoted.
        postgres.execute(f"CREATE ROLE {OWNER}; CREATE ROLE login LOGIN IN ROLE {OWNER}")
        postgres.execute(f"GRANT ALL ON account TO {OWNER}")
        yield postgres


@pytest.fixture
def server(limbo_server: Postgres) -> Iterator[Postgres]:
    """`account (name, amount)` with alice 100 and bob 100; nothing is prepared."""
    local = "-c synchronous_commit=local"
    limbo_server.execute("TRUNCATE account", options=local)
    limbo_server.execute("INSERT INTO account VALUES ('alice', 100), ('bob', 100)", options=local)
    yield limbo_server
    limbo_server.configure(synchronous_standby_names=None)
    for gid in prepared(limbo_server):
        finish(limbo_server, gid, "ROLLBACK")


@pytest.fixture
def wire(server: Postgres) -> Iterator[TcpProxy]:
    """A proxy between the client and the server."""
    with TcpProxy("127.0.0.1", server.port) as proxy:
        yield proxy


@pytest.fixture
def coordinator() -> Iterator[ScriptedCoordinator]:
    with ScriptedCoordinator() as scripted:
        yield scripted


@pytest.fixture
def coordinator_wire(coordinator: ScriptedCoordinator) -> Iterator[TcpProxy]:
    """A proxy between the client and the coordinator."""
    with TcpProxy("127.0.0.1", coordinator.port) as proxy:
        yield proxy


@pytest.fixture(params=list(TWINS))
def make_twin(
    request: pytest.FixtureRequest, server: Postgres, wire: TcpProxy, coordinator_wire: TcpProxy
) -> Iterator[Callable[..., Twin]]:
    """`make_twin(user="login")`: a client whose pool connects as that user; `pool` is the kind of
    pool."""
    with ExitStack() as twins:

        def make(pool: Mapping[str, Any] = MappingProxyType({}), **settings: str) -> Twin:
            dsn = server.dsn(**{"port": wire.port, **settings})
            twin = TWINS[request.param](coordinator_wire.address, dsn, **pool)
            return twins.enter_context(twin)

        yield make


@pytest.fixture
def twin(make_twin: Callable[..., Twin]) -> Twin:
    return make_twin()
