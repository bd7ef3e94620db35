"""A standby is promoted: the log continues with it on a new Postgres timeline, or it is refused.

Standbys stream directly from the primary, as without safekeepers. A standby may continue the log
exactly if it has all acknowledged WAL.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import hand_written_proposer as by_hand
import pytest
from pending_commit import PendingCommit

from quorum_wal.pg_fixtures.cluster import PRIMARY, QuorumCluster
from quorum_wal.pg_fixtures.ledger import Ledger
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.proposer import ProposerProcess
from quorum_wal.pg_fixtures.safekeeper import SafekeeperProcess
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_fixtures.wal_comparison import compare_wal
from quorum_wal.pgwal.history import TimelineHistory, history_file_name
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.pgwal.segment import format_segment_name, segno_of
from quorum_wal.walproposer.safekeeper_client import SafekeeperAddress
from quorum_wal.walproposer.stream.peer import read_tail

SEG_SIZE = 1 << 20
TIMEOUT = 120.0
THREE_SEGMENTS = "SELECT pg_logical_emit_message(true, 'fill', repeat('x', 3 << 20))"

numbers = count(1)


@pytest.fixture
def standby_of(tmp_path: Path) -> Iterator[Callable[[Postgres, str], Postgres]]:
    """`standby_of(primary, "name")`: a base backup, streaming from the primary."""
    with ExitStack() as standbys:

        def make(primary: Postgres, name: str) -> Postgres:
            standby = primary.base_backup(tmp_path / name, "--write-recovery-conf")
            return standbys.enter_context(standby)

        yield make


def wait_received(standby: Postgres, lsn: int) -> None:
    """It has all the WAL below `lsn` on disk."""

    def has_it() -> bool:
        ((received,),) = standby.execute("SELECT pg_last_wal_receive_lsn()::text")
        return received is not None and Lsn.parse(received) >= lsn

    wait_until(has_it, TIMEOUT, f"the standby to receive {Lsn(lsn)}")


def promote(standby: Postgres) -> Lsn:
    """Promote it; returns the position where it leaves timeline 1."""
    ((promoted,),) = standby.execute("SELECT pg_promote(true, 60)")
    assert promoted
    return switch_lsn_of(standby)


def switch_lsn_of(promoted: Postgres) -> Lsn:
    history = (promoted.pg_wal / history_file_name(2)).read_text()
    switch_lsn = TimelineHistory.parse(2, history).switch_lsn_of(1)
    assert switch_lsn is not None
    return switch_lsn


def proposer_of(cluster: QuorumCluster, primary: Postgres, name: str) -> ProposerProcess:
    return ProposerProcess(
        primary.dsn(),
        [target.address for target in (cluster.proxies or cluster.safekeepers)],
        log_path=cluster.root / f"{name}.log",
        configure=True,
    )


def promises(cluster: QuorumCluster) -> list[Any]:
    """The promises, which an attempt to attach must not change."""
    statuses = [safekeeper.timeline() for safekeeper in cluster.safekeepers]
    return [
        status and (status["promised"], status["last_log_node_id"], status["tli_history"])
        for status in statuses
    ]


def assert_refused(cluster: QuorumCluster, primary: Postgres, fork_lsn: Lsn) -> None:
    """The error names both positions, and no vote was requested."""
    before, log_end_lsn = promises(cluster), end_of_log(cluster)
    with proposer_of(cluster, primary, f"refused-{next(numbers)}") as proposer:
        assert proposer.wait(TIMEOUT) == 1
        words = proposer.log_text()
    assert f"diverge at {fork_lsn}" in words
    named = re.search(r"the quorum's log ends at ([0-9A-F]+/[0-9A-F]+)", words)
    assert named is not None, words
    assert log_end_lsn <= Lsn.parse(named[1]) <= end_of_log(cluster)
    assert "lacks acknowledged commits" in words
    assert "Traceback" not in words
    assert promises(cluster) == before


def end_of_log(cluster: QuorumCluster) -> Lsn:
    return max(flush_lsn(safekeeper) for safekeeper in cluster.safekeepers)


def flush_lsn(safekeeper: SafekeeperProcess) -> Lsn:
    status = safekeeper.timeline()
    assert status is not None
    return Lsn.parse(status["flush_lsn"])


def assert_log_spans_the_switch(
    cluster: QuorumCluster, primary: Postgres, switch_lsn: Lsn, end_lsn: Lsn
) -> None:
    """Byte-equal with the new primary; the segment of the switch exists under both names."""
    cluster.wait_flushed(end_lsn, TIMEOUT)
    copies = {s.name: s.data_dir for s in cluster.safekeepers}
    comparison = compare_wal({**copies, PRIMARY: primary.pg_wal}, end_lsn, SEG_SIZE)
    for holder in copies:
        begin_lsn, compared_lsn = comparison.range_of(holder)
        assert begin_lsn < switch_lsn < compared_lsn == end_lsn

    segno = segno_of(switch_lsn, SEG_SIZE)
    older, newer = (format_segment_name(tli, segno, SEG_SIZE) for tli in (1, 2))
    for safekeeper in cluster.safekeepers:
        status = safekeeper.timeline()
        assert status is not None
        assert status["tli"] == 2
        (wal,) = safekeeper.data_dir.glob("timelines/*/wal")
        prefix_bytes = switch_lsn % SEG_SIZE
        prefix = (primary.pg_wal / newer).read_bytes()[:prefix_bytes]
        assert (wal / newer).read_bytes()[:prefix_bytes] == prefix
        assert (wal / older).read_bytes()[:prefix_bytes] == prefix
        assert not (wal / older).read_bytes()[prefix_bytes:].strip(b"\0")
        assert_reads_across(safekeeper, segno * SEG_SIZE, end_lsn, primary)


def assert_reads_across(
    safekeeper: SafekeeperProcess, begin_lsn: int, end_lsn: int, primary: Postgres
) -> None:
    """A reader gets the same WAL as from the new primary, from the segment of the switch on."""
    status = safekeeper.timeline()
    assert status is not None
    wal = read_tail(
        SafekeeperAddress.parse(safekeeper.address), by_hand.timeline_id(status),
        by_hand.node_id(status["promised"]), begin_lsn, end_lsn,
    )  # fmt: skip
    segments = (
        (primary.pg_wal / format_segment_name(2, segno, SEG_SIZE)).read_bytes()
        for segno in range(begin_lsn // SEG_SIZE, -(-end_lsn // SEG_SIZE))
    )
    assert b"".join(segments)[: len(wal)] == wal


def test_the_log_goes_on_with_a_promoted_standby(
    quorum_cluster: Callable[..., QuorumCluster],
    standby_of: Callable[[Postgres, str], Postgres],
) -> None:
    cluster = quorum_cluster(wal_seg_size=SEG_SIZE)
    old = cluster.postgres
    stale, standby = standby_of(old, "stale"), standby_of(old, "standby")
    with Ledger(old.dsn(), clients=3) as ledger:
        ledger.wait_for_progress(50, TIMEOUT)
        stale.stop()  # it lacks the rows that are acknowledged from here on
        ledger.wait_for_progress(50, TIMEOUT)
        ledger.pause()
        ledger.wait_idle(TIMEOUT)
        old.stop()  # in good order: all have confirmed everything
        cluster.proposer.terminate()

        stale.start()
        assert_refused(cluster, stale, promote(stale))

        switch_lsn = promote(standby)
        assert {flush_lsn(safekeeper) for safekeeper in cluster.safekeepers} == {switch_lsn}
        with proposer_of(cluster, standby, "new-proposer") as proposer:
            proposer.wait_streaming()
            ledger.redirect(standby.dsn())
            ledger.resume()
            ledger.wait_for_progress(100, TIMEOUT)
            standby.execute(THREE_SEGMENTS)

            old.start()
            ledger.pause()
            ledger.wait_idle(TIMEOUT)
            cluster.wait_flushed(standby.flush_lsn(), TIMEOUT)
            assert_refused(cluster, old, switch_lsn)
            assert_refused(cluster, stale, switch_lsn_of(stale))  # its timeline 2 is another one
            ledger.resume()
            ledger.wait_for_progress(20, TIMEOUT)
            end_lsn = settle(ledger, standby)
            assert_log_spans_the_switch(cluster, standby, switch_lsn, end_lsn)
            assert "Traceback" not in proposer.log_text()
    for safekeeper in cluster.safekeepers:
        safekeeper.restart()
        assert "Traceback" not in safekeeper.log_text()
    assert_log_spans_the_switch(cluster, standby, switch_lsn, end_lsn)


def settle(ledger: Ledger, primary: Postgres) -> Lsn:
    """Nothing acknowledged is lost; returns the end of the WAL."""
    ledger.pause()
    ledger.wait_idle(TIMEOUT)
    report = ledger.verify()
    assert report.ok, report
    return primary.flush_lsn()


def test_a_standby_ahead_of_the_quorum_brings_along_what_it_has(
    quorum_cluster: Callable[..., QuorumCluster],
    standby_of: Callable[[Postgres, str], Postgres],
) -> None:
    """The primary is lost with WAL that its standbys have and the quorum lacks: several segments of
    the old timeline come first, then the switch. A standby that has removed them cannot continue
    the log."""
    cluster = quorum_cluster(wal_seg_size=SEG_SIZE, proxied=True)
    old, third = cluster.postgres, cluster.safekeepers[2]
    forgetful, standby = standby_of(old, "forgetful"), standby_of(old, "standby")
    standby.configure(wal_keep_size="64MB")
    with Ledger(old.dsn(), clients=3) as ledger:
        ledger.wait_for_progress(50, TIMEOUT)
        for proxy in cluster.proxies[:2]:
            proxy.cut()
        pending = PendingCommit(old, THREE_SEGMENTS)
        pending.wait_blocked(TIMEOUT)
        for server in (forgetful, standby):
            wait_received(server, old.flush_lsn())
        old.crash()
        cluster.proposer.kill()
        for proxy in cluster.proxies:
            proxy.restore()

        third.kill()  # it has some of the WAL that the quorum lacks
        promote(forgetful)
        forgetful.execute("CHECKPOINT")
        with proposer_of(cluster, forgetful, "forgetful-proposer") as proposer:
            assert proposer.wait(TIMEOUT) == 1
            words = proposer.log_text()
        assert re.search("lacks WAL .* segment 0{7}1.{16} has already been removed", words), words
        third.start()

        switch_lsn = promote(standby)
        assert sum(flush_lsn(s) < switch_lsn for s in cluster.safekeepers[:2]) == 2
        with proposer_of(cluster, standby, "new-proposer") as proposer:
            proposer.wait_streaming()
            ledger.redirect(standby.dsn())
            ledger.wait_for_progress(100, TIMEOUT)
            end_lsn = settle(ledger, standby)
            assert_log_spans_the_switch(cluster, standby, switch_lsn, end_lsn)
            assert "Traceback" not in proposer.log_text()
