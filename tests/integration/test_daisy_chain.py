"""Five members, two of which take the WAL from a third one: commits go on, whatever becomes of it.

proposer -> 1, 2, 3         3 -> 4, 5
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from reckoning import TIMEOUT, assert_equal_logs, assert_nothing_lost

from pg_fixtures.cluster import QuorumCluster
from pg_fixtures.ledger import Ledger
from pg_fixtures.proxy import Direction
from pg_fixtures.safekeeper import SafekeeperProcess
from pg_fixtures.waiting import wait_until
from walproposer.stream.chains import LATE_MS
from walproposer.stream.peer_connections import RECONNECT_SECONDS

CHAINED = (4, 5)
BULK_LOAD = "CREATE TABLE load AS SELECT repeat('x', 500) FROM generate_series(1, 20000)"
#: What it takes to be direct again, and what a busy machine adds.
DIRECT_SECONDS = LATE_MS / 1000 + RECONNECT_SECONDS
BUSY_SECONDS = 3.0


@pytest.fixture
def chained_cluster(quorum_cluster: Callable[..., QuorumCluster]) -> QuorumCluster:
    cluster = quorum_cluster(
        safekeepers=5, proxied=True, proposer_arguments=["--via", "4=3", "--via", "5=3"]
    )
    wait_chained(cluster)
    return cluster


def sources(cluster: QuorumCluster) -> dict[int, tuple[str, int | None]]:
    """State and source of each member, as the proposer says."""
    peers = cluster.proposer.status()["safekeepers"]
    return {peer["id"]: (peer["state"], peer["via"]) for peer in peers}


def wait_chained(cluster: QuorumCluster) -> None:
    wait_until(
        lambda: all(sources(cluster)[i] == ("chained", 3) for i in CHAINED), TIMEOUT, "the chain"
    )


def wait_direct(cluster: QuorumCluster) -> float:
    """How long it took."""
    begun = time.monotonic()
    wait_until(
        lambda: all(sources(cluster)[i] == ("streaming", None) for i in CHAINED),
        TIMEOUT,
        "4 and 5 to be streamed to directly",
    )
    return time.monotonic() - begun


@contextmanager
def paused(safekeeper: SafekeeperProcess) -> Iterator[None]:
    safekeeper.pause()
    try:
        yield
    finally:
        safekeeper.resume()


def sent_to(cluster: QuorumCluster, *ids: int) -> int:
    """Bytes that went through the proxies of these members."""
    return sum(cluster.proxies[i - 1].traffic.bytes_passed[Direction.TO_SERVICE] for i in ids)


def test_wal_leaves_the_proposer_once_for_all_three(
    chained_cluster: QuorumCluster, ledger_of: Callable[[QuorumCluster], Ledger]
) -> None:
    """The WAL of a bulk load reaches 4 and 5, and not from the proposer."""
    cluster = chained_cluster
    ledger = ledger_of(cluster)
    before, begin_lsn = (sent_to(cluster, 2), sent_to(cluster, *CHAINED)), cluster.commit_lsn()
    cluster.postgres.execute(BULK_LOAD)
    ledger.wait_for_progress(100, TIMEOUT)
    ledger.pause()
    ledger.wait_idle(TIMEOUT)
    assert_equal_logs(cluster)
    wal_bytes = cluster.postgres.flush_lsn() - begin_lsn
    assert sources(cluster)[4] == sources(cluster)[5] == ("chained", 3)
    assert sent_to(cluster, 2) - before[0] > wal_bytes
    assert sent_to(cluster, *CHAINED) - before[1] < wal_bytes / 4
    ledger.resume()
    assert_nothing_lost(cluster, ledger)


def test_with_two_direct_ones_gone_the_chained_ones_confirm(
    chained_cluster: QuorumCluster, ledger_of: Callable[[QuorumCluster], Ledger]
) -> None:
    """3, 4 and 5 are a quorum: what 4 and 5 answer counts."""
    cluster = chained_cluster
    ledger = ledger_of(cluster)
    with paused(cluster.safekeepers[0]), paused(cluster.safekeepers[1]):
        ledger.wait_for_progress(100, TIMEOUT)
        assert sources(cluster)[4] == sources(cluster)[5] == ("chained", 3)
    assert_nothing_lost(cluster, ledger)


def test_a_killed_source_is_left_at_once(
    chained_cluster: QuorumCluster, ledger_of: Callable[[QuorumCluster], Ledger]
) -> None:
    """1 is gone already: 2, 4 and 5 must do, so the commits wait for the direct connections."""
    cluster = chained_cluster
    ledger = ledger_of(cluster)
    cluster.safekeepers[0].kill()
    cluster.safekeepers[2].kill()
    assert wait_direct(cluster) < DIRECT_SECONDS + BUSY_SECONDS
    ledger.wait_for_progress(50, TIMEOUT)
    for number in (0, 2):
        cluster.safekeepers[number].start()
        cluster.safekeepers[number].wait_ready()
    assert_nothing_lost(cluster, ledger)


def test_a_frozen_source_is_late_and_left(
    chained_cluster: QuorumCluster, ledger_of: Callable[[QuorumCluster], Ledger]
) -> None:
    """It breaks no connection, and owes what it was sent."""
    cluster = chained_cluster
    ledger = ledger_of(cluster)
    cluster.safekeepers[0].kill()
    with paused(cluster.safekeepers[2]):
        assert wait_direct(cluster) < DIRECT_SECONDS + BUSY_SECONDS
        ledger.wait_for_progress(50, TIMEOUT)
    cluster.safekeepers[0].start()
    cluster.safekeepers[0].wait_ready()
    assert_nothing_lost(cluster, ledger)


def test_a_new_term_is_won_with_what_the_chain_brought(
    chained_cluster: QuorumCluster, ledger_of: Callable[[QuorumCluster], Ledger]
) -> None:
    """The proposer and the direct members but one go; the next one finds all with 3, 4 and 5."""
    cluster = chained_cluster
    ledger = ledger_of(cluster)
    cluster.proposer.kill()
    for number in (0, 1):
        cluster.safekeepers[number].kill()
    cluster.proposer.start()
    cluster.proposer.wait_streaming(TIMEOUT)
    ledger.wait_for_progress(50, TIMEOUT)
    wait_chained(cluster)
    for number in (0, 1):
        cluster.safekeepers[number].start()
        cluster.safekeepers[number].wait_ready()
    assert_nothing_lost(cluster, ledger)
