"""`sk detach`: it releases waiting commits with one copy only with --force."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pending_commit import PendingCommit
from sk_command import Done, assert_refused, sk

from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.ledger import Ledger
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.waiting import wait_until

TIMEOUT = 120.0
COMMIT = "SELECT pg_logical_emit_message(true, 'a', 'b')"


@pytest.fixture
def attached(cluster: QuorumCluster) -> Iterator[QuorumCluster]:
    """A proposer whose primary's commits wait; again at the end."""
    yield cluster
    cluster.proposer.kill()  # a new one configures the primary again
    cluster.start(TIMEOUT)


def detach(postgres: Postgres, *more: str) -> Done:
    return sk("detach", "--primary", postgres.dsn(), *more)


def names(postgres: Postgres) -> str:
    ((value,),) = postgres.execute("SHOW synchronous_standby_names")
    return str(value).strip('"')


def test_with_a_quorum_it_detaches(attached: QuorumCluster, ledger: Ledger) -> None:
    """Also on a busy primary, where some commit always waits for a moment."""
    done = detach(attached.postgres)
    assert done.returncode == 0, done.stderr
    sentence = "synchronous_standby_names was reset, commits no longer wait for a quorum"
    kept = 'replication slot "walproposer" keeps WAL on the primary; --drop-slot removes it, once '
    assert done.stdout.splitlines() == [sentence, f"{kept}the proposer has stopped"]
    assert names(attached.postgres) == ""
    ledger.wait_for_progress(10, TIMEOUT)


def test_waiting_commits_are_not_released(attached: QuorumCluster) -> None:
    postgres = attached.postgres
    for safekeeper in attached.safekeepers[1:]:
        safekeeper.kill()
    pending = [PendingCommit(postgres) for _ in range(2)]
    for commit in pending:
        commit.wait_blocked(TIMEOUT)
    done = detach(postgres)
    assert_refused(done, 3, "2 commits wait, the longest for ", "--force")
    assert "they would return with one copy, on this primary, and a failover would" in done.stderr
    assert names(postgres) == "walproposer"
    assert all(commit.is_blocked for commit in pending)

    done = detach(postgres, "--force")
    assert done.returncode == 0, done.stderr
    assert "2 commits wait, the longest for " in done.stdout
    assert "they return now, with one copy, on this primary" in done.stdout
    for commit in pending:
        commit.wait_returned(TIMEOUT)
    postgres.execute(COMMIT)


def test_waiting_commits_are_not_released_without_a_proposer(attached: QuorumCluster) -> None:
    postgres = attached.postgres
    attached.proposer.kill()
    pending = PendingCommit(postgres)
    pending.wait_blocked(TIMEOUT)
    assert_refused(detach(postgres), 3, "1 commit waits, the longest for ", "--force")
    assert names(postgres) == "walproposer"
    assert detach(postgres, "--force").returncode == 0
    pending.wait_returned(TIMEOUT)


def test_a_slot_in_use_is_reported_before_anything_changes(attached: QuorumCluster) -> None:
    postgres = attached.postgres
    done = detach(postgres, "--drop-slot")
    assert_refused(done, 1, 'replication slot "walproposer" is active', "stop the proposer")
    assert names(postgres) == "walproposer"


def test_a_setting_of_the_configuration_file_is_reported(attached: QuorumCluster) -> None:
    """ALTER SYSTEM RESET does not remove it."""
    postgres = attached.postgres
    postgres.configure(synchronous_standby_names="walproposer")
    try:
        done = detach(postgres)
        assert_refused(done, 1, "commits still wait: synchronous_standby_names is still", "conf")
    finally:
        postgres.configure(synchronous_standby_names=None)
        wait_until(lambda: names(postgres) == "", TIMEOUT, "the setting to go")


def test_a_role_that_cannot_see_who_waits(attached: QuorumCluster) -> None:
    postgres = attached.postgres
    postgres.execute("DROP ROLE IF EXISTS blind; CREATE ROLE blind LOGIN REPLICATION")
    done = sk("detach", "--primary", postgres.dsn(user="blind"))
    assert_refused(done, 1, "may not see whether commits wait", "pg_read_all_stats")
    assert names(postgres) == "walproposer"
