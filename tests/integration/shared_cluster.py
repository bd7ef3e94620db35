"""A cluster that tests share, with faults that are undone after each test; also in containers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, Protocol, Self, TypeVar

import pytest

from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_server.errors import PgServerError

TIMEOUT = 120.0


class Cluster(Protocol):
    def __enter__(self) -> Self: ...

    def close(self) -> None: ...


C = TypeVar("C", bound=Cluster)


class SharedCluster(Generic[C]):
    """Created at the first use, and created again if a test has left a state for which `repair`
    raises PgServerError."""

    def __init__(self, make: Callable[[], C], repair: Callable[[C], None]) -> None:
        self._make = make
        self._repair = repair
        self._cluster: C | None = None

    def whole(self) -> C:
        """All parts run and commits proceed."""
        if self._cluster is not None:
            try:
                self._repair(self._cluster)
            except PgServerError:
                self.discard()
        if self._cluster is None:
            self._cluster = self._make().__enter__()
        return self._cluster

    def lent(self, request: pytest.FixtureRequest) -> Iterator[C]:
        """Lend it to one test, repaired. After a failed test it is not used again."""
        failed_before = request.session.testsfailed
        yield self.whole()
        if request.session.testsfailed != failed_before:
            self.discard()

    def discard(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None


def repair(cluster: QuorumCluster) -> None:
    """Undo every fault, and wait until all members follow again."""
    for proxy in cluster.proxies:
        proxy.restore()
    for service in (*cluster.safekeepers, cluster.proposer):
        if service.alive:
            service.resume()
    cluster.start(TIMEOUT)
    members = len(cluster.safekeepers)
    wait_until(
        lambda: cluster.proposer.status()["quorum"]["connected"] == members, TIMEOUT, "all members"
    )
