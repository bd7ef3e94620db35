"""The primary stops, crashes and starts again; its proposer stays, disconnects, and attaches
again."""

from __future__ import annotations

import os
import re
import secrets
import signal
import time
from collections.abc import Callable
from random import Random

from peak_rss import RSS_BYTES_MAX, peak_rss_bytes
from pending_commit import PendingCommit
from reckoning import TIMEOUT, assert_nothing_lost
from workload import write_wal

from quorum_wal.pg_fixtures.cluster import QuorumCluster, flush_lsn
from quorum_wal.pg_fixtures.ledger import Ledger
from quorum_wal.pg_fixtures.safekeeper import SafekeeperProcess
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pgwal.lsn import Lsn

MEGABYTE = 1 << 20
STOP_SECONDS_MAX = 15.0
BLOCKED_CLIENTS = 8
ATTACH_SECONDS = 0.8  # the longest time of an attachment after the primary has started
WAL_SENDER_TIMEOUT_SECONDS = 3
UNCONFIRMED = re.compile(
    r"primary lost .*reason='the primary is shutting down while the quorum is lost' "
    r"unconfirmed_bytes=(\d+)"
)


def commit_lsn_of(safekeeper: SafekeeperProcess) -> Lsn:
    timeline = safekeeper.timeline()
    assert timeline is not None
    return Lsn.parse(timeline["commit_lsn"])


def blocked_commits(cluster: QuorumCluster) -> int:
    ((count,),) = cluster.postgres.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    )
    return int(count)


def test_a_stop_ends_with_its_checkpoint_on_a_quorum(
    cluster: QuorumCluster, ledger: Ledger
) -> None:
    pid, term = cluster.proposer.pid, cluster.proposer.term
    cluster.postgres.stop("fast", TIMEOUT)
    control = cluster.postgres.control_data()
    assert control["Database cluster state"] == "shut down"
    checkpoint_lsn = Lsn.parse(control["Latest checkpoint location"])
    assert sum(flush_lsn(s) > checkpoint_lsn for s in cluster.safekeepers) >= 2
    cluster.proposer.wait_state("waiting_for_primary", TIMEOUT)
    # Replicas read only committed WAL: they must get the checkpoint too, although no record follows
    # it.
    wait_until(
        lambda: sum(commit_lsn_of(s) > checkpoint_lsn for s in cluster.safekeepers) >= 2,
        TIMEOUT,
        "the last commit to spread",
    )

    cluster.postgres.start()
    cluster.proposer.wait_streaming_above(term, TIMEOUT)
    assert cluster.proposer.pid == pid
    assert_nothing_lost(cluster, ledger)


def test_a_crashed_primary_is_attached_again(cluster: QuorumCluster, ledger: Ledger) -> None:
    pid = cluster.proposer.pid
    for _ in range(3):
        term = cluster.proposer.term
        ledger.wait_for_progress(20, TIMEOUT)
        cluster.postgres.crash()
        cluster.postgres.start()
        cluster.proposer.wait_streaming_above(term, TIMEOUT)
    assert cluster.proposer.pid == pid
    assert_nothing_lost(cluster, ledger)


def test_a_primary_that_crashes_while_it_is_attached_is_waited_for(
    cluster: QuorumCluster, ledger: Ledger
) -> None:
    """It disconnects at any step of the attachment."""
    pid, seed = cluster.proposer.pid, secrets.randbelow(1 << 32)
    print(f"seed {seed}")
    random = Random(seed)
    for _ in range(6):
        cluster.postgres.crash()
        cluster.postgres.start()
        time.sleep(random.uniform(0, ATTACH_SECONDS))  # at a random moment
    cluster.postgres.crash()
    cluster.postgres.start()
    assert_nothing_lost(cluster, ledger)
    assert cluster.proposer.pid == pid


def test_a_stop_without_a_quorum_ends_and_says_what_is_unconfirmed(
    cluster: QuorumCluster, ledger_of: Callable[..., Ledger]
) -> None:
    ledger = ledger_of(cluster, clients=BLOCKED_CLIENTS)
    term, found_before = (
        cluster.proposer.term,
        len(UNCONFIRMED.findall(cluster.proposer.log_text())),
    )
    for safekeeper in cluster.safekeepers[:2]:
        safekeeper.kill()
    wait_until(
        lambda: blocked_commits(cluster) == BLOCKED_CLIENTS, TIMEOUT, "all clients to be blocked"
    )
    acknowledged = ledger.acknowledged
    cluster.postgres.stop("fast", STOP_SECONDS_MAX)
    assert cluster.postgres.control_data()["Database cluster state"] == "shut down"
    found = UNCONFIRMED.findall(cluster.proposer.log_text())
    assert len(found) == found_before + 1
    assert int(found[-1]) > 0
    assert ledger.acknowledged == acknowledged

    for safekeeper in cluster.safekeepers[:2]:
        safekeeper.start()
    cluster.postgres.start()
    cluster.proposer.wait_streaming_above(term, TIMEOUT)
    assert_nothing_lost(cluster, ledger)


