"""A coordinator's port with TLS and passwords: the real port; a test gives the verdicts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from accounts import TAKE, amounts, prepared
from psycopg import pq
from psycopg.conninfo import make_conninfo
from scripted_coordinator import ScriptedCoordinator
from secured_cluster import PASSWORD, Secrets, write_secrets

from quorum_wal.access.access import AccessConfig
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pgwire.tls import TlsFiles
from quorum_wal.qsync import AsyncQsync, Committed, CoordinatorError, Qsync, TransactionRefused
from quorum_wal.walproposer.qsync.verdict_server import PORT_LIMITS

WRONG = [
    ({"password": "wrong"}, "08001", "password authentication failed"),
    ({"user": "stranger"}, "08001", "password authentication failed"),
    ({"sslmode": "disable", "channel_binding": "disable"}, "08001", "requires TLS"),
    ({"sslrootcert": "system"}, "08001", "certificate"),
    ({"user": "watcher"}, "42501", "permission denied"),
]


@pytest.fixture
def secrets(tmp_path: Path) -> Secrets:
    files = write_secrets(tmp_path)
    users = {"app": "client", "watcher": "monitor"}
    files.user_file.write_text("".join(f"{u}:{r}:{files.verifier}\n" for u, r in users.items()))
    return files


@pytest.fixture
def secured(secrets: Secrets) -> Iterator[ScriptedCoordinator]:
    tls = TlsFiles(secrets.certificate, secrets.key, None)
    with ScriptedCoordinator(AccessConfig(tls, secrets.user_file, PORT_LIMITS)) as scripted:
        yield scripted


@pytest.fixture
def conninfo(secured: ScriptedCoordinator, secrets: Secrets) -> str:
    """The conninfo that a program gives to Qsync."""
    trust = {"sslmode": "verify-full", "sslrootcert": str(secrets.ca), "channel_binding": "require"}
    place = {"host": "127.0.0.1", "port": secured.port, "user": "app", "password": PASSWORD}
    return make_conninfo("", **place, **trust)


def test_a_client_commits_over_tls_with_its_password(
    server: Postgres, conninfo: str, secured: ScriptedCoordinator
) -> None:
    with Qsync(conninfo) as q, server.connect() as connection:
        for _ in range(2):
            with q.transaction(connection) as tx:
                tx.execute(TAKE, (10, "alice"))
            assert isinstance(tx.result, Committed)
        assert q.barrier(connection) > 0
    assert {question.user for question in secured.asked} == {"app"}
    assert amounts(server)["alice"] == 80


async def test_so_does_one_for_asyncio(
    server: Postgres, conninfo: str, secured: ScriptedCoordinator
) -> None:
    connection = await psycopg.AsyncConnection.connect(server.dsn(), autocommit=True)
    async with connection, AsyncQsync(conninfo) as q:
        async with q.transaction(connection) as tx:
            await tx.execute(TAKE, (10, "alice"))
        assert isinstance(tx.result, Committed)
    assert {question.user for question in secured.asked} == {"app"}
    assert amounts(server)["alice"] == 90


@pytest.mark.parametrize(("changes", "sqlstate", "reason"), WRONG)
def test_a_role_without_the_right_is_refused_before_prepare(
    server: Postgres, conninfo: str, changes: dict[str, Any], sqlstate: str, reason: str
) -> None:
    if "sslrootcert" in changes and pq.version() < 160000:
        pytest.skip("libpq is older than 16: it has no sslrootcert=system")
    with Qsync(make_conninfo(conninfo, **changes)) as q, server.connect() as connection:
        refused = pytest.raises(TransactionRefused, match=reason)
        with refused as raised, q.transaction(connection) as tx:
            tx.execute(TAKE, (10, "alice"))
        assert raised.value.outcome.sqlstate == sqlstate
        with pytest.raises(CoordinatorError, match=reason):
            q.outcome(f"skq1.d.1.1-1-1-1.{'0' * 32}", timeout=0.2)
    assert prepared(server) == []
    assert amounts(server)["alice"] == 100
