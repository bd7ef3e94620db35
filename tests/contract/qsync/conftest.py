"""Servers of each version with prepared transactions, one per version and module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from two_phase import MAJORS, SETTINGS, finish_all

from quorum_wal.pg_fixtures.plugin import skip_if_unavailable
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_server.binaries import PostgresBinaries, find_postgres

TemplateOf = Callable[[PostgresBinaries, int], Path]
MakeServer = Callable[[int], Postgres]

SEGMENT_BYTES = 1 << 20


@pytest.fixture(scope="module")
def make_server(
    initdb_template: TemplateOf, tmp_path_factory: pytest.TempPathFactory
) -> MakeServer:
    """`make_server(major)`: a new one, not started; the caller starts and stops it."""

    def make(major: int) -> Postgres:
        with skip_if_unavailable():
            binaries = find_postgres(major)
        return Postgres(
            binaries,
            tmp_path_factory.mktemp("two-phase") / f"postgres-{major}",
            settings=SETTINGS,
            wal_seg_size=SEGMENT_BYTES,
            template=initdb_template(binaries, SEGMENT_BYTES),
        )

    return make


@pytest.fixture(scope="module", params=MAJORS)
def shared_server(request: pytest.FixtureRequest, make_server: MakeServer) -> Iterator[Postgres]:
    with make_server(request.param) as postgres:
        postgres.execute("CREATE TABLE t (a int)")
        yield postgres


@pytest.fixture
def server(shared_server: Postgres) -> Iterator[Postgres]:
    """A server of each version, with a table `t (a int)`. Nothing is prepared, before and after."""
    yield shared_server
    shared_server.configure(synchronous_standby_names=None)
    finish_all(shared_server)
