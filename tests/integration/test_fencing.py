"""Two proposers, two primaries: one wins, the other reports why it does not, and nothing is
lost."""

from __future__ import annotations

import re
import select
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from hand_written_proposer import node_id, timeline_id
from pending_commit import PendingCommit
from reckoning import TIMEOUT, assert_equal_logs, assert_nothing_lost
from workload import write_wal

from quorum_wal.cli.output import ExitCode
from quorum_wal.pg_fixtures.cluster import QuorumCluster, flush_lsn
from quorum_wal.pg_fixtures.data_directory import WAL_SEG_SIZE
from quorum_wal.pg_fixtures.ledger import Ledger
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.processes import run_sk
from quorum_wal.pg_fixtures.proposer import ProposerProcess
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.pgwire.replication import XLogData
from quorum_wal.walproposer.safekeeper_client import SafekeeperAddress
from quorum_wal.walproposer.stream.copy_connection import CopyConnection
from quorum_wal.walproposer.stream.peer import open_donor

BEHIND = re.compile(
    r"the primary's WAL ends at ([0-9A-F]+/[0-9A-F]+), "
    r"but the quorum's log ends at ([0-9A-F]+/[0-9A-F]+)"
)
DIFFERS = re.compile(
    r"the primary's WAL differs from the quorum's log at ([0-9A-F]+/[0-9A-F]+), "
    r"below the log's end at ([0-9A-F]+/[0-9A-F]+)"
)


def test_the_last_of_several_proposers_wins(cluster: QuorumCluster, ledger: Ledger) -> None:
    first, second = cluster.proposer, cluster.new_proposer()
    term = first.status()["node_id"]["term"]
    with second:
        assert first.wait(TIMEOUT) == ExitCode.FENCED
        assert "Another proposer took over this timeline" in first.log_tail()
        second.wait_streaming(TIMEOUT)
        node_id = second.status()["node_id"]
        assert node_id["term"] > term
        ledger.wait_for_progress(20, TIMEOUT)
        cluster.wait_flushed(cluster.postgres.flush_lsn(), TIMEOUT)
        for safekeeper in cluster.safekeepers:
            timeline = safekeeper.timeline()
            assert timeline is not None
            assert timeline["promised"] == timeline["proposer"]["node_id"] == node_id
            assert timeline["proposer"]["http"] == second.http_address
        with cluster.led_by(second):
            assert_nothing_lost(cluster, ledger)


def test_of_three_rivals_one_remains(cluster: QuorumCluster, ledger: Ledger) -> None:
    first = cluster.proposer
    with ExitStack() as stack:
        rivals = [first, *(stack.enter_context(cluster.new_proposer()) for _ in range(2))]
        wait_until(
            lambda: [r.exit_code for r in rivals].count(ExitCode.FENCED) == 2,
            TIMEOUT,
            "two of three to be fenced",
        )
        (winner,) = [rival for rival in rivals if rival.alive]
        winner.wait_streaming(TIMEOUT)
        with cluster.led_by(winner):
            assert_nothing_lost(cluster, ledger)


def test_a_frozen_proposer_is_fenced_when_it_thaws(cluster: QuorumCluster, ledger: Ledger) -> None:
    """Until the primary ends its connection it holds the slot, and its successor waits for that."""
    first, second = cluster.proposer, cluster.new_proposer()
    cluster.postgres.configure(wal_sender_timeout="2s")
    try:
        with second:
            first.pause()
            second.wait_streaming(TIMEOUT)
            ledger.wait_for_progress(20, TIMEOUT)
            first.resume()
            assert first.wait(TIMEOUT) == ExitCode.FENCED
            with cluster.led_by(second):
                assert_nothing_lost(cluster, ledger)
    finally:
        cluster.postgres.configure(wal_sender_timeout=None)


