"""A proposer that follows its server: `sk attach --supervise PGDATA`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from reckoning import TIMEOUT, assert_nothing_lost
from sk_command import assert_refused, assert_wrong_usage, sk
from test_unreadable_folders import sk_as_nobody

from quorum_wal.cli.output import ExitCode
from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.data_directory import DataDirectory
from quorum_wal.pg_fixtures.http_status import is_healthy
from quorum_wal.pg_fixtures.ledger import Ledger
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.proposer import ProposerProcess
from quorum_wal.pg_fixtures.standby import SIGNAL_FILE

SEGMENT_BYTES = 1 << 20


@pytest.fixture
def supervised(quorum_cluster: Callable[..., QuorumCluster], tmp_path: Path) -> QuorumCluster:
    """A cluster whose proposer follows its Postgres."""
    data_directory = tmp_path / "cluster" / "postgres"
    return quorum_cluster(
        wal_seg_size=SEGMENT_BYTES, proposer_arguments=["--supervise", str(data_directory)]
    )


def lines_of(proposer: ProposerProcess) -> list[str]:
    """Its log lines about the server, in order."""
    words = (line.partition("the server is ")[2] for line in proposer.log_text().splitlines())
    return [word.split("  ")[0].strip() for word in words if word]


def test_it_stays_through_restarts_and_ends_with_its_server(
    supervised: QuorumCluster, ledger_of: Callable[..., Ledger]
) -> None:
    cluster, proposer, ledger = supervised, supervised.proposer, ledger_of(supervised)
    pid = proposer.pid
    for end in (cluster.postgres.stop, cluster.postgres.crash):
        term = proposer.term
        end()
        cluster.postgres.start()
        proposer.wait_streaming_above(term, TIMEOUT)
        ledger.wait_for_progress(10, TIMEOUT)
    assert proposer.pid == pid
    cluster.postgres.stop()
    assert proposer.wait(TIMEOUT) == 0
    assert "the server has ended" in proposer.log_tail()
    assert lines_of(proposer)[-1] == "absent"

    proposer.start()  # before its server
    proposer.wait_state("waiting_for_primary", TIMEOUT)
    cluster.postgres.start()
    proposer.wait_streaming(TIMEOUT)
    assert_nothing_lost(cluster, ledger)


def test_it_ends_when_the_server_comes_back_as_a_standby(supervised: QuorumCluster) -> None:
    postgres = supervised.postgres
    postgres.stop()
    DataDirectory(postgres.data_dir, postgres.binaries).write(SIGNAL_FILE, "")
    postgres.start()
    assert supervised.proposer.wait(TIMEOUT) == 0
    assert "the server came back as a standby" in supervised.proposer.log_tail()


def wait_for_try(proposer: ProposerProcess, tries: int) -> None:
    """Wait until the log of all its runs reports so often that it could not attach."""
    said = "could not attach, retrying"
    proposer.wait_until(lambda: proposer.log_text().count(said) >= tries, TIMEOUT, "a try")


def test_it_waits_for_safekeepers_and_stops_on_request(
    supervised: QuorumCluster, ledger_of: Callable[..., Ledger]
) -> None:
    cluster, proposer, ledger = supervised, supervised.proposer, ledger_of(supervised)
    assert proposer.terminate(TIMEOUT) == 0
    for safekeeper in cluster.safekeepers:
        safekeeper.kill()
    proposer.start()
    wait_for_try(proposer, 1)
    assert proposer.terminate(TIMEOUT) == 0
    proposer.start()
    wait_for_try(proposer, 2)
    for safekeeper in cluster.safekeepers:
        safekeeper.start()
    proposer.wait_streaming(TIMEOUT)
    assert_nothing_lost(cluster, ledger)


def test_it_attaches_to_a_standby_that_is_promoted(
    quorum_cluster: Callable[..., QuorumCluster],
    standby_factory: Callable[..., Postgres],
    ledger_of: Callable[..., Ledger],
    tmp_path: Path,
) -> None:
    cluster = quorum_cluster(wal_seg_size=SEGMENT_BYTES)
    ledger, addresses = ledger_of(cluster), [s.address for s in cluster.safekeepers]
    standby = standby_factory(cluster.postgres, "standby", cluster.replica_conninfo())
    proposer = ProposerProcess(
        standby.dsn(),
        addresses,
        log_path=tmp_path / "supervised.log",
        configure=True,
        arguments=["--supervise", str(standby.data_dir)],
    )
    with proposer:
        proposer.wait_state("waiting_for_promotion", TIMEOUT)
        assert is_healthy(proposer.http_address)
        cluster.proposer.kill()
        cluster.postgres.crash()
        members = ("--safekeepers", ",".join(addresses))
        done = sk("promote", "--no-attach", "--standby", standby.dsn(), *members)
        assert done.returncode == 0, done.stderr
        proposer.wait_streaming(TIMEOUT)
        told = [line for line in lines_of(proposer) if line != "in recovery"]
        assert told == ["a standby", "a primary"]
        ledger.redirect(standby.dsn())
        ledger.wait_for_progress(20, TIMEOUT)
        ledger.pause()
        ledger.wait_idle(TIMEOUT)
        report = ledger.verify(standby.dsn())
        assert report.ok, report


# ---- what is refused


def attach(cluster: QuorumCluster, data_directory: Path, dsn: str = "") -> tuple[object, ...]:
    members = ",".join(safekeeper.address for safekeeper in cluster.safekeepers)
    primary = ("--primary", dsn or cluster.postgres.dsn(), "--safekeepers", members)
    return ("attach", *primary, "--supervise", data_directory, "--http", "127.0.0.1:0")


def test_the_directory_of_another_server(
    cluster: QuorumCluster, postgres_factory: Callable[..., Postgres]
) -> None:
    other = postgres_factory("other", fresh=True)
    done = sk(*attach(cluster, other.data_dir))
    assert_refused(done, ExitCode.FAILED, "has system identifier", "of one server")


def test_a_directory_that_does_not_exist(cluster: QuorumCluster, tmp_path: Path) -> None:
    done = sk(*attach(cluster, tmp_path / "none"))
    assert_refused(done, ExitCode.FAILED, 'none" is not a data directory', "SHOW data_directory")
    (tmp_path / "file").touch()
    done = sk(*attach(cluster, tmp_path / "file"))
    assert_refused(done, ExitCode.FAILED, 'file" is not a data directory', "SHOW data_directory")


def test_a_directory_that_may_not_be_read(cluster: QuorumCluster) -> None:
    done = sk_as_nobody(*attach(cluster, cluster.postgres.data_dir))
    assert_refused(done, ExitCode.FAILED, "Permission denied", "account that the server runs as")


def test_a_primary_of_several_hosts(cluster: QuorumCluster) -> None:
    done = sk(*attach(cluster, cluster.postgres.data_dir, cluster.postgres.dsn(host="a,b")))
    assert_wrong_usage(done, "--primary names several hosts")
