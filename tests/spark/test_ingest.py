"""The lake has each record exactly once, whatever was killed and however often."""

from __future__ import annotations

import random
import secrets
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from wal_rows import flip, rows_of, segment

from quorum_wal.pg_fixtures.processes import SK, run_sk
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.spark.errors import LakeError
from quorum_wal.spark.inputs.folder_input import FolderInput
from quorum_wal.spark.jobs.ingest import Ingest
from quorum_wal.spark.jobs.ingested_wal import IngestedWal
from quorum_wal.spark.records.wal_schema import DEFAULT_COLUMNS
from quorum_wal.spark.sources.input_options import parse_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("class_archive")

MIB = 1 << 20
TIMEOUT = 600.0


def rows_in(folder: Path, **options: str) -> IngestedWal:
    parsed = parse_options({"path": str(folder), **options})
    return IngestedWal(parsed, batch_bytes=3 * MIB, range_bytes=MIB)


def job(session: SparkSession, folder: Path, lake: Path, **options: str) -> Ingest:
    return Ingest(session, rows_in(folder, **options), str(lake), {})


def lake_rows(lake: Path) -> pa.Table:
    """All rows of all files, by LSN."""
    files = sorted(lake.glob("date=*/hour=*/*.parquet"))
    table = pa.concat_tables(pq.ParquetFile(file).read() for file in files)
    return table.sort_by("lsn").combine_chunks()


def test_the_lake_has_every_record_once(
    session: SparkSession, server_wal: Path, tmp_path: Path
) -> None:
    ingest = job(session, server_wal, tmp_path / "lake")
    committed = list(ingest.run_once())
    assert len(committed) > 1
    assert sum(file.rows for batch in committed for file in batch.files) > 0
    expected = rows_of(FolderInput(str(server_wal)), columns=DEFAULT_COLUMNS).combine_chunks()
    assert lake_rows(tmp_path / "lake").equals(expected)
    assert ingest.run_batch() is None
    frame = session.read.parquet(str(tmp_path / "lake"))
    assert {"date", "hour"} <= set(frame.columns)
    assert frame.count() == len(expected)


def test_it_goes_on_where_it_ended(session: SparkSession, wal_folder: Path, tmp_path: Path) -> None:
    """With more WAL than before, including the rest of a record that was cut."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    for path in sorted(path for path in wal_folder.iterdir() if len(path.name) == 24)[3:]:
        shutil.move(path, hidden)
    assert list(job(session, wal_folder, tmp_path / "lake").run_once())
    for path in hidden.iterdir():
        shutil.move(path, wal_folder)
    assert list(job(session, wal_folder, tmp_path / "lake").run_once())
    expected = rows_of(FolderInput(str(wal_folder)), columns=DEFAULT_COLUMNS).combine_chunks()
    assert lake_rows(tmp_path / "lake").equals(expected)


def test_an_unfinished_batch_is_written_as_it_was_planned(
    session: SparkSession, server_wal: Path, tmp_path: Path
) -> None:
    """Also by a driver that would plan another one."""
    ingest = job(session, server_wal, tmp_path / "lake")
    start_lsn = ingest.begin().start_lsn
    planned = rows_in(server_wal).plan(start_lsn)
    assert planned is not None
    ingest.lake.plan(planned)
    other = Ingest(
        session,
        IngestedWal(parse_options({"path": str(server_wal)}), 64 * MIB, 2 * MIB),
        str(tmp_path / "lake"),
        {},
    )
    first = other.run_batch()
    assert first is not None
    assert first.batch == planned
    assert list(other.run_once())
    assert pc.count_distinct(lake_rows(tmp_path / "lake")["lsn"]).as_py() == len(
        lake_rows(tmp_path / "lake")
    )


def test_columns_that_nobody_asked_for_are_not_in_the_lake(
    session: SparkSession, server_wal: Path, tmp_path: Path
) -> None:
    ingest = job(session, server_wal, tmp_path / "lake", columns="lsn,rmgr", rmgr="Heap")
    assert list(ingest.run_once())
    table = lake_rows(tmp_path / "lake")
    assert table.column_names == ["lsn", "rmgr"]
    assert set(table["rmgr"].to_pylist()) == {"Heap"}
    with pytest.raises(LakeError, match="another job"):
        job(session, server_wal, tmp_path / "lake").run_batch()


def test_it_ends_before_end_lsn(session: SparkSession, server_wal: Path, tmp_path: Path) -> None:
    """Also if a segment begins inside a record, which is read as a whole."""
    whole = rows_of(FolderInput(str(server_wal)), columns=DEFAULT_COLUMNS)
    crossing = [
        end // MIB * MIB
        for lsn, end in zip(whole["lsn"].to_pylist(), whole["end_lsn"].to_pylist(), strict=True)
        if lsn // MIB < end // MIB and end % MIB
    ]
    end_lsn = crossing[0]
    list(job(session, server_wal, tmp_path / "lake", end_lsn=format_lsn(end_lsn)).run_once())
    expected = whole.filter(pc.less(whole["lsn"], end_lsn)).combine_chunks()
    assert lake_rows(tmp_path / "lake").equals(expected)


def test_kill_9_of_the_driver_at_a_random_moment_and_damage(
    session: SparkSession, wal_folder: Path, tmp_path: Path
) -> None:
    """A second command ends where the WAL is damaged, in one sentence. With sound WAL, another
    driver finishes the lake."""
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    lake = tmp_path / "lake"
    arguments = (
        "spark", "ingest", str(lake), "--path", str(wal_folder), "--once",
        "--batch-bytes-max", str(MIB), "--master", "local[2]",
    )  # fmt: skip
    process = subprocess.Popen(
        [*SK, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    if process.stdout.readline():  # a batch is committed, and the next one under way
        # A random moment is what this is about.
        time.sleep(random.Random(seed).uniform(0, 0.3))
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()

    damaged = segment(wal_folder, -2)
    sound = damaged.read_bytes()
    flip(damaged, 500_000)
    ended = run_sk(*arguments, timeout=TIMEOUT)
    assert ended.returncode == 1
    assert "checksum in record at" in ended.stderr
    assert str(wal_folder) in ended.stderr
    assert "Traceback" not in ended.stderr

    damaged.write_bytes(sound)
    assert list(job(session, wal_folder, lake).run_once())
    expected = rows_of(FolderInput(str(wal_folder)), columns=DEFAULT_COLUMNS).combine_chunks()
    assert lake_rows(lake).equals(expected)