def test_a_donor_s_stream_that_runs_ends_at_a_greater_promise(cluster: QuorumCluster) -> None:
    """It sent WAL and waits for more; an election ends it at once."""
    cluster.postgres.execute("SELECT pg_logical_emit_message(true, 'donor', 'wal')")
    status = cluster.safekeepers[0].timeline()
    assert status is not None
    promised, begin_lsn = node_id(status["promised"]), int(Lsn.parse(status["local_start_lsn"]))
    address = SafekeeperAddress.parse(cluster.safekeepers[0].address)
    donor = CopyConnection(open_donor(address, timeline_id(status), promised, begin_lsn))
    with closing(donor):
        end_lsn = cluster.postgres.flush_lsn()
        assert len(received(donor, end_lsn - begin_lsn)) >= end_lsn - begin_lsn
        cluster.postgres.execute("SELECT pg_logical_emit_message(true, 'donor', 'more')")
        assert received(donor, 1)
        elect = ("elect", "--safekeepers", ",".join(s.address for s in cluster.safekeepers))
        assert run_sk(*elect, timeout=TIMEOUT).returncode == 0
        while received(donor, 1):
            continue  # flushed before
    assert donor.end is not None
    assert donor.end.sqlstate == "55000"
    assert f"log is read for {promised}, but {promised.term + 1}/" in str(donor.end)
    assert cluster.proposer.wait(TIMEOUT) == ExitCode.FENCED


def received(donor: CopyConnection, size: int) -> bytes:
    """At least that many bytes of WAL, or less if the stream ends."""
    wal = b""
    deadline = time.monotonic() + TIMEOUT
    while len(wal) < size and donor.end is None:
        assert select.select([donor], [], [], deadline - time.monotonic())[0], "it sends nothing"
        for message in donor.receive_replication():
            wal += bytes(message.data) if isinstance(message, XLogData) else b""
    return wal


def proposer_for(primary: Postgres, cluster: QuorumCluster) -> ProposerProcess:
    """A proposer that tries to attach another primary to the safekeepers of the cluster."""
    return ProposerProcess(
        primary.dsn(),
        [safekeeper.address for safekeeper in cluster.safekeepers],
        log_path=primary.log_path.with_suffix(".proposer.log"),
    )


def copy_of(cluster: QuorumCluster, path: Path) -> Postgres:
    """A copy of the primary from its last stop; the primary has continued since."""
    cluster.postgres.stop()
    copy = Postgres(cluster.postgres.binaries, path, template=cluster.postgres.data_dir)
    copy.init()
    cluster.start()
    return copy


def test_a_stale_copy_is_refused_and_the_primary_continues(
    cluster: QuorumCluster, ledger: Ledger, tmp_path: Path
) -> None:
    copy = copy_of(cluster, tmp_path / "copy")
    ledger.wait_for_progress(10, TIMEOUT)
    term = cluster.proposer.status()["node_id"]["term"]
    with copy:
        begin_lsn = copy.flush_lsn()
        with proposer_for(copy, cluster) as rival:
            assert rival.wait(TIMEOUT) == ExitCode.FAILED
            positions = BEHIND.search(rival.log_text())
        assert positions is not None, rival.log_text()
        copys_lsn, logs_lsn = Lsn.parse(positions[1]), Lsn.parse(positions[2])
        assert begin_lsn <= copys_lsn <= copy.flush_lsn()
        assert copys_lsn < logs_lsn <= cluster.postgres.flush_lsn()
    assert_nothing_lost(cluster, ledger)
    assert cluster.proposer.status()["node_id"]["term"] == term


def assert_diverged_copy_is_refused(copy: Postgres, cluster: QuorumCluster) -> None:
    """`copy` runs, its WAL is longer than the log, and it differs from the log."""
    with proposer_for(copy, cluster) as rival:
        assert rival.wait(TIMEOUT) == ExitCode.FAILED
        positions = DIFFERS.search(rival.log_text())
        assert positions is not None, rival.log_text()
        assert Lsn.parse(positions[1]) < Lsn.parse(positions[2]) < copy.flush_lsn()


