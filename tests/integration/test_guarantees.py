"""What software outside Postgres cannot guarantee, as docs/guarantees.md describes it, and the
warnings.

Each test makes a commit visible that no quorum has, then fails over: it is lost, and was never
acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from failover_world import TIMEOUT, FailoverWorld, Loss
from pending_commit import PendingCommit
from sk_command import assert_refused, sk, sk_json

from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.waiting import wait_until

INSERT = "INSERT INTO t VALUES (7)"
ROWS = "SELECT a FROM t"
WARNING_SECONDS = 1.0


@pytest.fixture
def world(failover_world: Callable[..., FailoverWorld]) -> FailoverWorld:
    """The quorum is unreachable, and there is an empty table t."""
    world = failover_world()
    world.cluster.postgres.execute("CREATE TABLE t (a int)")
    for proxy in world.cluster.proxies:
        proxy.cut()
    return world


def assert_lost_by_failover(world: FailoverWorld) -> None:
    world.lose(Loss.MACHINE)
    with world.promotion() as promotion:
        promotion.wait_streaming(TIMEOUT)
        assert world.standby.execute(ROWS) == []


def status_of(world: FailoverWorld, postgres: Postgres) -> dict[str, object]:
    """The report of `sk status` about a Postgres."""
    members = ("--safekeepers", ",".join(world.addresses))
    (server,) = sk_json("status", *members, "--primary", postgres.dsn())["primaries"]
    return dict(server)


def test_a_cancelled_wait_becomes_visible(world: FailoverWorld) -> None:
    primary = world.cluster.postgres
    pending = PendingCommit(primary, INSERT)
    pending.wait_blocked(TIMEOUT)
    assert primary.execute(ROWS) == []  # until then no session sees it

    def long_enough() -> bool:
        server = status_of(world, primary)
        seconds = server["commit_wait_seconds"]
        return isinstance(seconds, float) and seconds > WARNING_SECONDS

    wait_until(long_enough, TIMEOUT, "the wait to be worth a warning")
    server = status_of(world, primary)
    assert server["commit_waits"] == 1
    assert "commits: 1 commit waits, the longest for" in str(server["remarks"])
    members = ("--safekeepers", ",".join(world.addresses))
    check = sk("check", "--primary", primary.dsn(), *members)
    assert "1 commit waits, the longest for" in check.stdout

    primary.execute("SELECT pg_cancel_backend(%s)", (pending.pid,))
    wait_until(lambda: pending.has_returned, TIMEOUT, "the cancelled commit to return")
    assert "canceling wait for synchronous replication due to user request" in pending.notices
    assert primary.execute(ROWS) == [(7,)]
    assert_lost_by_failover(world)


def test_a_session_may_opt_out(world: FailoverWorld) -> None:
    primary = world.cluster.postgres
    for rows, value in enumerate(("local", "off"), start=1):
        primary.execute(INSERT, options=f"-c synchronous_commit={value}")
        assert primary.execute(ROWS) == [(7,)] * rows
        local = "-c synchronous_commit=local"
        primary.execute(f"ALTER ROLE postgres SET synchronous_commit = {value}", options=local)
        remarks = str(status_of(world, primary)["remarks"])
        assert f'"{value}" by ALTER ROLE postgres' in remarks
    assert_lost_by_failover(world)


def test_a_crash_makes_waiting_transactions_visible(world: FailoverWorld) -> None:
    primary = world.cluster.postgres
    PendingCommit(primary, INSERT).wait_blocked(TIMEOUT)
    assert primary.execute(ROWS) == []
    primary.crash()
    primary.start()
    assert primary.execute(ROWS) == [(7,)]
    assert_lost_by_failover(world)


def test_a_deposed_primary_that_comes_back_is_named(world: FailoverWorld) -> None:
    """It acknowledges nothing, but clients that still connect to it can read its rows."""
    primary = world.cluster.postgres
    PendingCommit(primary, INSERT).wait_blocked(TIMEOUT)
    world.lose(Loss.MACHINE)
    with world.promotion() as promotion:
        promotion.wait_streaming(TIMEOUT)
        assert status_of(world, world.standby)["role"] == "primary"
        primary.start()
        assert primary.execute(ROWS) == [(7,)]
        PendingCommit(primary).wait_blocked(TIMEOUT)
        server = status_of(world, primary)
        assert server["role"] == "deposed primary"
        assert "left the quorum's log at" in str(server["remarks"])
        assert "sk rejoin" in str(server["remarks"])
        page = sk("status", "--safekeepers", ",".join(world.addresses), "--primary", primary.dsn())
        assert "deposed primary" in page.stdout
        addresses = ",".join(world.addresses)
        done = sk("promote", "--standby", primary.dsn(), "--safekeepers", addresses, "--dry-run")
        sentence = "the server is a deposed primary: it left the quorum's log at "
        assert_refused(done, 1, sentence, "sk rejoin")
        assert world.standby.execute(ROWS) == []
