"""A new proposer takes over from the one that runs on its machine: `sk attach --take-over`."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from reckoning import TIMEOUT, assert_nothing_lost

from quorum_wal.cli.output import ExitCode
from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.ledger import Ledger
from quorum_wal.pg_fixtures.proposer import ProposerProcess

CLIENTS = 8
#: The longest wait of a commit for a restart or an upgrade by take-over. One of three runs must
#: keep it, because the machine may be busy. The benchmark "restart" measures it.
WAIT_SECONDS_MAX = 0.3


def successor_of(cluster: QuorumCluster) -> ProposerProcess:
    return cluster.new_proposer(arguments=["--take-over"])


def test_a_proposer_hands_over_to_the_next_under_load(
    cluster: QuorumCluster, ledger_of: Callable[..., Ledger]
) -> None:
    """It is not fenced, no election is lost, and commits wait only briefly."""
    ledger, first = ledger_of(cluster, clients=CLIENTS), cluster.proposer
    waits_seconds = []
    with ExitStack() as stack:
        try:
            for _ in range(3):
                before, begun = cluster.proposer, time.monotonic()
                term = before.term
                cluster.proposer = stack.enter_context(successor_of(cluster))
                assert before.wait(TIMEOUT) == 0
                assert "a successor takes over" in before.log_tail()
                cluster.proposer.wait_streaming(TIMEOUT)
                assert "the predecessor has stopped" in cluster.proposer.log_text()
                assert cluster.proposer.term == term + 1
                ledger.wait_for_progress(50, TIMEOUT)
                waits_seconds.append(ledger.longest_wait(begun))
            assert_nothing_lost(cluster, ledger)
            assert min(waits_seconds) < WAIT_SECONDS_MAX, waits_seconds
        finally:
            cluster.proposer = first


def test_a_successor_without_a_predecessor_attaches(cluster: QuorumCluster, ledger: Ledger) -> None:
    cluster.proposer.kill()
    with successor_of(cluster) as second:
        second.wait_streaming(TIMEOUT)
        with cluster.led_by(second):
            assert_nothing_lost(cluster, ledger)


def test_a_predecessor_that_hangs_is_fenced(cluster: QuorumCluster, ledger: Ledger) -> None:
    first = cluster.proposer
    first.pause()
    with successor_of(cluster) as second:
        second.wait_streaming(TIMEOUT)
        assert "the predecessor does not stop" in second.log_text()
        first.resume()
        # Asked or fenced: whichever it notices first.
        assert first.wait(TIMEOUT) in (0, ExitCode.FENCED)
        with cluster.led_by(second):
            assert_nothing_lost(cluster, ledger)


def test_the_successor_gets_the_lock_and_the_port(
    quorum_cluster: Callable[..., QuorumCluster], ledger_of: Callable[..., Ledger], tmp_path: Path
) -> None:
    cluster = quorum_cluster(
        wal_seg_size=1 << 20,
        proposer_arguments=["--lock", str(tmp_path / "lock"), "--lock-ttl", "60"],
    )
    ledger, first = ledger_of(cluster), cluster.proposer
    second = successor_of(cluster)
    second.program[second.program.index("--http") + 1] = first.http_address
    with second:
        assert first.wait(TIMEOUT) == 0
        # Its page is at the next free port; clients of the safekeepers get its address.
        ledger.wait_for_progress(20, TIMEOUT)
        assert "http port in use, another taken" in second.log_text()
        second.http_address = http_of_the_leader(cluster)
        assert second.http_address != first.http_address
        second.wait_streaming(TIMEOUT)
        assert second.status()["lock"]["held"] is True
        cluster.proposer = second
        assert_nothing_lost(cluster, ledger)


def http_of_the_leader(cluster: QuorumCluster) -> str:
    timeline = cluster.safekeepers[0].timeline()
    assert timeline is not None
    return str(timeline["proposer"]["http"])
