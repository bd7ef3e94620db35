"""Copies of a primary, and when a standby may lack a commit: docs/operations.md ("Copies of a
primary") and docs/guarantees.md (remote_apply)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pending_commit import PendingCommit
from sk_command import sk, sk_json

from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.errors import ProcessEnded
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.standby import wait_replayed
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_server.program import run_program

TIMEOUT = 120.0
WARNING = "canceling wait for synchronous replication due to user request"
SLOTS = "SELECT slot_name FROM pg_replication_slots ORDER BY 1"


def cold_copy(primary: Postgres, path: Path) -> Postgres:
    """A copy of the data directory of a stopped server."""
    primary.stop()
    run_program(["cp", "--archive", primary.data_dir, path])
    return Postgres(primary.binaries, path)


def test_a_base_backup_waits_for_a_proposer_until_it_is_detached(
    cluster: QuorumCluster, tmp_path: Path
) -> None:
    with cluster.postgres.base_backup(tmp_path / "copy") as copy:
        assert copy.execute(SLOTS) == []
        servers = ("--primary", cluster.postgres.dsn(), "--primary", copy.dsn())
        members = ",".join(safekeeper.address for safekeeper in cluster.safekeepers)
        views = sk_json("status", "--safekeepers", members, *servers)["primaries"]
        assert [view["role"] for view in views] == ["primary", "not the log's primary"]
        assert "make it again from a base backup" in " ".join(views[1]["remarks"])
        pending = PendingCommit(copy)
        pending.wait_blocked(TIMEOUT)
        copy.execute("SELECT pg_cancel_backend(%s)", (pending.pid,))
        wait_until(lambda: pending.has_returned, TIMEOUT, "the wait to be cancelled")
        assert pending.notices == [WARNING]
        pending = PendingCommit(copy)
        pending.wait_blocked(TIMEOUT)
        assert sk("detach", "--primary", copy.dsn(), "--force").returncode == 0
        pending.wait_returned(TIMEOUT)


def test_a_cold_copy_holds_wal_until_its_slots_are_dropped(
    cluster: QuorumCluster, tmp_path: Path
) -> None:
    cluster.proposer.kill()
    with cold_copy(cluster.postgres, tmp_path / "copy") as copy:
        (log,), (slot,) = copy.execute(SLOTS)
        assert (log.startswith("sk_log_"), slot) == (True, "walproposer")
        held = "SELECT restart_lsn, active FROM pg_replication_slots WHERE restart_lsn IS NOT NULL"
        ((restart_lsn, active),) = copy.execute(held)
        pending = PendingCommit(copy)
        pending.wait_blocked(TIMEOUT)
        copy.execute("CHECKPOINT")
        assert copy.execute(held) == [(restart_lsn, False)] == [(restart_lsn, active)]

        copy.configure(wal_level="minimal", max_wal_senders=0)
        with pytest.raises(ProcessEnded, match=r'physical replication slot ".*" exists, but'):
            copy.restart("immediate")
        copy.configure(wal_level=None, max_wal_senders=None)
        copy.start()
        pending = PendingCommit(copy)
        pending.wait_blocked(TIMEOUT)
        assert sk("detach", "--primary", copy.dsn(), "--drop-slot", "--force").returncode == 0
        pending.wait_returned(TIMEOUT)
        assert copy.execute(SLOTS) == []
        copy.configure(max_wal_senders=0, wal_level="minimal")
        copy.restart()


def test_remote_apply_waits_for_no_replay(
    cluster: QuorumCluster, standby_factory: Callable[..., Postgres]
) -> None:
    primary = cluster.postgres
    primary.execute("CREATE TABLE applied (a int)")
    standby = standby_factory(primary, "standby", cluster.replica_conninfo())
    wait_replayed(standby, primary.flush_lsn(), TIMEOUT)
    standby.execute("SELECT pg_wal_replay_pause()")
    primary.execute("SET synchronous_commit = remote_apply; INSERT INTO applied VALUES (1)")
    assert standby.execute("SELECT a FROM applied") == []
    standby.execute("SELECT pg_wal_replay_resume()")
    wait_replayed(standby, primary.flush_lsn(), TIMEOUT)
    assert standby.execute("SELECT a FROM applied") == [(1,)]
