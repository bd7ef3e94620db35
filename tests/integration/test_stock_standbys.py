"""Stock standbys follow the safekeepers as they would follow a primary."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from failover import failed_over, timeline_of
from pg_versions import oldest_and_newest
from stock_clients import (
    TIMEOUT,
    WalReceiverProcess,
    assert_files_equal,
    assert_same_data,
    finish_segment,
)

from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.safekeeper import SafekeeperProcess
from quorum_wal.pg_fixtures.standby import replica_conninfo, wait_replayed
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_server.binaries import PostgresBinaries

SEG_SIZE = 1 << 20
SETTINGS = {"wal_keep_size": "512MB", "autovacuum": False}
PROMPT = {"wal_receiver_status_interval": "1s", "wal_retrieve_retry_interval": "200ms"}
SLOT = "standby"
HANG_TIMEOUT_SECONDS = 6
# After the end of a safekeeper it connects again within wal_retrieve_retry_interval. The rest is
# for a busy machine.
LEAVE_SECONDS_MAX = 20

# The behaviour was the same in all versions. Standbys of the oldest one follow safekeepers in the
# tests of failovers.
newest_postgres = pytest.mark.parametrize(
    "pg_binaries", oldest_and_newest()[-1:], ids=lambda b: f"Postgres {b.version}", indirect=True
)


def replicas_of(safekeeper: SafekeeperProcess) -> list[str]:
    """The application names of the clients that stream from it."""
    if not safekeeper.alive:
        return []
    return sorted(r["application_name"] for r in timeline_of(safekeeper)["replicas"])


def xmin_of_slot(primary: Postgres) -> int | None:
    """The xmin that the primary keeps for the replicas."""
    rows = primary.execute(
        "SELECT xmin::text::bigint FROM pg_replication_slots WHERE slot_name = 'walproposer'"
    )
    value: int | None = rows[0][0]
    return value


def pgbench(primary: Postgres) -> None:
    primary.pgbench("-n", "-c", "4", "-t", "25")


@contextmanager
def old_query(standby: Postgres) -> Iterator[int]:
    """A query that keeps its snapshot for the length of the block; its xmin."""
    with standby.connect(autocommit=False) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        ((xmin,),) = connection.execute(
            "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint"
        ).fetchall()
        yield xmin


def assert_feedback_reaches_the_primary(primary: Postgres, standby: Postgres) -> None:
    """While the query runs. Afterwards the primary drops it when the standby sends none."""
    with old_query(standby) as xmin:
        pgbench(primary)
        wait_until(lambda: xmin_of_slot(primary) == xmin, TIMEOUT, f"the primary to keep {xmin}")
    wait_until(
        lambda: (xmin_of_slot(primary) or 0) > xmin, TIMEOUT, "the primary to keep less again"
    )
    standby.configure(hot_standby_feedback=False)
    wait_until(lambda: xmin_of_slot(primary) is None, TIMEOUT, "the primary to forget")


def make_slots(binaries: PostgresBinaries, keepers: list[SafekeeperProcess], folder: Path) -> None:
    """Create the standby's slot on each safekeeper that it may stream from."""
    for keeper in keepers:
        conninfo = replica_conninfo([keeper.address])
        WalReceiverProcess(
            binaries, folder / f"slot-on-{keeper.id}", conninfo, f"--slot={SLOT}"
        ).run_once("--create-slot")


def prepare(primary: Postgres) -> None:
    primary.pgbench("-i", "-s", "1", "-q")
    if primary.execute("SELECT 1 FROM pg_available_extensions WHERE name = 'amcheck'"):
        primary.execute("CREATE EXTENSION amcheck")


