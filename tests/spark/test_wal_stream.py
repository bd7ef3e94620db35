"""The stream reader as Spark calls it: offsets, limits, gaps, targets; without Spark."""

from __future__ import annotations

import pickle
import time
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes
from wal_rows import flip, lsns, rows_of, segment

from quorum_wal.pgwal.lsn import Lsn, format_lsn
from quorum_wal.spark.errors import OptionError, WalInputError
from quorum_wal.spark.inputs.folder_input import FolderInput
from quorum_wal.spark.sources import wal_stream
from quorum_wal.spark.sources.input_options import parse_options
from quorum_wal.spark.sources.wal_stream import WalStreamReader

MIB = 1 << 20
ALL = ReadAllAvailable()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal_stream, "GAP_SECONDS", 0.05)


@pytest.fixture(scope="module")
def whole(server_wal: Path) -> pa.Table:
    return rows_of(FolderInput(str(server_wal)), columns=("lsn", "operation"))


def reader_of(folder: Path, **options: str) -> WalStreamReader:
    given = {"path": str(folder), "columns": "lsn,operation", **options}
    return WalStreamReader(parse_options(given, is_stream=True))


def newest(reader: WalStreamReader) -> dict[str, str]:
    """The reported offset, without the lag, which is not part of an offset."""
    return {"lsn": reader.reportLatestOffset()["lsn"]}


def read(reader: WalStreamReader, start: dict[str, str], end: dict[str, str]) -> list[pa.Table]:
    """As executors do, with a copy."""
    copy = pickle.loads(pickle.dumps(reader))
    return [
        pa.Table.from_batches([batch])
        for task in pickle.loads(pickle.dumps(reader.partitions(start, end)))
        for batch in copy.read(task)
    ]


def all_batches(reader: WalStreamReader, limit: ReadLimit) -> tuple[list[dict[str, str]], pa.Table]:
    """From the beginning until there is nothing new."""
    offsets = [reader.initialOffset()]
    while (end := reader.latestOffset(offsets[-1], limit)) != offsets[-1]:
        offsets.append(end)
    tables = [table for cut in pairwise(offsets) for table in read(reader, *cut)]
    return offsets, pa.concat_tables(tables)


@pytest.mark.parametrize("bytes_max", [None, 100_000, MIB, 3 * MIB])
def test_batches_join_without_gap_or_repeat(
    server_wal: Path, whole: pa.Table, bytes_max: int | None
) -> None:
    options = {} if bytes_max is None else {"max_bytes_per_batch": f"{bytes_max} B"}
    reader = reader_of(server_wal, **options)
    limit = reader.getDefaultReadLimit()
    assert limit == (ALL if bytes_max is None else ReadMaxBytes(bytes_max))
    offsets, rows = all_batches(reader, limit)
    assert rows.equals(whole)
    assert offsets[-1] == newest(reader)
    assert (len(offsets) > 2) == (bytes_max is not None)
    assert reader.reportLatestOffset()["lag_bytes"] == "0"


def test_the_lag_of_a_batch(server_wal: Path) -> None:
    """In bytes of WAL after the end of the batch that was planned last."""
    reader = reader_of(server_wal)
    end = reader.latestOffset(reader.initialOffset(), ReadMaxBytes(MIB))
    reported = reader.reportLatestOffset()
    lag_bytes = Lsn.parse(reported["lsn"]) - Lsn.parse(end["lsn"])
    assert int(reported["lag_bytes"]) == lag_bytes > MIB


def test_a_stream_may_begin_anywhere(server_wal: Path, whole: pa.Table) -> None:
    starts = lsns(whole)
    inside = format_lsn(starts[50] + 1)
    reader = reader_of(server_wal, start_lsn=inside)
    assert reader.initialOffset() == {"lsn": format_lsn(starts[51])}
    assert lsns(all_batches(reader, ALL)[1]) == starts[51:]
    latest = reader_of(server_wal, start_lsn="latest").initialOffset()
    assert latest == newest(reader)


