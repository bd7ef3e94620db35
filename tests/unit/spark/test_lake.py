"""The lake: batches are planned once and committed once, rows are in the folder of their hour, and
small files are merged although a driver is killed at any step."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quorum_wal.objectstore.local import LocalStore
from quorum_wal.objectstore.store import ObjectStore
from quorum_wal.spark.errors import LakeError
from quorum_wal.spark.jobs import compaction
from quorum_wal.spark.jobs.compaction import compact, finish_compactions, plan_compactions
from quorum_wal.spark.jobs.ingest import cut
from quorum_wal.spark.jobs.lake import Batch, Job, Lake, LakeFile
from quorum_wal.spark.jobs.lake_writer import write_range

SCHEMA = pa.schema([("lsn", pa.int64()), ("xact_time", pa.timestamp("us", tz="UTC"))])
NO_HOUR = "__HIVE_DEFAULT_PARTITION__"
JOB = Job("wal", 7, ("lsn",), 0x1000000)
BATCH = Batch(0x1000000, 0x3000000, ((0x1000000, 0x2000000), (0x2000000, 0x3000000)))


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return LocalStore(str(tmp_path))


def at(hour: int, minute: int) -> datetime:
    return datetime(2026, 11, 21, hour, minute, tzinfo=UTC)


def rows(times: Sequence[datetime | None], first_lsn: int = 0) -> pa.RecordBatch:
    lsns = list(range(first_lsn, first_lsn + len(times)))
    return pa.record_batch({"lsn": lsns, "xact_time": list(times)}, schema=SCHEMA)


def lsns_by_folder(path: Path) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for file in sorted(path.glob("date=*/hour=*/*.parquet")):
        folder = f"{file.parent.parent.name[5:]} {file.parent.name[5:]}"
        found.setdefault(folder, []).extend(pq.ParquetFile(file).read()["lsn"].to_pylist())
    return found


def test_a_record_is_in_the_hour_of_the_transaction_that_ends_next(
    store: ObjectStore, tmp_path: Path
) -> None:
    batches = [rows([None, at(10, 59), None]), rows([None, at(11, 0), None], first_lsn=3)]
    write_range(store, batches, SCHEMA, (0, 6), "xact_time")
    assert lsns_by_folder(tmp_path) == {"2026-11-21 10": [0, 1], "2026-11-21 11": [2, 3, 4, 5]}


def test_files_do_not_depend_on_the_batches(tmp_path: Path) -> None:
    times = [None, at(10, 59), None, None, at(11, 0), None, None]
    for name, size in (("a", 1), ("b", 3), ("c", 7)):
        batches = [rows(times[i : i + size], i) for i in range(0, len(times), size)]
        write_range(LocalStore(str(tmp_path / name)), batches, SCHEMA, (0, 7), "xact_time")
    files = {
        name: {
            str(path.relative_to(tmp_path / name)): pq.ParquetFile(path).read().to_pydict()
            for path in (tmp_path / name).rglob("*.parquet")
        }
        for name in ("a", "b", "c")
    }
    assert files["a"] == files["b"] == files["c"]
    assert len(files["a"]) == 2


def test_rows_without_any_time_have_a_folder_too(store: ObjectStore, tmp_path: Path) -> None:
    write_range(store, [rows([None, None])], SCHEMA, (0, 2), "xact_time", frozenset({"xact_time"}))
    assert lsns_by_folder(tmp_path) == {f"{NO_HOUR} {NO_HOUR}": [0, 1]}
    (file,) = tmp_path.rglob("*.parquet")
    assert pq.ParquetFile(file).schema_arrow.names == ["lsn"]


def test_two_drivers_execute_the_same_plan(store: ObjectStore) -> None:
    lake, other = Lake(store), Lake(store)
    assert lake.planned(BATCH.start_lsn) is None
    assert lake.plan(BATCH) == BATCH
    later = Batch(BATCH.start_lsn, 0x5000000, ((BATCH.start_lsn, 0x5000000),))
    assert other.plan(later) == BATCH == other.planned(BATCH.start_lsn)


def test_a_driver_continues_at_the_newest_commit(store: ObjectStore) -> None:
    lake = Lake(store)
    assert lake.last_commit() is None
    file = LakeFile("date=2026-11-21/hour=10/x.parquet", 3, 100)
    first = lake.commit(BATCH, [file])
    second = lake.commit(Batch(BATCH.end_lsn, 0x3000100, ((BATCH.end_lsn, 0x3000100),)), [])
    assert lake.last_commit() == second
    assert lake.commits() == [first, second]


def test_a_lake_takes_one_job(store: ObjectStore) -> None:
    lake = Lake(store)
    assert lake.begin(JOB) == JOB
    assert lake.begin(Job("wal", 7, ("lsn",), 0x9000000)) == JOB
    for other in (Job("changes", 7, ("lsn",), 0), Job("wal", 8, ("lsn",), 0)):
        with pytest.raises(LakeError, match="another job"):
            lake.begin(other)


def test_a_damaged_log_is_reported(store: ObjectStore) -> None:
    store.put("_ingest/job.json", b'{"rows": 1}')
    with pytest.raises(LakeError, match="damaged"):
        Lake(store).begin(JOB)


def test_ranges_end_at_segments() -> None:
    assert cut(5, 25, 10) == ((5, 10), (10, 20), (20, 25))
    assert cut(10, 20, 10) == ((10, 20),)
    assert cut(11, 12, 10) == ((11, 12),)
    with pytest.raises(LakeError):
        cut(7, 7, 10)


# ---- compaction


@pytest.fixture
def small_files(store: ObjectStore) -> ObjectStore:
    for n in range(6):
        hour = 10 if n < 4 else 11
        write_range(store, [rows([at(hour, n)], n)], SCHEMA, (n * 16, n * 16 + 16), "xact_time")
    return store


def test_small_files_of_an_hour_become_one(small_files: ObjectStore, tmp_path: Path) -> None:
    before = lsns_by_folder(tmp_path)
    (plan,) = plan_compactions(small_files)  # the newest hour may still grow
    compact(small_files, plan)
    assert lsns_by_folder(tmp_path) == before
    names = sorted(path.name for path in tmp_path.glob("date=*/hour=10/*"))
    assert names == ["0000000000000000-0000000000000040.parquet"]
    assert len(list(tmp_path.glob("date=*/hour=11/*"))) == 2
    assert not list(tmp_path.glob("_ingest/compactions/*"))
    assert len(plan_compactions(small_files, open_hours=True)) == 1


def test_large_files_are_not_merged(
    small_files: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "SMALL_BYTES", 1)
    assert plan_compactions(small_files, open_hours=True) == []


@pytest.mark.parametrize("calls", range(7))
def test_the_next_driver_completes_a_killed_compaction(
    small_files: ObjectStore, tmp_path: Path, calls: int
) -> None:
    """Killed at its first, second, ... call of the store: no row is missing at any moment, and none
    is duplicated at the end."""
    before = lsns_by_folder(tmp_path)
    (plan,) = plan_compactions(small_files)
    with pytest.raises(Killed):
        compact(MortalStore(small_files, calls), plan)
    for folder, lsns in lsns_by_folder(tmp_path).items():
        assert set(lsns) == set(before[folder])
    finish_compactions(small_files)
    for plan in plan_compactions(small_files):
        compact(small_files, plan)
    assert lsns_by_folder(tmp_path) == before


class Killed(Exception):
    """Simulates the end of the process."""


class MortalStore:
    """Allows a number of changes and then fails."""

    def __init__(self, store: ObjectStore, calls: int) -> None:
        self._store = store
        self._calls = calls
        self.url = store.url

    def put(self, key: str, data: bytes) -> None:
        self._live()
        self._store.put(key, data)

    def delete(self, key: str) -> None:
        self._live()
        self._store.delete(key)

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def _live(self) -> None:
        if self._calls == 0:
            raise Killed
        self._calls -= 1
