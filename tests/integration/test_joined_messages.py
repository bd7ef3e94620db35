"""The first bytes of a stream may arrive together with the answer that announces it.

libpq then has read them already, and the socket never becomes readable because of them.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from recording_proxy import RecordingProxy

from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.ledger import Ledger
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.proposer import ProposerProcess
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pgwal.lsn import Lsn

TIMEOUT = 120.0
# Less than half of wal_sender_timeout: after that the primary sends a message, which would hide a
# mistake.
STREAMING_TIMEOUT = 20.0


def test_no_byte_stays_unread_when_the_primary_begins_to_stream(cluster: QuorumCluster) -> None:
    postgres = cluster.postgres
    postgres.execute("SELECT pg_switch_wal()")  # little to compare: one read
    postgres.execute("SELECT pg_logical_emit_message(true, 'small', 'commit')")
    wait_until(lambda: slot_lsn(cluster) >= postgres.flush_lsn(), TIMEOUT, "the slot to follow")
    cluster.proposer.kill()
    with (
        background_writer_stopped(postgres),
        RecordingProxy(f"127.0.0.1:{postgres.port}", joins_streams=True) as proxy,
        ProposerProcess(
            postgres.dsn(port=proxy.address.rpartition(":")[2]),
            [safekeeper.address for safekeeper in cluster.safekeepers],
            log_path=cluster.root / "joined.log",
        ) as proposer,
    ):
        proposer.wait_streaming(STREAMING_TIMEOUT)
        with Ledger(postgres.dsn(), clients=2, table="joined") as ledger:
            ledger.wait_for_progress(50, TIMEOUT)
        assert ledger.verify().ok


@contextmanager
def background_writer_stopped(postgres: Postgres) -> Iterator[None]:
    """Otherwise it would soon write some WAL, and the primary would send it."""
    statement = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'background writer'"
    ((pid,),) = postgres.execute(statement)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def slot_lsn(cluster: QuorumCluster) -> Lsn:
    ((lsn,),) = cluster.postgres.execute(
        "SELECT restart_lsn::text FROM pg_replication_slots WHERE slot_name = 'walproposer'"
    )
    return Lsn.parse(lsn)
