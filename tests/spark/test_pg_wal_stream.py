"""`spark.readStream.format("pg_wal")`: limits, AvailableNow, restarts and kills, without loss or
repeat."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sink_rows import written
from wal_rows import rows_of, segment

from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pgwal.lsn import Lsn, format_lsn
from quorum_wal.spark.inputs.folder_input import FolderInput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("class_archive")

MIB = 1 << 20
LONG_RECORD = 2_500_000
KILLED_DRIVER = Path(__file__).parent / "streaming_driver.py"


@pytest.fixture(scope="module")
def expected(server_wal: Path) -> list[int]:
    found: list[int] = rows_of(FolderInput(str(server_wal)))["lsn"].to_pylist()
    return found


def run_available(
    session: SparkSession, source: Path, work: Path, **options: Any
) -> list[dict[str, Any]]:
    """One AvailableNow run into `work`; the progress of its batches."""
    stream = session.readStream.format("pg_wal").options(path=source, columns="lsn,rmgr", **options)
    query = (
        stream.load()
        .writeStream.format("parquet")
        .option("path", str(work / "lake"))
        .option("checkpointLocation", str(work / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300)
    return [json.loads(progress.json) for progress in query.recentProgress]


def test_limited_batches_and_a_restart_where_the_folder_has_grown(
    session: SparkSession, wal_folder: Path, tmp_path: Path, expected: list[int]
) -> None:
    last = segment(wal_folder, 5)
    later = [path for path in wal_folder.iterdir() if path.is_file() and path.name >= last.name]
    away = tmp_path / "away"
    away.mkdir()
    for path in later:
        shutil.move(path, away)
    progress = run_available(session, wal_folder, tmp_path, max_bytes_per_batch="3MB")
    ends = [Lsn.parse(p["sources"][0]["endOffset"]["lsn"]) for p in progress if p["numInputRows"]]
    starts = [FolderInput(str(wal_folder)).extent()[0], *ends]
    assert len(ends) > 1
    assert max(end - start for start, end in pairwise(starts)) < 3 * MIB + LONG_RECORD + MIB
    first = written(tmp_path / "lake")
    assert first == expected[: len(first)]
    assert 0 < len(first) < len(expected)

    for path in away.iterdir():
        shutil.move(path, wal_folder)
    progress = run_available(session, wal_folder, tmp_path)
    assert progress[-1]["sources"][0]["endOffset"] == {
        "lsn": format_lsn(FolderInput(str(wal_folder)).newest_lsn())
    }
    assert written(tmp_path / "lake") == expected


def test_a_driver_that_is_killed_loses_and_repeats_nothing(
    session: SparkSession, wal_folder: Path, tmp_path: Path, expected: list[int]
) -> None:
    """Kill -9 in the middle of many small batches; another driver continues."""
    command = [sys.executable, str(KILLED_DRIVER), str(wal_folder), str(tmp_path)]
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
    offsets = tmp_path / "checkpoint" / "offsets"
    with subprocess.Popen(command, env=environment, start_new_session=True) as driver:
        try:
            wait_until(lambda: batches(offsets) > 2, 180, "some batches")
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
    assert 0 < len(written(tmp_path / "lake")) < len(expected)
    run_available(session, wal_folder, tmp_path)
    assert written(tmp_path / "lake") == expected


def batches(log: Path) -> int:
    """How many a log of the checkpoint has."""
    return sum(path.name.isdigit() for path in log.iterdir()) if log.exists() else 0
