"""Five members, two of which take the WAL from a third one: commits continue, whatever fails.

proposer -> 1, 2, 3         3 -> 4, 5
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from failover_world import SETTINGS
from members_world import MembersWorld, longest_wait
from reckoning import TIMEOUT, assert_equal_logs, assert_nothing_lost
from sk_command import sk

from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.ledger import Ledger
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.proposer import ProposerProcess
from quorum_wal.pg_fixtures.proxy import Direction
from quorum_wal.pg_fixtures.safekeeper import SafekeeperProcess
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_server.binaries import PostgresBinaries

SEGMENT_BYTES = 1 << 20
CHAINED = (4, 5)
VIA = ("--via", "4=3", "--via", "5=3")
BULK_LOAD = "CREATE TABLE load AS SELECT repeat('x', 500) FROM generate_series(1, 20000)"
#: The WAL once to each of three members, with heartbeats, the headers of Appends, and votes.
SHARE_MAX = 1.1 * 3 / 5
#: The time to return to direct streaming, plus a margin for a busy machine.
DIRECT_SECONDS = 1.0
BUSY_SECONDS = 2.0


@pytest.fixture(scope="module")
def cluster_options() -> dict[str, Any]:
    return {"safekeepers": 5, "proxied": True, "proposer_arguments": VIA}


@pytest.fixture
def chained_cluster(cluster: QuorumCluster) -> QuorumCluster:
    """With a new proposer, because one that has seen the source fail uses it again much later."""
    cluster.proposer.kill()
    cluster.start()
    wait_chained(cluster.proposer)
    return cluster


def sources(proposer: ProposerProcess) -> dict[int, tuple[str, int | None]]:
    """State and source of each member, as the proposer reports them."""
    peers = proposer.status()["safekeepers"]
    return {peer["id"]: (peer["state"], peer["via"]) for peer in peers}


def are_chained(proposer: ProposerProcess) -> bool:
    return all(sources(proposer)[i] == ("chained", 3) for i in CHAINED)


def wait_chained(proposer: ProposerProcess) -> None:
    wait_until(lambda: are_chained(proposer), TIMEOUT, "the chain")


def wait_direct(proposer: ProposerProcess) -> float:
    """Wait until they are streamed to directly; returns the seconds."""
    begun = time.monotonic()
    wait_until(
        lambda: all(sources(proposer)[i] == ("streaming", None) for i in CHAINED),
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
    """With a bulk load, WAL leaves the proposer three times, not five, and 4 and 5 have all of it.
    The proxies count what is sent to a safekeeper, not what is read from it."""
    cluster = chained_cluster
    ledger = ledger_of(cluster)
    before, begin_lsn = [sent_to(cluster, i) for i in range(1, 6)], cluster.commit_lsn()
    cluster.postgres.execute(BULK_LOAD)
    ledger.wait_for_progress(100, TIMEOUT)
    ledger.pause()
    ledger.wait_idle(TIMEOUT)
    assert_equal_logs(cluster)
    wal_bytes = cluster.postgres.flush_lsn() - begin_lsn
    assert are_chained(cluster.proposer)
    sent = [sent_to(cluster, i) - before[i - 1] for i in range(1, 6)]
    print(f"{wal_bytes} bytes of WAL, sent {sent}: {sum(sent) / wal_bytes / 5:.3f} of 5 times")
    assert min(sent[:3]) > wal_bytes
    assert sum(sent) < SHARE_MAX * 5 * wal_bytes
    ledger.resume()
    assert_nothing_lost(cluster, ledger)


def test_the_chained_members_confirm_when_two_direct_ones_are_lost(
    chained_cluster: QuorumCluster, ledger_of: Callable[[QuorumCluster], Ledger]
) -> None:
    """3, 4 and 5 are a quorum: the answers of 4 and 5 count."""
    cluster = chained_cluster
    ledger = ledger_of(cluster)
    with paused(cluster.safekeepers[0]), paused(cluster.safekeepers[1]):
        ledger.wait_for_progress(100, TIMEOUT)
        assert are_chained(cluster.proposer)
    assert_nothing_lost(cluster, ledger)


def test_a_killed_source_is_replaced_by_the_proposer_at_once(
    chained_cluster: QuorumCluster, ledger_of: Callable[[QuorumCluster], Ledger]
) -> None:
    """1 is down already, so 2, 4 and 5 are the quorum, and commits wait for the direct
    connections."""
    cluster = chained_cluster
    ledger = ledger_of(cluster)
    cluster.safekeepers[0].kill()
    cluster.safekeepers[2].kill()
    assert wait_direct(cluster.proposer) < DIRECT_SECONDS + BUSY_SECONDS
    ledger.wait_for_progress(50, TIMEOUT)
    for number in (0, 2):
        cluster.safekeepers[number].start()
        cluster.safekeepers[number].wait_ready()
    assert_nothing_lost(cluster, ledger)


def test_a_frozen_source_is_replaced_by_the_proposer(
    chained_cluster: QuorumCluster, ledger_of: Callable[[QuorumCluster], Ledger]
) -> None:
    """It breaks no connection, but does not send what it received. 1 is down, so commits wait for 4
    or 5."""
    cluster = chained_cluster
    ledger = ledger_of(cluster)
    cluster.safekeepers[0].kill()
    ledger.wait_for_progress(50, TIMEOUT)
    with longest_wait(ledger) as longest, paused(cluster.safekeepers[2]):
        assert wait_direct(cluster.proposer) < DIRECT_SECONDS + BUSY_SECONDS
        ledger.wait_for_progress(50, TIMEOUT)
    print(f"{longest[0]:.2f} s without a commit")
    assert longest[0] < DIRECT_SECONDS + BUSY_SECONDS
    cluster.safekeepers[0].start()
    cluster.safekeepers[0].wait_ready()
    assert_nothing_lost(cluster, ledger)


def test_a_new_term_is_won_with_what_the_chain_brought(
    chained_cluster: QuorumCluster, ledger_of: Callable[[QuorumCluster], Ledger]
) -> None:
    """The proposer and the direct members except one are lost; the next proposer finds everything
    on 3, 4 and 5."""
    cluster = chained_cluster
    ledger = ledger_of(cluster)
    cluster.proposer.kill()
    for number in (0, 1):
        cluster.safekeepers[number].kill()
    cluster.proposer.start()
    cluster.proposer.wait_streaming(TIMEOUT)
    ledger.wait_for_progress(50, TIMEOUT)
    wait_chained(cluster.proposer)
    for number in (0, 1):
        cluster.safekeepers[number].start()
        cluster.safekeepers[number].wait_ready()
    assert_nothing_lost(cluster, ledger)


def test_a_standby_is_promoted_while_members_are_chained(
    quorum_cluster: Callable[..., QuorumCluster],
    standby_factory: Callable[..., Postgres],
    ledger_of: Callable[[QuorumCluster], Ledger],
) -> None:
    """The primary and both direct members except the source are lost: the standby begins with the
    WAL that 4 and 5 got from 3. Its proposer uses the chain that it was given."""
    cluster = quorum_cluster(
        safekeepers=5, settings=SETTINGS, wal_seg_size=SEGMENT_BYTES, proposer_arguments=VIA
    )
    wait_chained(cluster.proposer)
    standby = standby_factory(cluster.postgres, "standby", cluster.replica_conninfo())
    ledger = ledger_of(cluster)
    assert are_chained(cluster.proposer)
    cluster.proposer.kill()
    cluster.postgres.crash()
    for keeper in cluster.safekeepers[:2]:
        keeper.kill()
    promotion = ProposerProcess(
        standby.dsn(),
        [keeper.address for keeper in cluster.safekeepers],
        log_path=cluster.root / "promote.log",
        promotes=True,
        arguments=VIA,
    )
    with promotion:
        promotion.wait_streaming(TIMEOUT)
        ledger.redirect(standby.dsn())
        ledger.wait_for_progress(50, TIMEOUT)
        wait_chained(promotion)
        for keeper in cluster.safekeepers[:2]:
            keeper.start()
            keeper.wait_ready()
        ledger.wait_for_progress(50, TIMEOUT)
        ledger.pause()
        ledger.wait_idle(TIMEOUT)
        report = ledger.verify(standby.dsn())
        assert report.ok, report
        assert are_chained(promotion)
        assert "Traceback" not in promotion.log_text()


def test_a_source_that_is_removed_is_no_source(
    quorum_cluster: Callable[..., QuorumCluster], ledger_of: Callable[[QuorumCluster], Ledger]
) -> None:
    """A chained member can be removed as any other member."""
    cluster = quorum_cluster(safekeepers=5, wal_seg_size=SEGMENT_BYTES, proposer_arguments=VIA)
    wait_chained(cluster.proposer)
    ledger = ledger_of(cluster)
    with ExitStack() as stack:
        world = MembersWorld(cluster, stack)
        with longest_wait(ledger) as longest:
            world.change("remove", 2, 3)
            world.wait_members(1, 4, 5, known=(1,))
            wait_direct(cluster.proposer)
            ledger.wait_for_progress(50, TIMEOUT)
        assert longest[0] < DIRECT_SECONDS + BUSY_SECONDS
        world.reckon(ledger, 1, 4, 5)
        cluster.proposer.kill()
        cluster.proposer.start()
        world.reckon(ledger, 1, 4, 5)
        said = cluster.proposer.log_text()
        assert "safekeeper 3 of --via 4=3 is not a member" in said
        assert "Traceback" not in said


def test_the_sites_decide_which_members_are_chained(
    pg_binaries: PostgresBinaries,
    initdb_template: Callable[[PostgresBinaries, int], Path],
    ledger_of: Callable[[QuorumCluster], Ledger],
    tmp_path: Path,
) -> None:
    """1 and 2 are in the proposer's site. In the other site the first member is the source."""
    cluster = QuorumCluster(
        tmp_path / "cluster",
        binaries=pg_binaries,
        safekeepers=5,
        wal_seg_size=SEGMENT_BYTES,
        template=initdb_template(pg_binaries, SEGMENT_BYTES),
        proposer_arguments=["--site", "a", "--via-sites"],
    )
    for keeper, site in zip(cluster.safekeepers, "aabbb", strict=True):
        keeper.program += ["--site", site]
    with cluster:
        wait_chained(cluster.proposer)
        said = sources(cluster.proposer)
        assert said[1] == said[2] == said[3] == ("streaming", None)
        status = sk("status", "--safekeepers", cluster.safekeepers[0].address)
        assert status.returncode == 0, status.stdout
        assert status.stdout.count(", via 3") == len(CHAINED)
        assert "sites: the loss of site a is survived; that of site b is not" in status.stdout
        ledger = ledger_of(cluster)
        cluster.safekeepers[2].kill()
        wait_direct(cluster.proposer)
        ledger.wait_for_progress(50, TIMEOUT)
        cluster.safekeepers[2].start()
        cluster.safekeepers[2].wait_ready()
        assert_nothing_lost(cluster, ledger)