@pytest.mark.parametrize("kind", ["cold copy", "base backup"])
def test_a_diverged_copy_is_refused(
    cluster: QuorumCluster, ledger: Ledger, tmp_path: Path, kind: str
) -> None:
    """A base backup has no slot, so only its WAL shows that it is not the primary."""
    path = tmp_path / "copy"
    copy = copy_of(cluster, path) if kind == "cold copy" else cluster.postgres.base_backup(path)
    copy.configure(wal_keep_size="1GB")
    ledger.wait_for_progress(10, TIMEOUT)
    with copy:
        write_wal(copy, 4)
        copy.execute("CHECKPOINT")
        assert copy.flush_lsn() > cluster.postgres.flush_lsn()
        assert_diverged_copy_is_refused(copy, cluster)
    # The rival had to win a term to read the quorum's log, so our own proposer is fenced.
    assert cluster.proposer.wait(TIMEOUT) == ExitCode.FENCED
    cluster.start()
    assert_nothing_lost(cluster, ledger)


def test_a_copy_with_an_equal_end_of_segment_is_refused(
    quorum_cluster: Callable[..., QuorumCluster], tmp_path: Path
) -> None:
    """The last megabytes of both are the padding of a segment switch: they are equal, and prove
    nothing."""
    cluster = quorum_cluster()
    copy = copy_of(cluster, tmp_path / "copy")
    PendingCommit(cluster.postgres).wait_returned(TIMEOUT)
    cluster.postgres.execute("SELECT pg_switch_wal()")
    end_lsn = -(-cluster.postgres.flush_lsn() // WAL_SEG_SIZE) * WAL_SEG_SIZE
    cluster.wait_flushed(end_lsn, TIMEOUT)
    cluster.postgres.crash()
    assert {flush_lsn(safekeeper) for safekeeper in cluster.safekeepers} == {end_lsn}
    with copy:
        write_wal(copy, 1)
        copy.execute("SELECT pg_switch_wal()")
        write_wal(copy, 1)
        copy.execute("CHECKPOINT")
        assert_diverged_copy_is_refused(copy, cluster)
    cluster.proposer.wait_state("waiting_for_primary", TIMEOUT)
    cluster.postgres.start()
    assert cluster.proposer.wait(TIMEOUT) == ExitCode.FENCED
    cluster.start()
    assert_equal_logs(cluster)


def test_the_primary_whose_copy_took_over_is_refused(
    quorum_cluster: Callable[..., QuorumCluster],
    ledger_of: Callable[..., Ledger],
    tmp_path: Path,
) -> None:
    """Both were stopped at the end of the log, so either could continue. The first one to attach is
    the primary."""
    cluster = quorum_cluster(wal_seg_size=1 << 20)
    original, ledger = cluster.postgres, ledger_of(cluster)
    original.stop()
    copy = Postgres(original.binaries, tmp_path / "copy", template=original.data_dir)
    with copy, proposer_for(copy, cluster) as successor:
        ledger.redirect(copy.dsn())
        successor.wait_streaming(TIMEOUT)
        ledger.wait_for_progress(20, TIMEOUT)

        original.start()
        commit = PendingCommit(original)
        assert cluster.proposer.wait(TIMEOUT) == ExitCode.FENCED
        cluster.proposer.start()
        assert cluster.proposer.wait(TIMEOUT) == ExitCode.FAILED
        assert BEHIND.search(cluster.proposer.log_tail())
        assert commit.is_blocked

        cluster.postgres, cluster.proposer = copy, successor
        try:
            assert_nothing_lost(cluster, ledger)
        finally:
            original.crash()


def test_a_primary_rolled_back_to_a_snapshot_is_refused(
    quorum_cluster: Callable[..., QuorumCluster], ledger_of: Callable[..., Ledger], tmp_path: Path
) -> None:
    """Under its own address, by the proposer that waits for it to return."""
    cluster = quorum_cluster(wal_seg_size=1 << 20)
    ledger = ledger_of(cluster)
    snapshot = copy_of(cluster, tmp_path / "snapshot")
    ledger.wait_for_progress(20, TIMEOUT)
    cluster.postgres.crash()
    now, data_dir = tmp_path / "now", cluster.postgres.data_dir
    data_dir.rename(now)
    snapshot.data_dir.rename(data_dir)
    cluster.postgres.start()
    assert cluster.proposer.wait(TIMEOUT) == ExitCode.FAILED
    assert BEHIND.search(cluster.proposer.log_tail())

    cluster.postgres.crash()
    shutil.rmtree(data_dir)
    now.rename(data_dir)
    cluster.start()
    assert_nothing_lost(cluster, ledger)
