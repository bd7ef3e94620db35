"""The ledger: it counts only acknowledged rows, and reports every loss."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from quorum_wal.pg_fixtures.errors import FixtureError, WalDiffers
from quorum_wal.pg_fixtures.ledger import Ledger
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_fixtures.wal_comparison import compare_wal
from quorum_wal.pg_server.binaries import all_postgres
from quorum_wal.pg_server.errors import DeadlineExceeded
from quorum_wal.pgwal.lsn import Lsn

TIMEOUT = 120.0

each_postgres = pytest.mark.parametrize(
    "pg_binaries", all_postgres(), ids=lambda binaries: binaries.version, indirect=True
)


@each_postgres
def test_a_crash_loses_nothing_that_was_acknowledged(postgres: Postgres) -> None:
    with Ledger(postgres.dsn(), clients=4) as ledger:
        for _ in range(2):
            ledger.wait_for_progress(100, TIMEOUT)
            postgres.crash()
            before = ledger.acknowledged
            wait_until(lambda: ledger.errors > 4, TIMEOUT, "the clients to notice")
            assert ledger.acknowledged == before
            postgres.start()
        ledger.wait_for_progress(100, TIMEOUT)
        assert ledger.last_ack_age < 1.0
        assert ledger.verify().ok  # while they run
    report = ledger.verify()
    assert report.ok, report
    assert report.found == report.acknowledged == ledger.acknowledged >= 300
    assert 1 <= report.unknown_found + report.unknown_absent == ledger.unknown <= 3 * 4
    assert len(ledger.latencies()) == ledger.acknowledged
    assert 0 < ledger.latency_percentile(50) <= ledger.latency_percentile(99)
    assert ledger.longest_silence() > ledger.latency_percentile(50)


def test_every_kind_of_damage_is_reported(postgres: Postgres) -> None:
    with Ledger(postgres.dsn(), clients=2, seed=7, payload_bytes=300) as ledger:
        ledger.wait_for_progress(50, TIMEOUT)
    assert ledger.verify().ok
    postgres.execute("DELETE FROM ledger WHERE client = 0 AND seq IN (3, 5)")
    postgres.execute("UPDATE ledger SET payload = 'x' || payload WHERE client = 1 AND seq = 2")
    postgres.execute("INSERT INTO ledger VALUES (1, 1000000, ''), (9, 0, '')")
    report = ledger.verify(postgres.dsn())
    assert not report.ok
    assert report.lost == [(0, 3), (0, 5)]
    assert report.damaged == [(1, 2)]
    assert report.foreign == [(1, 1000000), (9, 0)]
    assert report.found == report.acknowledged - 2

    postgres.execute("DROP TABLE ledger")
    assert len(ledger.verify().lost) == ledger.acknowledged


def test_a_commit_that_still_waits_for_its_standby_is_not_acknowledged(postgres: Postgres) -> None:
    postgres.configure(synchronous_standby_names="nobody")
    with Ledger(postgres.dsn(), clients=3) as ledger:
        wait_until(lambda: ledger.in_flight == 3, TIMEOUT, "the commits to wait")
        with pytest.raises(DeadlineExceeded, match="0 came"):
            ledger.wait_for_progress(1, 0.3)
        assert ledger.last_ack_age > 0.3
        assert ledger.longest_wait(since=0.0) > 0.3
        now = time.monotonic()
        assert ledger.longest_wait(since=now) <= time.monotonic() - now
    assert (ledger.acknowledged, ledger.unknown, ledger.in_flight) == (0, 3, 0)
    assert "cancel" not in postgres.log_text()

    postgres.configure(synchronous_standby_names=None)
    wait_until(lambda: ledger.verify().unknown_found == 3, TIMEOUT, "the commits to end")


def test_the_longest_wait_of_one_commit_since_the_start_of_the_measurement(
    postgres: Postgres,
) -> None:
    with Ledger(postgres.dsn(), clients=2) as ledger:
        ledger.wait_for_progress(5, TIMEOUT)
        postgres.configure(synchronous_standby_names="nobody")
        begun = time.monotonic()
        wait_until(lambda: ledger.longest_wait(begun) > 0.5, TIMEOUT, "the commits to wait")
        postgres.configure(synchronous_standby_names=None)
        ledger.wait_for_progress(5, TIMEOUT)
        assert ledger.longest_wait(begun) > 0.5
        assert ledger.longest_wait(begun) <= max(ledger.latencies())
        ended = time.monotonic()
        ledger.wait_for_progress(5, TIMEOUT)
        assert ledger.longest_wait(ended) <= time.monotonic() - ended


def test_a_commit_that_stopped_waiting_is_not_acknowledged(postgres: Postgres) -> None:
    """If the wait is cancelled, Postgres answers COMMIT with a warning."""
    postgres.configure(synchronous_standby_names="nobody")
    with Ledger(postgres.dsn(), clients=2) as ledger:
        cancel = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        for _ in range(5):
            unknown = ledger.unknown
            wait_until(lambda: postgres.execute(cancel), TIMEOUT, "a commit to wait")
            wait_until(lambda u=unknown: ledger.unknown > u, TIMEOUT, "the commit to return")
    assert ledger.errors <= 2  # those that stop() interrupted; the warnings are not among them
    assert "canceling wait for synchronous replication" in postgres.log_text()
    report = ledger.verify()
    assert report.acknowledged == 0
    assert report.unknown_found >= 5


def test_a_ledger_pauses_resumes_and_follows_a_failover(
    postgres_factory: Callable[..., Postgres],
) -> None:
    old, new = postgres_factory("old"), postgres_factory("new")
    with Ledger(old.dsn(), clients=3) as ledger:
        ledger.wait_for_progress(20, TIMEOUT)
        ledger.pause()
        ledger.wait_idle(TIMEOUT)
        paused_at = ledger.acknowledged
        with pytest.raises(DeadlineExceeded):
            ledger.wait_for_progress(1, 0.2)
        assert ledger.acknowledged == paused_at
        ledger.redirect(new.dsn())
        ledger.resume()
        ledger.wait_for_progress(20, TIMEOUT)
    assert len(ledger.verify(new.dsn()).lost) == paused_at
    assert len(ledger.verify(old.dsn()).lost) == ledger.acknowledged - paused_at


def test_clients_give_up_after_errors_for_too_long(postgres: Postgres) -> None:
    postgres.stop()
    with Ledger(postgres.dsn(), clients=2, give_up_seconds=0.2) as ledger:
        with pytest.raises(FixtureError, match=r"given up(?s:.*)2 clients: .*refused"):
            ledger.wait_for_progress(1, TIMEOUT)
        postgres.start()
        ledger.stop()
        ledger.start()
        ledger.wait_for_progress(1, TIMEOUT)


@pytest.mark.parametrize("wal_seg_size", [1 << 20])
def test_wal_is_compared_byte_by_byte(
    postgres_factory: Callable[..., Postgres], tmp_path: Path, wal_seg_size: int
) -> None:
    postgres = postgres_factory(wal_seg_size=wal_seg_size)
    begin = postgres.flush_lsn()
    postgres.execute("CREATE TABLE t AS SELECT generate_series(1, 100000) AS a")
    end = postgres.flush_lsn()
    assert end - begin > 4 * wal_seg_size
    copies = {"primary": postgres.pg_wal}
    for name in ("one", "two"):
        copies[name] = tmp_path / name
        shutil.copytree(postgres.pg_wal, copies[name] / "wal")

    comparison = compare_wal(copies, end, wal_seg_size)
    assert comparison.range_of("one")[1] == end
    assert comparison.range_of("one")[0] <= begin
    last = comparison.segments[-1]
    assert last.holders == ("primary", "one", "two")

    damaged_lsn = Lsn(Random(1).randrange(last.begin_lsn, end))
    with open(copies["two"] / "wal" / last.name, "r+b") as segment:
        segment.seek(damaged_lsn % wal_seg_size)
        byte = segment.read(1)[0]
        segment.seek(-1, 1)
        segment.write(bytes([byte ^ 1]))
    with pytest.raises(WalDiffers, match="two differs from primary at") as differs:
        compare_wal(copies, end, wal_seg_size)
    assert differs.value.lsn == damaged_lsn
    compare_wal(copies, damaged_lsn, wal_seg_size)  # equal up to here

    (copies["two"] / "wal" / last.name).unlink()
    begin_lsn, end_lsn = compare_wal(copies, end, wal_seg_size).range_of("two")
    assert begin_lsn == end_lsn
    with pytest.raises(FixtureError, match="no WAL to compare"):
        compare_wal(copies, Lsn(0), wal_seg_size)
