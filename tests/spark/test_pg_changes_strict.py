"""Rows that could not be decoded, in batches, streams and lakes: a dead letter, or an error, which
`test_shown_by_spark.py` shows in batches and streams.

The WAL of `server_wal` begins before its first list of open transactions, which a note reports.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from quorum_wal.spark.changes.catalog import load_catalog
from quorum_wal.spark.changes.change_reader import ChangeOptions
from quorum_wal.spark.jobs.ingest import Ingest
from quorum_wal.spark.jobs.ingested_changes import IngestedChanges
from quorum_wal.spark.reported_errors import spark_errors
from quorum_wal.spark.sources.input_options import parse_options
from quorum_wal.spark.sources.pg_changes_options import parse_undecoded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MIB = 1 << 20
ORDER = ["commit_lsn", "lsn", "seq"]


def batch(session: SparkSession, wal: Path, catalog: Path, **options: Any) -> DataFrame:
    given = {"path": str(wal), "catalog": str(catalog), "partition_bytes": "3MB", **options}
    return session.read.format("pg_changes").options(**given).load()


def letters(folder: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for path in sorted(folder.glob("*.json"))
        for line in path.read_text().splitlines()
    ]


def test_a_dead_letter_of_a_batch(
    session: SparkSession, server_wal: Path, server_catalog: Path, tmp_path: Path
) -> None:
    """Its rows and those of the batch are all rows; a second run writes the same objects."""
    every = batch(session, server_wal, server_catalog, on_unknown="pass").toArrow()
    folder = tmp_path / "letters"
    options = {"on_unknown": "dead_letter", "dead_letter_path": str(folder)}
    found = batch(session, server_wal, server_catalog, **options).toArrow()
    assert set(found["detail"].to_pylist()) == {None}
    names = sorted(path.name for path in folder.iterdir())
    assert found.num_rows + len(letters(folder)) == every.num_rows
    assert batch(session, server_wal, server_catalog, **options).count() == found.num_rows
    assert sorted(path.name for path in folder.iterdir()) == names
    frame = session.read.json(str(folder))
    assert {row.operation for row in frame.collect()} == {"unknown"}


def test_a_stream_with_a_dead_letter(
    session: SparkSession, server_wal: Path, server_catalog: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "letters"
    reader = session.readStream.format("pg_changes").options(
        path=str(server_wal), catalog=str(server_catalog), max_bytes_per_batch="3MB",
        on_unknown="dead_letter", dead_letter_path=str(folder),
    )  # fmt: skip
    writer = reader.load().writeStream.format("parquet").option("path", str(tmp_path / "lake"))
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination(60)
    assert query.exception() is None
    tables = [pq.read_table(path) for path in (tmp_path / "lake").glob("*.parquet")]
    details = {detail for table in tables for detail in table["detail"].to_pylist()}
    assert details == {None}
    assert "the WAL begins at" in letters(folder)[0]["detail"]


def test_a_lake(
    session: SparkSession, server_wal: Path, server_catalog: Path, tmp_path: Path
) -> None:
    with pytest.raises(spark_errors(), match="UndecodedChange: WAL at 0/"):
        list(ingest(session, server_wal, server_catalog, tmp_path / "failed").run_once())
    folder = tmp_path / "letters"
    options = {"on_unknown": "dead_letter", "dead_letter_path": str(folder)}
    list(ingest(session, server_wal, server_catalog, tmp_path / "lake", **options).run_once())
    names = [path.name for path in folder.iterdir()]
    assert len(names) == len(letters(folder)) > 0
    tables = [pq.read_table(path) for path in (tmp_path / "lake").glob("date=*/*/*.parquet")]
    details = {detail for table in tables for detail in table["detail"].to_pylist()}
    assert details == {None}
    assert all("seq" in table.column_names for table in tables)


def ingest(session: SparkSession, wal: Path, catalog: Path, lake: Path, **options: str) -> Ingest:
    changes = ChangeOptions(load_catalog(str(catalog)), undecoded=parse_undecoded(options))
    parsed = parse_options({"path": str(wal)})
    rows = IngestedChanges(parsed, 3 * MIB, MIB, changes=changes)
    return Ingest(session, rows, str(lake), {})
