"""Two proposers with a lock: one attaches, the other waits, and takes over."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from etcd_server import EtcdServer
from reckoning import assert_nothing_lost
from sk_command import assert_refused, sk

from quorum_wal.cli.output import ExitCode
from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.http_status import http_get
from quorum_wal.pg_fixtures.ledger import Ledger
from quorum_wal.pg_fixtures.proposer import ProposerProcess
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_server.errors import Unavailable

TIMEOUT = 120.0
LOCK_SECONDS = 3
MB = 1 << 20


@pytest.fixture(params=["etcd", "folder"])
def lock_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "folder":
        yield str(tmp_path / "lock")
        return
    try:
        etcd = EtcdServer(tmp_path)
    except Unavailable as error:
        if os.environ.get("SK_REQUIRE_ALL") == "1":
            raise
        pytest.skip(str(error))
    with etcd:
        yield etcd.lock_url


def assert_metrics_of_a_standby(proposer: ProposerProcess) -> None:
    """Its state, and no metric of its last term: an alert on that would name the wrong proposer."""
    _, text = http_get(proposer.http_address, "/metrics")
    assert 'sk_proposer_state{state="waiting_for_lock"} 1.0' in text
    assert 'sk_proposer_state{state="streaming"} 0.0' in text
    assert "sk_proposer_quorum_ok" not in text


def test_a_standby_proposer_takes_over(
    quorum_cluster: Callable[..., QuorumCluster],
    ledger_of: Callable[[QuorumCluster], Ledger],
    lock_url: str,
) -> None:
    lock = [f"--lock={lock_url}", f"--lock-ttl={LOCK_SECONDS}"]
    cluster = quorum_cluster(wal_seg_size=MB, proposer_arguments=lock)
    ledger = ledger_of(cluster)
    first = cluster.proposer
    with cluster.new_proposer(configure=True) as second:
        second.wait_state("waiting_for_lock", TIMEOUT)
        status = second.status()["lock"]
        assert (status["held"], status["url"]) == (False, lock_url)
        wait_until(
            lambda: second.status()["lock"]["holder"] == first.http_address,
            TIMEOUT,
            "the holder to be known",
        )
        first.kill()
        second.wait_streaming(TIMEOUT)
        ledger.resume()
        ledger.wait_for_progress(20, TIMEOUT)

        first.start()  # waits now
        first.wait_state("waiting_for_lock", TIMEOUT)
        ledger.wait_for_progress(20, TIMEOUT)
        assert second.status()["lock"]["held"]

        second.pause()  # for longer than its lease: it is fenced by its successor and waits again
        first.wait_streaming(TIMEOUT)
        second.resume()
        second.wait_state("waiting_for_lock", TIMEOUT)
        assert_metrics_of_a_standby(second)
        ledger.resume()
        ledger.wait_for_progress(20, TIMEOUT)

        assert first.terminate() == 0  # releases it: the lease need not expire
        second.wait_streaming(TIMEOUT)
        cluster.proposer = second
        ledger.resume()
        assert_nothing_lost(cluster, ledger)
        for proposer in (first, second):
            assert "Traceback" not in proposer.log_text()


def test_a_lost_lock_service_stops_the_proposer_and_loses_nothing(
    quorum_cluster: Callable[..., QuorumCluster],
    ledger_of: Callable[[QuorumCluster], Ledger],
    tmp_path: Path,
) -> None:
    folder = tmp_path / "lock"
    cluster = quorum_cluster(
        wal_seg_size=MB, proposer_arguments=[f"--lock={folder}", f"--lock-ttl={LOCK_SECONDS}"]
    )
    ledger = ledger_of(cluster)
    aside = folder.with_name("aside")
    folder.rename(aside)
    folder.write_text("in the way")
    cluster.proposer.wait_state("waiting_for_lock", TIMEOUT)
    wait_until(
        lambda: cluster.proposer.status()["lock"]["error"], TIMEOUT, "the reason to be known"
    )
    folder.unlink()
    aside.rename(folder)
    cluster.proposer.wait_streaming(TIMEOUT)
    assert_nothing_lost(cluster, ledger)
    assert "lock lost" in cluster.proposer.log_text()
    assert "Traceback" not in cluster.proposer.log_text()


@pytest.mark.parametrize("url", ["etcd://user:secret@host/name", "relative/folder", "ftp://x/y"])
def test_an_invalid_lock_is_refused(url: str) -> None:
    attach = ("attach", "--primary", "host=/nowhere", "--safekeepers", "127.0.0.1:1")
    result = sk(*attach, "--lock", url)
    assert_refused(result, ExitCode.FAILED, "lock", "etcd://host:port/name")
    assert "secret" not in result.stderr
