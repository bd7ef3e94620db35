"""A commit returns exactly when a quorum has it, with any number of safekeepers."""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from pending_commit import PendingCommit
from reckoning import TIMEOUT, assert_equal_logs, assert_nothing_lost
from shared_cluster import SharedCluster

from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.http_status import http_get
from quorum_wal.pg_fixtures.ledger import Ledger
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.pgwal.page import WAL_PAGE_SIZE

SEGMENT_BYTES = 1 << 20
SHORT_HEADER_BYTES = 24  # SizeOfXLogShortPHD: all pages but a segment's first
BOUNDARY_COMMITS = 20
OVERHEAD_SAMPLES = 5  # commits that measure the WAL of a commit besides its message
BOUNDARY_ATTEMPTS = 100
BOUNDARY_SECONDS_MAX = 0.1  # for three of four: the disk of a busy machine may stall
HANG_SECONDS = 10


def metric(cluster: QuorumCluster, name: str) -> float:
    """One of the proposer's metrics that has no labels."""
    _, text = http_get(cluster.proposer.http_address, "/metrics")
    (line,) = [line for line in text.splitlines() if line.startswith(f"{name} ")]
    return float(line.split()[1])


def healthz(cluster: QuorumCluster) -> tuple[int, str]:
    code, text = http_get(cluster.proposer.http_address, "/healthz")
    return code, text.strip()


def wait_committed(cluster: QuorumCluster, lsn: int) -> None:
    cluster.proposer.wait_until(
        lambda: cluster.commit_lsn() >= lsn, TIMEOUT, f"{Lsn(lsn)} to be committed"
    )


def test_a_member_that_lost_its_data_no_longer_counts_for_a_commit(
    shared_cluster: SharedCluster[QuorumCluster], cluster: QuorumCluster
) -> None:
    """Only this member has acknowledged a commit, and its disk is wiped: with one other member it
    is no quorum."""
    loser, second, third = cluster.safekeepers
    second.pause()
    third.pause()
    pending = PendingCommit(cluster.postgres)
    pending.wait_blocked(TIMEOUT)
    lsn = cluster.postgres.flush_lsn()
    cluster.wait_flushed(lsn, TIMEOUT, [loser])
    loser.kill()
    shutil.rmtree(loser.data_dir / "timelines")
    loser.start()
    loser.wait_ready()
    wait_until(lambda: peer_of(cluster, 1)["state"] == "lost its data", TIMEOUT, "its loss")
    second.resume()
    wait_until(
        lambda: Lsn.parse(peer_of(cluster, 2)["flush_lsn"]) >= lsn, TIMEOUT, "the second's answer"
    )
    assert pending.is_blocked
    third.resume()
    pending.wait_returned(TIMEOUT)
    assert peer_of(cluster, 1)["flush_lsn"] == "0/0"
    assert "no such timeline" in peer_of(cluster, 1)["error"]
    shared_cluster.discard()  # one member is missing permanently


def peer_of(cluster: QuorumCluster, safekeeper_id: int) -> dict[str, Any]:
    """The proposer's status of it."""
    peers = cluster.proposer.status()["safekeepers"]
    (peer,) = [peer for peer in peers if peer["id"] == safekeeper_id]
    return dict(peer)


def test_commits_return_with_two_of_three_and_wait_with_one(
    cluster: QuorumCluster, ledger: Ledger
) -> None:
    losses = metric(cluster, "sk_proposer_quorum_losses_total")
    first, second, _ = cluster.safekeepers
    first.kill()
    ledger.wait_for_progress(50, TIMEOUT)
    wait_until(
        lambda: cluster.proposer.status()["quorum"]["connected"] == 2, TIMEOUT, "one to be missed"
    )
    assert healthz(cluster) == (200, "ok")

    ledger.pause()
    ledger.wait_idle(TIMEOUT)
    second.kill()
    commit = PendingCommit(cluster.postgres)
    commit.wait_blocked(TIMEOUT)
    wait_until(lambda: healthz(cluster)[0] == 503, TIMEOUT, "/healthz to say so")
    assert healthz(cluster)[1] == "the quorum is lost, commits wait"
    cluster.proposer.wait_until(
        lambda: cluster.proposer.status()["unconfirmed_bytes"] > 0, TIMEOUT, "the commit's WAL"
    )
    status = cluster.proposer.status()
    assert not status["quorum"]["ok"]
    assert (status["quorum"]["connected"], status["quorum"]["needed"]) == (1, 2)
    assert [s["connected"] for s in status["safekeepers"]] == [False, False, True]
    assert all(s["error"] for s in status["safekeepers"][:2])
    assert metric(cluster, "sk_proposer_quorum_ok") == 0
    assert metric(cluster, "sk_proposer_quorum_losses_total") == losses + 1
    assert "QUORUM LOST, commits wait" in cluster.proposer.log_text()
    assert commit.is_blocked

    second.start()
    commit.wait_returned(TIMEOUT)
    wait_until(lambda: healthz(cluster) == (200, "ok"), TIMEOUT, "/healthz to be well again")
    assert metric(cluster, "sk_proposer_quorum_ok") == 1
    assert "commits proceed" in cluster.proposer.log_tail()
    first.start()
    ledger.resume()
    assert_nothing_lost(cluster, ledger)