def test_a_standby_leaves_a_safekeeper_that_hangs(
    quorum_cluster: Callable[..., QuorumCluster], standby_factory: Callable[..., Postgres]
) -> None:
    """SIGSTOP of its process, as `kill -STOP` or a stuck process would do."""
    cluster = quorum_cluster(
        wal_seg_size=SEG_SIZE,
        settings=SETTINGS,
        safekeeper_arguments=[f"--hang-timeout={HANG_TIMEOUT_SECONDS}"],
    )
    primary, (first, second, third) = cluster.postgres, cluster.safekeepers
    standby = standby_factory(
        primary, "standby", cluster.replica_conninfo(), wal_receiver_timeout="5s", **PROMPT
    )
    wait_until(lambda: len(replicas_of(first)) == 1, TIMEOUT, "the standby to stream")
    begun = time.monotonic()
    os.kill(first.pid, signal.SIGSTOP)
    primary.execute("CREATE TABLE t (a int)")
    wait_replayed(standby, primary.flush_lsn(), TIMEOUT)
    seconds = time.monotonic() - begun
    print(f"it replayed from another safekeeper after {seconds:.1f} s")
    assert seconds < HANG_TIMEOUT_SECONDS + LEAVE_SECONDS_MAX
    assert len(replicas_of(second)) == 1
    assert f"process {first.pid} sent no heartbeat" in first.log_text()
    assert not first.alive

    first.start()  # as its supervisor does
    first.wait_ready()
    cluster.wait_flushed(primary.flush_lsn())
    third.terminate()
    assert "no heartbeat" not in third.log_text()


@newest_postgres
def test_standbys_follow_the_safekeepers(
    quorum_cluster: Callable[..., QuorumCluster],
    standby_factory: Callable[..., Postgres],
    pg_binaries: PostgresBinaries,
    tmp_path: Path,
) -> None:
    """Two standbys and a cascading one, through the loss of a safekeeper and a promotion."""
    cluster = quorum_cluster(wal_seg_size=SEG_SIZE, settings=SETTINGS)
    primary, (first, second, third) = cluster.postgres, cluster.safekeepers
    prepare(primary)
    make_slots(pg_binaries, cluster.safekeepers, tmp_path)
    receiver = WalReceiverProcess(
        pg_binaries, tmp_path / "archive", replica_conninfo([second.address])
    )
    with receiver:
        slotted = standby_factory(
            primary,
            "slotted",
            cluster.replica_conninfo(application_name="slotted"),
            primary_slot_name=SLOT,
            hot_standby_feedback=True,
            **PROMPT,
        )
        backwards = [third.address, second.address, first.address]
        conninfo = replica_conninfo(backwards, application_name="plain")
        plain = standby_factory(primary, "plain", conninfo, **PROMPT)
        cascading = standby_factory(primary, "cascading", slotted.dsn(), **PROMPT)

        pgbench(primary)
        wait_until(lambda: replicas_of(first) == ["slotted"], TIMEOUT, "it to stream")
        wait_until(lambda: replicas_of(third) == ["plain"], TIMEOUT, "it to stream")
        assert timeline_of(first)["slots"][0]["active"]
        assert_feedback_reaches_the_primary(primary, slotted)

        first.kill()
        pgbench(primary)
        wait_until(lambda: "slotted" in replicas_of(second), TIMEOUT, "it to have moved")
        for standby in (slotted, plain, cascading):
            assert_same_data(primary, standby)
        assert timeline_of(second)["slots"][0]["restart_lsn"] is not None
        first.restart()
        receiver.wait_segment(finish_segment(primary))

        with failed_over(cluster, slotted):
            pgbench(slotted)
            for standby in (plain, cascading):
                assert_same_data(slotted, standby)
            receiver.wait_segment(finish_segment(slotted))
            assert {r["tli"] for r in timeline_of(second)["replicas"]} == {2}
            receiver.interrupt()
    assert "00000002.history" in receiver.segments()
    assert_files_equal(receiver, primary.pg_wal, slotted.pg_wal, at_least=3, unfinished=1)
    for keeper in cluster.safekeepers:
        assert "Traceback" not in keeper.log_text()
