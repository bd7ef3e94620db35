"""Stock standbys of every Postgres here follow the safekeepers, as if those were their primary."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from stock_clients import (
    TIMEOUT,
    WalReceiverProcess,
    assert_files_equal,
    assert_same_data,
    finish_segment,
)

from pg_fixtures.binaries import PostgresBinaries, all_postgres
from pg_fixtures.cluster import QuorumCluster
from pg_fixtures.postgres import Postgres
from pg_fixtures.processes import SK, run_program
from pg_fixtures.proposer import ProposerProcess
from pg_fixtures.safekeeper import SafekeeperProcess
from pg_fixtures.standby import replica_conninfo, wait_replayed
from pg_fixtures.waiting import wait_until
from pgwal.lsn import Lsn

SEG_SIZE = 1 << 20
SETTINGS = {"wal_keep_size": "512MB", "autovacuum": False}
PROMPT = {"wal_receiver_status_interval": "1s", "wal_retrieve_retry_interval": "200ms"}
SLOT = "standby"

every_postgres = pytest.mark.parametrize(
    "pg_binaries", all_postgres(), ids=lambda b: f"Postgres {b.version}", indirect=True
)


def timeline_of(safekeeper: SafekeeperProcess) -> dict[str, Any]:
    timeline = safekeeper.timeline()
    assert timeline is not None
    return timeline


def replicas_of(safekeeper: SafekeeperProcess) -> list[str]:
    """The application names of those who stream from it."""
    if not safekeeper.alive:
        return []
    return sorted(r["application_name"] for r in timeline_of(safekeeper)["replicas"])


def xmin_of_slot(primary: Postgres) -> int | None:
    """What the primary keeps for the replicas."""
    rows = primary.execute(
        "SELECT xmin::text::bigint FROM pg_replication_slots WHERE slot_name = 'walproposer'"
    )
    value: int | None = rows[0][0]
    return value


def pgbench(primary: Postgres) -> None:
    primary.pgbench("-n", "-c", "4", "-t", "100")


@contextmanager
def old_query(standby: Postgres) -> Iterator[int]:
    """A query that needs what it sees now for as long as the block lasts; its xmin."""
    with standby.connect(autocommit=False) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        ((xmin,),) = connection.execute(
            "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint"
        ).fetchall()
        yield xmin


def assert_feedback_reaches_the_primary(primary: Postgres, standby: Postgres) -> None:
    """As long as the query runs; and it is forgotten when the standby wishes so."""
    with old_query(standby) as xmin:
        pgbench(primary)
        wait_until(lambda: xmin_of_slot(primary) == xmin, TIMEOUT, f"the primary to keep {xmin}")
    wait_until(
        lambda: (xmin_of_slot(primary) or 0) > xmin, TIMEOUT, "the primary to keep less again"
    )
    standby.configure(hot_standby_feedback=False)
    wait_until(lambda: xmin_of_slot(primary) is None, TIMEOUT, "the primary to forget")


def elect_until_known(keepers: list[SafekeeperProcess]) -> bool:
    """Complete the log's tail; an election ends when a quorum knows that it is committed."""
    run_program([*SK, "elect", f"--safekeepers={','.join(k.address for k in keepers)}"])
    statuses = [timeline_of(keeper) for keeper in keepers]
    return len({s[name] for s in statuses for name in ("commit_lsn", "flush_lsn")}) == 1


def promote(standby: Postgres) -> None:
    assert standby.execute("SELECT pg_promote(true, 60)") == [(True,)]


@every_postgres
def test_standbys_follow_the_safekeepers(
    quorum_cluster: Callable[..., QuorumCluster],
    standby_factory: Callable[..., Postgres],
    pg_binaries: PostgresBinaries,
    tmp_path: Path,
) -> None:
    """Two standbys and one that cascades, through the loss of a safekeeper and a promotion."""
    cluster = quorum_cluster(wal_seg_size=SEG_SIZE, settings=SETTINGS)
    primary, keepers = cluster.postgres, cluster.safekeepers
    primary.pgbench("-i", "-s", "1", "-q")
    if primary.execute("SELECT 1 FROM pg_available_extensions WHERE name = 'amcheck'"):
        primary.execute("CREATE EXTENSION amcheck")
    receiver = WalReceiverProcess(
        pg_binaries, tmp_path / "archive", replica_conninfo([keepers[1].address])
    )
    for number, keeper in enumerate(keepers):
        name = tmp_path / f"make-slot-{number}"
        conninfo = replica_conninfo([keeper.address])
        WalReceiverProcess(pg_binaries, name, conninfo, f"--slot={SLOT}").run_once("--create-slot")
    with receiver:
        slotted = standby_factory(
            primary,
            "slotted",
            cluster.replica_conninfo(application_name="slotted"),
            primary_slot_name=SLOT,
            hot_standby_feedback=True,
            **PROMPT,
        )
        conninfo = replica_conninfo(
            [k.address for k in reversed(keepers)], application_name="plain"
        )
        plain = standby_factory(primary, "plain", conninfo, **PROMPT)
        cascading = standby_factory(primary, "cascading", slotted.dsn(), **PROMPT)
        standbys = [slotted, plain, cascading]

        pgbench(primary)
        assert replicas_of(keepers[0]) == ["slotted"]
        assert replicas_of(keepers[2]) == ["plain"]
        (slot,) = timeline_of(keepers[0])["slots"]
        assert slot["active"]
        assert_feedback_reaches_the_primary(primary, slotted)

        keepers[0].kill()
        pgbench(primary)
        wait_until(lambda: "slotted" in replicas_of(keepers[1]), TIMEOUT, "it to have moved")
        for standby in standbys:
            assert_same_data(primary, standby)
        assert Lsn.parse(timeline_of(keepers[1])["slots"][0]["restart_lsn"])
        keepers[0].restart()
        last_of_old = finish_segment(primary)
        receiver.wait_segment(last_of_old)

        primary.stop()
        cluster.proposer.terminate()
        wait_until(lambda: elect_until_known(keepers), TIMEOUT, "all to know the end of the log")
        wait_replayed(slotted, Lsn.parse(timeline_of(keepers[0])["commit_lsn"]), TIMEOUT)
        promote(slotted)
        proposer = ProposerProcess(
            slotted.dsn(),
            [k.address for k in keepers],
            log_path=cluster.root / "new-proposer.log",
            configure=True,
        )
        with proposer:
            proposer.wait_streaming()
            pgbench(slotted)
            for standby in (plain, cascading):
                assert_same_data(slotted, standby)
            receiver.wait_segment(finish_segment(slotted))
            assert timeline_of(keepers[1])["tli"] == 2
            assert {r["tli"] for r in timeline_of(keepers[1])["replicas"]} == {2}
            receiver.interrupt()
    assert "00000002.history" in receiver.segments()
    assert_files_equal(receiver, primary.pg_wal, slotted.pg_wal, at_least=3, unfinished=1)
    for keeper in keepers:
        assert "Traceback" not in keeper.log_text()
