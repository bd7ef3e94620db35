"""Old WAL is removed, slots hold it up to their limit, and an absent member gets the WAL that it
needs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from replication_client import ReplicationClient, ServerError
from sk_command import sk

from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.http_status import http_get
from quorum_wal.pg_fixtures.safekeeper import SafekeeperProcess
from quorum_wal.pg_fixtures.standby import replica_conninfo
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pgwal.lsn import Lsn

TIMEOUT = 120.0
MB = 1 << 20
FILL = "SELECT pg_logical_emit_message(true, 'fill', repeat('x', {} << 20))"


def timeline_of(safekeeper: SafekeeperProcess) -> dict[str, Any]:
    timeline = safekeeper.timeline()
    assert timeline is not None
    return timeline


def wait_held_by(safekeeper: SafekeeperProcess, holder: str, wal_bytes_max: int) -> dict[str, Any]:
    """Return its status when only this holds WAL, and the rest is removed."""

    def is_so() -> dict[str, Any] | None:
        status = timeline_of(safekeeper)
        done = status["retention"]["held_by"] == holder and status["wal_bytes"] <= wal_bytes_max
        return status if done else None

    return wait_until(is_so, TIMEOUT, f"WAL to be held by {holder}")


def sqlstate_of_start(safekeeper: SafekeeperProcess, command: str) -> tuple[str, str]:
    with ReplicationClient(replica_conninfo([safekeeper.address])) as client:
        try:
            client.start(command)
            while client.receive() is not None:
                continue
            client.results()
        except ServerError as error:
            return error.sqlstate, error.message
    raise AssertionError("it streams")


def test_the_kept_wal_and_its_holders(quorum_cluster: Callable[..., QuorumCluster]) -> None:
    cluster = quorum_cluster(
        wal_seg_size=MB,
        safekeeper_arguments=["--wal-keep-size=4MB", "--max-slot-wal-keep-size=16MB"],
    )
    primary, (first, second, third) = cluster.postgres, cluster.safekeepers
    start_lsn = timeline_of(first)["start_lsn"]
    with ReplicationClient(replica_conninfo([first.address])) as client:
        client.command("CREATE_REPLICATION_SLOT archive PHYSICAL RESERVE_WAL")
    primary.execute(FILL.format(8))
    cluster.wait_flushed(primary.flush_lsn())  # by all: the second may not be in the quorum
    wait_held_by(second, "wal_keep", 6 * MB)
    held = wait_held_by(first, "slot archive", 12 * MB)
    assert held["local_start_lsn"] <= held["slots"][0]["restart_lsn"]
    assert held["slots"][0]["wal_status"] == "extended"
    assert 0 < held["slots"][0]["safe_wal_size"] < 16 * MB
    sqlstate, words = sqlstate_of_start(second, f"START_REPLICATION {start_lsn}")
    assert (sqlstate, "has already been removed" in words) == ("58P01", True)

    third.kill()
    primary.execute(FILL.format(16))
    assert wait_held_by(second, "members", 64 * MB)["wal_bytes"] >= 16 * MB
    third.start()
    wait_held_by(second, "wal_keep", 6 * MB)
    wait_held_by(third, "wal_keep", 6 * MB)

    lost = wait_held_by(first, "wal_keep", 6 * MB)
    assert lost["slots"][0]["wal_status"] == "lost"
    assert "replication slot lost" in first.log_text()
    command = f"START_REPLICATION SLOT archive {lost['commit_lsn']}"
    assert sqlstate_of_start(first, command)[0] == "55000"

    for safekeeper in cluster.safekeepers:  # the proposer compares its tail with the remaining WAL
        safekeeper.restart()
    cluster.proposer.kill()
    cluster.start()
    primary.execute(FILL.format(1))
    cluster.wait_flushed(primary.flush_lsn())
    assert timeline_of(first)["slots"][0]["wal_status"] == "lost"
    for safekeeper in cluster.safekeepers:
        assert "Traceback" not in safekeeper.log_text()
        assert Lsn.parse(timeline_of(safekeeper)["local_start_lsn"]) > Lsn.parse(start_lsn)


def test_a_lost_member_does_not_fill_the_disks_of_the_others(
    quorum_cluster: Callable[..., QuorumCluster],
) -> None:
    """At the limit it is left behind. When it returns, commits continue and all services report
    it."""
    cluster = quorum_cluster(
        wal_seg_size=MB,
        safekeeper_arguments=["--wal-keep-size=2MB", "--max-member-wal-keep-size=8MB"],
    )
    primary, (first, second, third) = cluster.postgres, cluster.safekeepers
    third.kill()
    primary.execute(FILL.format(4))
    held = wait_held_by(first, "members", 8 * MB)["retention"]
    assert held["member_left_behind"] is False
    assert 0 < held["member_safe_wal_size"] <= 8 * MB
    for _ in range(4):
        primary.execute(FILL.format(8))
    for safekeeper in (first, second):
        wait_until(
            lambda s=safekeeper: timeline_of(s)["wal_bytes"] <= 11 * MB, TIMEOUT, "old WAL to go"
        )
        left = timeline_of(safekeeper)
        assert left["retention"]["held_by"] == "members"
        assert left["retention"]["member_left_behind"] is True
        assert left["retention"]["member_safe_wal_size"] == 0
        assert safekeeper.log_text().count("member left behind") == 1
        metrics = http_get(safekeeper.http_address, "/metrics")[1]
        assert re.search(r"sk_timeline_member_left_behind\{.*\} 1\.0", metrics)
    assert re.search(r"safekeeper 3 \(.*\) is left behind", status_of(cluster))

    cluster.proposer.kill()  # the WAL in its window is not enough, and the tail is compared again
    cluster.start()
    third.wait_ready()
    page = wait_until(lambda: peer_left_behind(cluster, 3), TIMEOUT, "it to be left behind")
    assert "has already been removed" in page["error"]
    assert page["connected"] is False
    for _ in range(20):
        primary.execute(FILL.format(1))
    log = cluster.proposer.log_text()
    assert log.count("safekeeper left behind") == 1
    assert log.count("catching up") <= 4  # each donor once, and again after REMOVED_RETRY_MS
    metrics = http_get(cluster.proposer.http_address, "/metrics")[1]
    gauge = f'sk_proposer_safekeeper_left_behind{{safekeeper="{third.address}"}} 1.0'
    assert gauge in metrics
    assert re.search(r"safekeeper 3 \(.*\) is left behind", status_of(cluster))

    second.kill()  # the two remaining members are no quorum, and this is reported
    wait_until(lambda: not cluster.proposer.status()["quorum"]["ok"], TIMEOUT, "no quorum")
    second.start()
    primary.execute(FILL.format(1))
    for service in (*cluster.safekeepers, cluster.proposer):
        assert "Traceback" not in service.log_text()


def status_of(cluster: QuorumCluster) -> str:
    """The verdict of sk status: commits proceed, but not everything is well."""
    done = sk("status", "--safekeepers", ",".join(s.address for s in cluster.safekeepers))
    assert done.returncode == 0
    assert "DEGRADED" in done.stdout
    return done.stdout


def peer_left_behind(cluster: QuorumCluster, id: int) -> dict[str, Any] | None:
    """The proposer's status of it, when it has been left behind."""
    (page,) = (peer for peer in cluster.proposer.status()["safekeepers"] if peer["id"] == id)
    return page if page["state"] == "left behind" else None


def test_slots_that_cannot_be_read_hold_all_wal(
    quorum_cluster: Callable[..., QuorumCluster],
) -> None:
    cluster = quorum_cluster(wal_seg_size=MB, safekeeper_arguments=["--wal-keep-size=4MB"])
    keeper = cluster.safekeepers[0]
    conninfo = replica_conninfo([keeper.address])
    with ReplicationClient(conninfo) as client:
        client.command("CREATE_REPLICATION_SLOT archive PHYSICAL")
    keeper.kill()
    (slots_file,) = keeper.data_dir.glob("timelines/*/slots")
    slots_file.write_bytes(slots_file.read_bytes()[:-1])
    cluster.start()
    cluster.postgres.execute(FILL.format(8))
    wait_held_by(cluster.safekeepers[1], "wal_keep", 6 * MB)
    assert wait_held_by(keeper, "slots that cannot be read", 64 * MB)["wal_bytes"] >= 8 * MB
    with (
        ReplicationClient(conninfo) as client,
        pytest.raises(ServerError, match="slots file") as error,
    ):
        client.command("READ_REPLICATION_SLOT archive")
    assert error.value.sqlstate == "XX001"