def test_an_idle_stream_asks_seldom(server_wal: Path) -> None:
    reader = reader_of(server_wal)
    end = newest(reader)
    began = time.monotonic()
    for _ in range(3):
        assert reader.latestOffset(end, ALL) == end
    assert time.monotonic() - began >= 2 * FolderInput.poll_seconds


def test_a_gap_is_waited_for_and_then_read(
    server_wal: Path, wal_folder: Path, whole: pa.Table
) -> None:
    away = segment(wal_folder, 1)
    begin = int(away.name[16:], 16) * MIB
    hidden = away.rename(away.with_suffix(".hidden"))
    reader = reader_of(wal_folder)
    first = reader.initialOffset()
    before = reader.latestOffset(first, ALL)
    assert Lsn.parse(before["lsn"]) in rows_of(FolderInput(str(server_wal)))["end_lsn"].to_pylist()
    assert begin - 10_000 < Lsn.parse(before["lsn"]) <= begin
    assert reader.latestOffset(before, ALL) == before
    hidden.rename(away)
    behind = reader.latestOffset(before, ALL)
    assert behind == newest(reader)
    tables = [*read(reader, first, before), *read(reader, before, behind)]
    assert pa.concat_tables(tables).equals(whole)


def test_a_gap_that_stays_is_said_or_skipped(wal_folder: Path, whole: pa.Table) -> None:
    missing = segment(wal_folder, 5)
    begin = int(missing.name[16:], 16) * MIB
    missing.unlink()
    for on_damage in ("fail", "skip"):
        reader = reader_of(wal_folder, on_damage=on_damage)
        reader.prepareForTriggerAvailableNow()
        at_gap = {"lsn": format_lsn(begin)}
        end = reader.latestOffset(at_gap, ALL)
        assert end == newest(reader)
        if on_damage == "fail":
            with pytest.raises(WalInputError, match="no WAL of segment") as caught:
                read(reader, at_gap, end)
            assert "on_damage=skip" in str(caught.value.__notes__)
            continue
        rows = pa.concat_tables(read(reader, at_gap, end)).to_pylist()
        assert rows[0] == {"lsn": begin, "operation": "GAP"}
        assert [row["lsn"] for row in rows[1:]] == [
            lsn for lsn in lsns(whole) if lsn >= rows[1]["lsn"]
        ]


def test_damage_is_passed_over_with_a_limit(wal_folder: Path, whole: pa.Table) -> None:
    flip(segment(wal_folder, 1), 100_000)
    reader = reader_of(wal_folder, on_damage="skip", max_bytes_per_batch="200kB")
    rows = all_batches(reader, reader.getDefaultReadLimit())[1].to_pylist()
    assert "GAP" in {row["operation"] for row in rows}
    assert rows[-1]["lsn"] == lsns(whole)[-1]
    failing = reader_of(wal_folder, max_bytes_per_batch="200kB")
    with pytest.raises(WalInputError, match="incorrect resource manager data checksum"):
        all_batches(failing, failing.getDefaultReadLimit())


def test_available_now_ends_where_it_began(wal_folder: Path) -> None:
    last = segment(wal_folder, 5)
    behind = [path for path in wal_folder.iterdir() if path.is_file() and path.name >= last.name]
    hidden = [path.rename(path.with_suffix(".hidden")) for path in behind]
    reader = reader_of(wal_folder)
    reader.prepareForTriggerAvailableNow()
    target = newest(reader)
    for path in hidden:
        path.rename(path.with_suffix(""))
    offsets = [reader.initialOffset()]
    while (end := reader.latestOffset(offsets[-1], ReadMaxBytes(2 * MIB))) != offsets[-1]:
        offsets.append(end)
    assert offsets[-1] == target
    assert Lsn.parse(target["lsn"]) < FolderInput(str(wal_folder)).newest_lsn()


def test_a_strangers_checkpoint_is_refused(server_wal: Path) -> None:
    with pytest.raises(OptionError, match="offset of another source"):
        reader_of(server_wal).latestOffset({"offset": "5"}, ALL)