@pytest.mark.parametrize(("members", "quorum"), [(1, 1), (2, 2), (5, 3), (9, 5)])
def test_exactly_a_quorum_is_enough(
    quorum_cluster: Callable[..., QuorumCluster], members: int, quorum: int
) -> None:
    cluster = quorum_cluster(safekeepers=members, wal_seg_size=SEGMENT_BYTES)
    postgres, safekeepers = cluster.postgres, cluster.safekeepers
    for safekeeper in safekeepers[quorum:]:
        safekeeper.kill()
    PendingCommit(postgres).wait_returned(TIMEOUT)

    last = safekeepers[quorum - 1]
    last.kill()
    commit = PendingCommit(postgres)
    commit.wait_blocked(TIMEOUT)
    last.start()
    commit.wait_returned(TIMEOUT)
    assert cluster.proposer.status()["quorum"]["needed"] == quorum
    assert_equal_logs(cluster, safekeepers[:quorum])


def test_a_commit_that_ends_on_a_page_boundary_returns_at_once(cluster: QuorumCluster) -> None:
    """On an idle server no record follows, so no later WAL would show that the record is complete.

    The flush position proves that it ends on the boundary: the insert position is then after the
    header of the next page.
    """
    random = Random(0)
    seconds: list[float] = []
    with cluster.postgres.connect() as connection:

        def position(function: str) -> Lsn:
            row = connection.execute(f"SELECT {function}()::text").fetchone()
            assert row is not None
            return Lsn.parse(row[0])

        def commit(message_bytes: int) -> float:
            begun = time.monotonic()
            connection.execute(
                "SELECT pg_logical_emit_message(true, 'page', repeat('x', %s))", (message_bytes,)
            )
            return time.monotonic() - begun

        connection.execute(f"SET statement_timeout = '{HANG_SECONDS}s'")  # also ends the wait
        # The least of several: a record of the server itself may come between the two positions.
        overheads: list[int] = []
        while len(overheads) < OVERHEAD_SAMPLES:
            before = position("pg_current_wal_insert_lsn")
            commit(1000)
            after = position("pg_current_wal_insert_lsn")
            if before // WAL_PAGE_SIZE == after // WAL_PAGE_SIZE:
                overheads.append(after - before - 1000)
        overhead_bytes = min(overheads)
        for _ in range(BOUNDARY_ATTEMPTS):
            left = -position("pg_current_wal_insert_lsn") % WAL_PAGE_SIZE
            if left < overhead_bytes + 300:
                commit(1000)  # into the next page
                continue
            # Of one page, or of several: each further page has a header.
            left += random.randrange(4) * (WAL_PAGE_SIZE - SHORT_HEADER_BYTES)
            elapsed = commit(left - overhead_bytes)
            if position("pg_current_wal_flush_lsn") % WAL_PAGE_SIZE == 0:
                assert elapsed < HANG_SECONDS
                seconds.append(elapsed)
            if len(seconds) == BOUNDARY_COMMITS:
                break
    assert len(seconds) == BOUNDARY_COMMITS
    assert statistics.quantiles(seconds, n=4)[-1] < BOUNDARY_SECONDS_MAX, seconds
    assert_equal_logs(cluster)


def test_a_switch_of_segments_is_committed_at_once(cluster: QuorumCluster, ledger: Ledger) -> None:
    """Its record ends with the segment; the pages in between have no headers."""
    for _ in range(3):
        ledger.wait_for_progress(10, TIMEOUT)
        ledger.pause()
        ledger.wait_idle(TIMEOUT)
        ((switch_lsn,),) = cluster.postgres.execute("SELECT pg_switch_wal()::text")
        end_lsn = -(-Lsn.parse(switch_lsn) // SEGMENT_BYTES) * SEGMENT_BYTES
        wait_committed(cluster, end_lsn)
        ledger.resume()
    assert_nothing_lost(cluster, ledger)
