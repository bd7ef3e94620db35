"""One store of each kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from s3_server import S3Server

from quorum_wal.objectstore.store import ObjectStore, open_store


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("s3") / "moto_server.log") as server:
        yield server


def local_store(request: pytest.FixtureRequest) -> ObjectStore:
    path: Path = request.getfixturevalue("tmp_path")
    return open_store(str(path / "a folder" / "archive"))


def memory_store(request: pytest.FixtureRequest) -> ObjectStore:
    return open_store("memory://")


def s3_store(request: pytest.FixtureRequest) -> ObjectStore:
    server: S3Server = request.getfixturevalue("s3_server")
    return open_store(server.new_bucket(), server.options())


def s3_prefix_store(request: pytest.FixtureRequest) -> ObjectStore:
    """A folder in a bucket."""
    server: S3Server = request.getfixturevalue("s3_server")
    return open_store(f"{server.new_bucket()}/pre fix/of ours", server.options())


KINDS: dict[str, Callable[[pytest.FixtureRequest], ObjectStore]] = {
    "local": local_store,
    "memory": memory_store,
    "s3": s3_store,
    "s3-prefix": s3_prefix_store,
}


#: A folder in a bucket needs all that a whole bucket needs, except for keys of the bucket itself.
MOST_KINDS = ("local", "memory", "s3-prefix")


@pytest.fixture(params=MOST_KINDS)
def store(request: pytest.FixtureRequest) -> ObjectStore:
    """An empty store; tests about keys parametrize it with KINDS."""
    return KINDS[request.param](request)


@pytest.fixture(params=["local", "s3"])
def durable_store(request: pytest.FixtureRequest) -> ObjectStore:
    """An empty store of the kinds that keep objects."""
    return KINDS[request.param](request)
