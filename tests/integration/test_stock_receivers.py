"""pg_receivewal of every Postgres here, straight from a safekeeper: its files are the primary's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from stock_clients import (
    TIMEOUT,
    WalReceiverProcess,
    assert_files_equal,
    finish_segment,
    slots_of,
)

from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.safekeeper import SafekeeperProcess
from quorum_wal.pg_fixtures.standby import replica_conninfo
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_server.binaries import PostgresBinaries, all_postgres

SEG_SIZE = 1 << 20
FILL = "SELECT pg_logical_emit_message(true, 'fill', repeat('x', 3 << 20))"

every_postgres = pytest.mark.parametrize(
    "pg_binaries", all_postgres(), ids=lambda b: f"Postgres {b.version}", indirect=True
)


@every_postgres
def test_receivewal(
    quorum_cluster: Callable[..., QuorumCluster], pg_binaries: PostgresBinaries, tmp_path: Path
) -> None:
    """Three ways to receive, from three safekeepers, each ended and resumed; no segment is
    missing."""
    cluster = quorum_cluster(wal_seg_size=SEG_SIZE, settings={"wal_keep_size": "256MB"})
    primary, first = cluster.postgres, cluster.safekeepers[0]

    def receiver(name: str, safekeeper: SafekeeperProcess, *options: str) -> WalReceiverProcess:
        conninfo = replica_conninfo([safekeeper.address])
        return WalReceiverProcess(pg_binaries, tmp_path / name, conninfo, *options)

    slot = receiver("slot", first, "--slot=archive", "--synchronous")
    assert "creating replication slot" in slot.run_once("--create-slot")
    slot.run_once("--create-slot", "--if-not-exists")
    receivers = [
        receiver("plain", cluster.safekeepers[1]),
        slot,
        receiver("compressed", cluster.safekeepers[2], "--compress=gzip"),
    ]
    for _ in range(2):
        for process in receivers:
            process.start_streaming()
        primary.execute(FILL)
        name = finish_segment(primary)
        for process in receivers:
            process.wait_segment(name)
            process.interrupt()
            assert_files_equal(process, primary.pg_wal, at_least=3)
    assert all(len(process.segments()) >= 6 for process in receivers)
    wait_until(lambda: not slots_of(first)["archive"]["active"], TIMEOUT, "the slot to be free")
    assert slots_of(first)["archive"]["wal_status"] == "reserved"
    slot.run_once("--drop-slot")
    assert slots_of(first) == {}