def test_the_primary_keeps_its_connection_while_the_quorum_is_lost(
    cluster: QuorumCluster, ledger: Ledger
) -> None:
    """More than ten seconds with a wal_sender_timeout of three: at first idle, then with more WAL
    than the proposer accepts, so that it no longer reads the messages of the primary."""
    postgres, (frozen, dead, _) = cluster.postgres, cluster.safekeepers

    def walsender() -> tuple[int, float]:
        """Its pid, and its age in seconds."""
        ((pid, age),) = postgres.execute(
            "SELECT pid, extract(epoch FROM reply_time - backend_start)::float"
            " FROM pg_stat_replication"
        )
        return pid, age

    def wait_replies(seconds: float) -> None:
        pid, age = walsender()
        wait_until(lambda: walsender()[1] > age + seconds, TIMEOUT, "replies of the proposer")
        assert walsender()[0] == pid

    postgres.configure(wal_sender_timeout=f"{WAL_SENDER_TIMEOUT_SECONDS}s")
    try:
        pid, _ = walsender()
        frozen.pause()
        dead.kill()
        commit = PendingCommit(postgres)
        commit.wait_blocked(TIMEOUT)
        wait_replies(1.7 * WAL_SENDER_TIMEOUT_SECONDS)

        write_wal(postgres, 96)
        wait_until(
            lambda: cluster.proposer.status()["window_bytes"] >= 32 * MEGABYTE, TIMEOUT, "full"
        )
        wait_replies(1.7 * WAL_SENDER_TIMEOUT_SECONDS)
        wait_until(
            lambda: not cluster.proposer.status()["quorum"]["ok"], TIMEOUT, "silence to be noticed"
        )
        assert cluster.proposer.status()["unconfirmed_bytes"] < 64 * MEGABYTE
        assert peak_rss_bytes(cluster.proposer) < RSS_BYTES_MAX
        assert commit.is_blocked

        frozen.resume()
        dead.start()
        commit.wait_returned(TIMEOUT)
        assert walsender()[0] == pid
        assert_nothing_lost(cluster, ledger)
    finally:
        postgres.configure(wal_sender_timeout=None)


def test_an_overwritten_contrecord_is_taken_over(cluster: QuorumCluster, ledger: Ledger) -> None:
    """The primary crashes when the first part of a long record is flushed and sent; its recovery
    writes other WAL in place of the rest."""
    ledger.pause()
    ledger.wait_idle(TIMEOUT)
    begin_lsn, term = cluster.postgres.flush_lsn(), cluster.proposer.term
    part_lsn = begin_lsn + 4 * MEGABYTE
    record = PendingCommit(
        cluster.postgres, "SELECT pg_logical_emit_message(true, 'long', repeat('l', 128 << 20))"
    )

    def received_lsn() -> Lsn:
        return Lsn.parse(cluster.proposer.status()["received_lsn"])

    wait_until(
        lambda: cluster.postgres.flush_lsn() > part_lsn, TIMEOUT, "a part on disk", interval=0
    )
    os.kill(record.pid, signal.SIGSTOP)  # it must not reach the end before the crash
    wait_until(lambda: received_lsn() > part_lsn, TIMEOUT, "a part of it to be shipped")
    cluster.postgres.crash()
    wait_until(lambda: record.has_returned, TIMEOUT, "its connection to break")
    cluster.postgres.start()
    cluster.proposer.wait_streaming_above(term, TIMEOUT)
    ledger.resume()
    ledger.wait_for_progress(10, TIMEOUT)
    records = cluster.postgres.waldump(f"--start={begin_lsn}", "--rmgr=XLOG", check=False)
    assert "OVERWRITE_CONTRECORD" in records
    for safekeeper in cluster.safekeepers:
        safekeeper.restart()  # decodes its log across that place
    assert_nothing_lost(cluster, ledger)
