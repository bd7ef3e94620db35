"""Prepared transactions on a server that is left: a restore to a moment between PREPARE and COMMIT
PREPARED lists them, as `sk detach` does; `sk rejoin` lists those that only a deposed primary had.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from failover_world import TIMEOUT, FailoverWorld, Loss
from limbo import prepare, prepared_gids
from restored import SEGMENT_BYTES, RestoreProcess, archiving, restored_at, take_backup
from sk_command import sk
from test_rejoin import rejoin_arguments

from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.standby import wait_replayed
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_server.binaries import PostgresBinaries

SETTINGS = {"max_prepared_transactions": 20}
LOCAL = "-c synchronous_commit=local"
FILL = "SELECT pg_logical_emit_message(true, 'fill', repeat('x', 100))"


def test_a_restore_between_prepare_and_its_end(
    pg_binaries: PostgresBinaries, quorum_cluster: Callable[..., QuorumCluster], tmp_path: Path
) -> None:
    """The copy lists it; a new primary commits it, and then allows client writes."""
    archive = tmp_path / "archive"
    cluster = quorum_cluster(
        wal_seg_size=SEGMENT_BYTES, settings=SETTINGS, safekeeper_arguments=archiving(archive)
    )
    primary = cluster.postgres
    primary.execute("CREATE TABLE t (a int)")
    take_backup(archive, primary)
    gid = prepare(primary, "INSERT INTO t VALUES (1)")
    lsn = primary.flush_lsn()
    primary.execute(FILL)
    primary.execute(f"ROLLBACK PREPARED '{gid}'")
    later = prepare(primary, "INSERT INTO t VALUES (2)")
    primary.execute(FILL)
    target = (
        "--target-lsn",
        lsn,
        "--safekeepers",
        ",".join(s.address for s in cluster.safekeepers),
    )
    with restored_at(pg_binaries, tmp_path / "copy") as copy:
        done = copy.restore(archive, *target, "--start", *copy.starting)
        assert done.returncode == 0, done.stderr
        assert "1 transactions were prepared and not yet ended" in done.stdout
        assert f"{gid}, database postgres, owner postgres" in done.stdout
        assert "COMMIT PREPARED or ROLLBACK PREPARED" in done.stderr
        assert prepared_gids(copy) == {gid}
        assert copy.execute("SELECT a FROM t") == []
        copy.execute(f"COMMIT PREPARED '{gid}'")
        assert copy.execute("SELECT a FROM t") == [(1,)]

    cluster.proposer.kill()
    primary.crash()
    with (
        restored_at(pg_binaries, tmp_path / "new") as new,
        RestoreProcess(new, archive, cluster) as process,
    ):
        process.wait_streaming(TIMEOUT)
        finished = {"finished": True, "error": None}
        wait_until(lambda: process.status()["failover"] == finished, TIMEOUT, "its end")
        assert prepared_gids(new) == set()
        assert new.execute("SELECT a FROM t") == [(2,)]
        new.execute("INSERT INTO t VALUES (3)")
        assert later in process.log_text()


def test_a_deposed_primary_rejoins(failover_world: Callable[..., FailoverWorld]) -> None:
    world = failover_world(settings=SETTINGS)
    old, new = world.cluster.postgres, world.standby
    old.execute("CREATE TABLE t (a int)")
    kept = prepare(old, "INSERT INTO t VALUES (1)")
    old.execute(FILL)
    for proxy in world.cluster.proxies:
        proxy.cut()
    lost = [prepare(old, f"INSERT INTO t VALUES ({a})") for a in (2, 3)]
    old.execute(f"COMMIT PREPARED '{lost[0]}'", options=LOCAL)
    world.lose(Loss.MACHINE)
    with world.promotion() as promotion:
        promotion.wait_streaming(TIMEOUT)
        wait_until(lambda: not prepared_gids(new), TIMEOUT, "the limbo to be committed")
        done = sk(*rejoin_arguments(world, old, new))
        assert done.returncode == 0, done.stderr
        assert "2 transactions of qsync were prepared only here" in done.stdout
        assert all(f"    {gid} rolled_back" in done.stdout for gid in lost)
        assert kept not in done.stdout
        assert "qsync" not in sk(*rejoin_arguments(world, old, new)).stdout
        old.start()
        new.execute("INSERT INTO t VALUES (4)")
        wait_replayed(old, new.flush_lsn(), TIMEOUT)
        assert old.execute("SELECT a FROM t ORDER BY a") == [(1,), (4,)]


def test_detach_lists_what_stays(quorum_cluster: Callable[..., QuorumCluster]) -> None:
    cluster = quorum_cluster(wal_seg_size=SEGMENT_BYTES, settings=SETTINGS)
    primary = cluster.postgres
    primary.execute("CREATE TABLE t (a int)")
    gid = prepare(primary, "INSERT INTO t VALUES (1)")
    # The state after an interrupted failover.
    primary.execute("ALTER SYSTEM SET default_transaction_read_only = 'yes'")
    primary.execute("SELECT pg_reload_conf()")
    cluster.proposer.kill()
    done = sk("detach", "--primary", primary.dsn(), "--drop-slot")
    assert done.returncode == 0, done.stderr
    assert "clients can write again" in done.stdout
    assert "1 transaction of qsync stay prepared" in done.stdout
    assert f"    {gid}, database postgres" in done.stdout
    primary.execute("INSERT INTO t VALUES (2)")
    assert prepared_gids(primary) == {gid}
    primary.execute(f"COMMIT PREPARED '{gid}'")
    assert "qsync" not in sk("detach", "--primary", primary.dsn()).stdout
