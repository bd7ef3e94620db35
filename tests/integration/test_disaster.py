"""The primary and its disk are lost: a new primary is made from a backup, the archive and the
remaining safekeepers, with every acknowledged row."""

from __future__ import annotations

import os
import random
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from restored import (
    PARTIAL_INTERVAL_SECONDS,
    SEGMENT_BYTES,
    TIMEOUT,
    RestoreProcess,
    archiving,
    restored_at,
    take_backup,
)

from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.ledger import Ledger
from quorum_wal.pgwal.lsn import Lsn

RUNS = int(os.environ.get("SK_DISASTER_RUNS", "1"))
#: Of PAYLOAD_BYTES, together more than a segment: the loss may be at any position in one.
ROWS_MAX, PAYLOAD_BYTES = 1500, 500
SLACK_SECONDS = 5.0  # an upload on a busy machine


@pytest.mark.parametrize("seed", range(1, 1 + RUNS))
def test_primary_and_a_safekeeper_are_lost(
    seed: int, quorum_cluster: Callable[..., QuorumCluster], tmp_path: Path
) -> None:
    """At any moment; the two safekeepers have the WAL that the archive lacks. With every second
    seed the new primary is lost as well, before there is a backup of it."""
    print(f"seed {seed}")
    choose = random.Random(seed)
    archive = tmp_path / "archive"
    cluster = quorum_cluster(wal_seg_size=SEGMENT_BYTES, safekeeper_arguments=archiving(archive))
    with Ledger(
        cluster.postgres.dsn(), clients=4, payload_bytes=PAYLOAD_BYTES, pause_seconds=0
    ) as ledger:
        ledger.wait_for_progress(200, TIMEOUT)
        take_backup(archive, cluster.postgres)
        ledger.wait_for_progress(choose.randint(1, ROWS_MAX), TIMEOUT)
        cluster.proposer.kill()
        cluster.postgres.crash()
        shutil.rmtree(cluster.postgres.data_dir)
        lost = choose.choice(cluster.safekeepers)
        lost.kill()
        shutil.rmtree(lost.data_dir)
        for number in range(1 + seed % 2):
            folder = tmp_path / f"restored-{number}"
            restore_and_go_on(cluster, archive, folder, ledger, choose.randint(1, ROWS_MAX))


def restore_and_go_on(
    cluster: QuorumCluster, archive: Path, folder: Path, ledger: Ledger, rows: int
) -> None:
    """No row is lost, and `rows` more are committed; at the end the new primary is killed."""
    with (
        restored_at(cluster.postgres.binaries, folder) as restored,
        RestoreProcess(restored, archive, cluster) as restoring,
    ):
        restoring.wait_streaming(TIMEOUT)
        ledger.redirect(restored.dsn())
        ledger.wait_for_progress(20, TIMEOUT)
        ledger.pause()
        ledger.wait_idle(TIMEOUT)
        report = ledger.verify()
        assert report.ok, report
        assert report.found == report.acknowledged
        ledger.resume()
        ledger.wait_for_progress(rows, TIMEOUT)
        restoring.kill()
    shutil.rmtree(folder)


def test_everything_is_lost(quorum_cluster: Callable[..., QuorumCluster], tmp_path: Path) -> None:
    """Only the archive is left. It has everything older than its interval, and reports its exact
    end before and after."""
    archive = tmp_path / "archive"
    cluster = quorum_cluster(wal_seg_size=SEGMENT_BYTES, safekeeper_arguments=archiving(archive))
    with (
        Ledger(cluster.postgres.dsn(), clients=4) as ledger,
        restored_at(cluster.postgres.binaries, tmp_path / "restored") as restored,
    ):
        ledger.wait_for_progress(100, TIMEOUT)
        take_backup(archive, cluster.postgres)
        old_lsn, old_at = cluster.commit_lsn(), time.monotonic()
        while time.monotonic() < old_at + PARTIAL_INTERVAL_SECONDS + SLACK_SECONDS:
            ledger.wait_for_progress(1, TIMEOUT)
        cluster.kill_all()
        for path in (cluster.postgres.data_dir, *(s.data_dir for s in cluster.safekeepers)):
            shutil.rmtree(path)
        done = restored.restore(archive, "--start", *restored.starting)
        assert done.returncode == 0, done.stderr
        end = found(r"the log ends at (.*), last commit (.*)", done.stdout)
        restored_to = found(r"restored up to (.*), last transaction (.*)", done.stdout)
        assert restored_to == end
        assert Lsn.parse(end[0]) >= old_lsn
        report = ledger.verify(restored.dsn())
        assert report.damaged == report.foreign == [], report
        assert report.found > 100
        restored.execute("CREATE TABLE a_copy_waits_for_nobody (a int)")


def found(pattern: str, text: str) -> tuple[str, ...]:
    match = re.search(pattern, text)
    assert match is not None, text
    return match.groups()
