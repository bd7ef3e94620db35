"""Every consumer of changes fails on what could not be decoded, or stores it apart: none of them
reads past the policy. Its rows are those of the decoder, and a repetition stores nothing new.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from changed_logs import MIB, ChangedLog, LogOf
from decoding import Row, read, without_rows
from pyspark.sql.streaming.datasource import ReadMaxBytes

from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.spark.errors import UndecodedChange
from quorum_wal.spark.jobs.ingested_changes import IngestedChanges
from quorum_wal.spark.sources.change_batch import ChangeBatchReader
from quorum_wal.spark.sources.change_stream import ChangeStreamReader
from quorum_wal.spark.sources.input_options import parse_options
from quorum_wal.spark.sources.pg_changes_options import parse_change_options

Consumer = Callable[[dict[str, str], dict[str, str]], Iterator[Row]]


def from_batch(source: dict[str, str], changes: dict[str, str]) -> Iterator[Row]:
    parsed = parse_options({**source, "partition_bytes": "1MB"})
    reader = ChangeBatchReader(parsed, parse_change_options(changes))
    for task in reader.partitions():
        for batch in reader.read(task):
            yield from batch.to_pylist()


def from_stream(source: dict[str, str], changes: dict[str, str]) -> Iterator[Row]:
    options = parse_options(source, is_stream=True)
    reader = ChangeStreamReader(options, parse_change_options(changes))
    lsn = {"lsn": source["start_lsn"]}
    while (end := reader.latestOffset(lsn, ReadMaxBytes(2 * MIB))) != lsn:
        for task in reader.partitions(lsn, end):
            for batch in reader.read(task):
                yield from batch.to_pylist()
        lsn = end


def from_ingest(source: dict[str, str], changes: dict[str, str]) -> Iterator[Row]:
    options = parse_options(source)
    rows = IngestedChanges(options, 2 * MIB, MIB, changes=parse_change_options(changes))
    lsn = rows.first_lsn()
    while (batch := rows.plan(lsn)) is not None:
        rows = rows.for_batch(batch)
        for begin_lsn, end_lsn in batch.ranges:
            for found in rows.read(batch, begin_lsn, end_lsn):
                yield from found.to_pylist()
        lsn = batch.end_lsn


@pytest.fixture
def given(changed_log: LogOf, tmp_path: Path) -> tuple[ChangedLog, dict[str, str], dict[str, str]]:
    """A log, and the options of its source, with the catalog of before the last changes, which are
    not followed."""
    log = changed_log(16, "logical")
    (tmp_path / "catalog.json").write_bytes(without_rows(log).parts[0].to_json())
    source = {"path": log.wal_input.path, "start_lsn": format_lsn(log.begin_lsn)}
    return log, source, {"catalog": str(tmp_path / "catalog.json")}


@pytest.mark.parametrize("consumer", [from_batch, from_stream, from_ingest])
def test_a_consumer(
    given: tuple[ChangedLog, dict[str, str], dict[str, str]], tmp_path: Path, consumer: Consumer
) -> None:
    log, source, catalog = given
    every = read(log, log.begin_lsn, log.end_lsn, without_rows(log).parts[0])
    undecoded = [row for row in every if row["operation"] == "unknown" or row["detail"]]
    assert 3 < len(undecoded) < len(every)
    before = []
    with pytest.raises(UndecodedChange, match=f"at {format_lsn(undecoded[0]['lsn'])}"):
        before.extend(consumer(source, catalog))
    assert before == every[: len(before)]
    assert list(consumer(source, {**catalog, "on_unknown": "pass"})) == every
    folder = tmp_path / "letters"
    apart = {**catalog, "on_unknown": "dead_letter", "dead_letter_path": str(folder)}
    names: list[list[str]] = []
    for _ in range(2):
        found = list(consumer(source, apart))
        assert found == [row for row in every if row not in undecoded]
        names.append(sorted(path.name for path in folder.iterdir()))
    assert names[0] == names[1]
    assert places(letters(folder)) == places(undecoded)


@pytest.mark.parametrize("consumer", [from_batch, from_stream, from_ingest])
def test_a_consumer_follows_the_catalogs(
    given: tuple[ChangedLog, dict[str, str], dict[str, str]], tmp_path: Path, consumer: Consumer
) -> None:
    log, source, _ = given
    path = tmp_path / "followed.json"
    path.write_bytes(log.catalogs[0].to_json())
    every = read(log, log.begin_lsn, log.end_lsn, log.catalogs[0])
    assert {"schema", "truncate", "insert"} <= {row["operation"] for row in every}
    assert list(consumer(source, {"catalog": str(path), "on_unknown": "pass"})) == every


def letters(folder: Path) -> list[dict[str, Any]]:
    lines = [line for path in folder.iterdir() for line in path.read_text().splitlines()]
    return [json.loads(line) for line in lines]


def places(rows: list[dict[str, Any]]) -> list[tuple[int, int, int, str]]:
    return sorted((row["commit_lsn"], row["lsn"], row["seq"], row["detail"]) for row in rows)
