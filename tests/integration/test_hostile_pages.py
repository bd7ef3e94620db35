"""Web pages and commands while a service at a member's address lies: they show all others, name the
liar, and commits do not wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from typing import Any

import pytest
from lying_safekeeper import LyingSafekeeper
from sk_command import sk

from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.http_status import http_get
from quorum_wal.pg_fixtures.ledger import Ledger
from quorum_wal.pg_fixtures.waiting import wait_until

TIMEOUT = 120.0
NESTED = b'{"disk":' + b"[" * 200_000 + b"]" * 200_000 + b"}"


@pytest.fixture
def liar(cluster: QuorumCluster) -> Iterator[LyingSafekeeper]:
    with LyingSafekeeper(cluster.safekeepers[1]) as liar:
        yield liar
    liar.victim.start()


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []

    def handle_data(self, data: str) -> None:
        self.parts.append(data)


def shown_by(cluster: QuorumCluster) -> str:
    code, body = http_get(cluster.proposer.http_address, "/body", timeout=TIMEOUT)
    assert code == 200, body
    text = _Text()
    text.feed(body)
    return " ".join(" ".join(text.parts).split())


def wait_shown(cluster: QuorumCluster, *texts: str) -> None:
    def found() -> bool:
        shown = shown_by(cluster)
        return all(text in shown for text in texts)

    wait_until(found, TIMEOUT, f"the page to show {texts}", interval=0.5)


def lie(**changes: Any) -> Callable[[LyingSafekeeper], None]:
    return lambda liar: liar.status.update(changes)


LIES: dict[str, Callable[[LyingSafekeeper], None]] = {
    "a number for a list": lie(replicas=7),
    "an object for a text": lie(replicas=[{"application_name": {}, "address": [], "state": 1}]),
    "no node id": lie(promised={"term": "x", "uuid": "zz"}),
    "a huge number": lie(wal_bytes=10**400),
    "a state that does not exist": lie(state="dancing"),
    "no position": lie(archive={"archived_lsn": "nowhere"}),
    "an instance that is no number": lambda liar: liar.identity.update(instance="zz"),
}


def test_a_liar_is_named_and_the_others_are_shown(
    cluster: QuorumCluster, liar: LyingSafekeeper, ledger: Ledger
) -> None:
    members = ",".join(safekeeper.address for safekeeper in cluster.safekeepers)
    sound = dict(liar.status)
    identity = dict(liar.identity)
    for name, tell in LIES.items():
        liar.status, liar.identity = dict(sound), dict(identity)
        tell(liar)
        done = sk("status", "--safekeepers", members)
        assert "Traceback" not in done.stderr, (name, done.stderr)
        assert "DEGRADED" in done.stdout, (name, done.stdout)
        assert "invalid" in done.stdout or "does not answer like" in done.stdout, name
    wait_shown(cluster, "DEGRADED", "safekeeper 1", "safekeeper 3")
    ledger.wait_for_progress(10, TIMEOUT)


@pytest.mark.parametrize("page", [NESTED, b'{"disk": {"free_bytes": "x"}}', b"[]", b"\xff"])
def test_a_page_that_is_none_costs_that_page_alone(
    cluster: QuorumCluster, liar: LyingSafekeeper, page: bytes
) -> None:
    liar.page = page
    members = ",".join(safekeeper.address for safekeeper in cluster.safekeepers)
    done = sk("status", "--safekeepers", members)
    assert "Traceback" not in done.stderr, done.stderr
    assert "status page" in done.stdout
    wait_shown(cluster, "DEGRADED", "safekeeper 1", "safekeeper 3")
