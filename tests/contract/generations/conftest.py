"""Databases of both kinds, and a service over HTTP: all that a pageserver can use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from secrets import token_hex

import pytest
from postgres_uri import postgres_uri

from quorum_wal.generations.client import GenerationClient
from quorum_wal.generations.operations import Generations, embedded_generations
from quorum_wal.generations.protocol import GenerationService
from quorum_wal.generations.service import GenerationServer
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_server.binaries import PostgresBinaries
from quorum_wal.telemetry.status_server import http_listener

TemplateOf = Callable[[PostgresBinaries, int], Path]

SEGMENT_BYTES = 1 << 20
_numbers = count(1)


@pytest.fixture(scope="session")
def generations_server(
    pg_binaries: PostgresBinaries,
    initdb_template: TemplateOf,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Postgres]:
    with Postgres(
        pg_binaries,
        tmp_path_factory.mktemp("generations") / "postgres",
        wal_seg_size=SEGMENT_BYTES,
        template=initdb_template(pg_binaries, SEGMENT_BYTES),
    ) as postgres:
        yield postgres


@pytest.fixture
def postgres_database(generations_server: Postgres) -> str:
    """The URI of an empty database."""
    name = f"generations_{next(_numbers)}"
    generations_server.execute(f"CREATE DATABASE {name}")
    return postgres_uri(generations_server, name)


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each kind."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_database"))
    return str(tmp_path / "generations.db")


@pytest.fixture
def generations(database: str) -> Iterator[Generations]:
    """The service in this process, on each kind of database."""
    found = embedded_generations(database)
    yield found
    found.close()


@pytest.fixture(params=["sqlite", "postgres", "http"])
def service(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[GenerationService]:
    """Each implementation of the service."""
    if request.param == "http":
        embedded = embedded_generations(str(tmp_path / "served.db"))
        with GenerationServer(embedded, http_listener("127.0.0.1", 0, None, None)) as server:
            yield GenerationClient(f"http://{server.address}")
        return
    is_sqlite = request.param == "sqlite"
    path = str(tmp_path / "generations.db")
    found = embedded_generations(
        path if is_sqlite else request.getfixturevalue("postgres_database")
    )
    yield found
    found.close()


@pytest.fixture
def tenant() -> str:
    """A new id."""
    return token_hex(16)
