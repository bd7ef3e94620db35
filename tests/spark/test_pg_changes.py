"""`format("pg_changes")`: in batches and streams, the same changes as from the decoder at once."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException

from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pgwal.lsn import Lsn, format_lsn
from quorum_wal.spark.changes.catalog import load_catalog
from quorum_wal.spark.changes.catalog_snapshot import take_catalog
from quorum_wal.spark.changes.change_reader import ChangeOptions, read_changes
from quorum_wal.spark.inputs.folder_input import FolderInput
from quorum_wal.spark.inputs.wal_reader import WalRange
from quorum_wal.spark.sources.input_options import parse_options
from quorum_wal.spark.sources.pg_changes_options import parse_change_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MIB = 1 << 20
ORDER = ["commit_lsn", "lsn", "seq"]


@dataclass(frozen=True, slots=True)
class ChangedWal:
    """`begin_lsn` is after the transactions whose beginning the WAL lacks."""

    folder: Path
    catalog: Path
    begin_lsn: Lsn


@pytest.fixture(scope="module")
def changed_wal(
    wal_server: Callable[..., Postgres], tmp_path_factory: pytest.TempPathFactory
) -> ChangedWal:
    """Some segments, and a transaction that is open during most of them."""
    folder = tmp_path_factory.mktemp("changed")
    with wal_server(folder / "data", wal_level="logical") as postgres:
        begin_lsn = postgres.flush_lsn()
        _write_changes(postgres)
        (folder / "catalog.json").write_bytes(take_catalog(postgres.dsn()).to_json())
        postgres.stop()
        shutil.copytree(postgres.pg_wal, folder / "pg_wal")
    return ChangedWal(folder / "pg_wal", folder / "catalog.json", begin_lsn)


def _write_changes(postgres: Postgres) -> None:
    postgres.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, name text, paid numeric(8, 2), at timestamptz)"
    )
    postgres.execute("CREATE TABLE notes (id int)")
    with postgres.connect(autocommit=False) as slow:
        slow.execute("INSERT INTO notes VALUES (1)")
        for begin in range(0, 24_000, 6000):
            postgres.execute(
                "INSERT INTO orders SELECT g, 'order ' || g, g / 8.0, '2024-01-01T00:00Z'"
                " FROM generate_series(%s::int, %s::int) g",
                (begin, begin + 5999),
            )
            slow.execute("INSERT INTO notes VALUES (2)")
        postgres.execute("UPDATE orders SET paid = 1 WHERE id % 10 = 0")
        slow.commit()
    postgres.execute("DELETE FROM orders WHERE id < 10")


@pytest.fixture(scope="module")
def expected(changed_wal: ChangedWal) -> pa.Table:
    wal_input = FolderInput(str(changed_wal.folder))
    end_lsn = wal_input.newest_lsn()
    options = ChangeOptions(load_catalog(str(changed_wal.catalog)))
    batches = read_changes(wal_input, WalRange(changed_wal.begin_lsn, end_lsn, end_lsn), options)
    return pa.Table.from_batches(batches)


def changes(session: SparkSession, wal: ChangedWal, **options: Any) -> DataFrame:
    reader = session.read.format("pg_changes").options(**source(wal))
    return reader.options(**options).load()


def source(wal: ChangedWal) -> dict[str, str]:
    return {"path": str(wal.folder), "catalog": str(wal.catalog), "start_lsn": str(wal.begin_lsn)}


def in_order(table: pa.Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.sort_by([(name, "ascending") for name in ORDER]).to_pylist()
    return rows


def test_batch(session: SparkSession, changed_wal: ChangedWal, expected: pa.Table) -> None:
    frame = changes(session, changed_wal, partition_bytes="1MB")
    assert frame.rdd.getNumPartitions() > 3
    assert in_order(frame.toArrow()) == in_order(expected)
    assert expected.num_rows == 24_000 + 2400 + 10 + 5


def test_typed_columns(session: SparkSession, changed_wal: ChangedWal) -> None:
    frame = changes(session, changed_wal, table="public.orders")
    assert frame.schema["new"].dataType.simpleString() == (
        "struct<id:int,name:string,paid:decimal(8,2),at:timestamp>"
    )
    found = frame.where("new.id = 10").selectExpr("operation", "new.name", "new.paid").collect()
    assert [(row[0], row[1], str(row[2])) for row in found] == [
        ("insert", "order 10", "1.25"),
        ("update", "order 10", "1.00"),
    ]


def test_stream_with_a_transaction_over_its_batches(
    session: SparkSession, changed_wal: ChangedWal, expected: pa.Table, tmp_path: Path
) -> None:
    """The second run starts again, with only its checkpoint."""
    folder = tmp_path / "pg_wal"
    shutil.copytree(changed_wal.folder, folder)
    segments = sorted(file for file in folder.iterdir() if len(file.name) == 24)
    assert len(segments) > 4
    away = tmp_path / "away"
    away.mkdir()
    for file in segments[3:]:
        shutil.move(file, away)
    run_available(session, replace(changed_wal, folder=folder), tmp_path)
    before = written(tmp_path)
    assert 0 < before.num_rows < expected.num_rows
    for file in away.iterdir():
        shutil.move(file, folder)
    run_available(session, replace(changed_wal, folder=folder), tmp_path)
    assert in_order(written(tmp_path)) == in_order(expected)


def run_available(session: SparkSession, wal: ChangedWal, work: Path) -> None:
    stream = session.readStream.format("pg_changes").options(**source(wal))
    query = (
        stream.option("max_bytes_per_batch", "1MB")
        .load()
        .writeStream.format("parquet")
        .option("path", str(work / "lake"))
        .option("checkpointLocation", str(work / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(60)
    assert query.exception() is None


def written(work: Path) -> pa.Table:
    table = pa.concat_tables(pq.read_table(file) for file in (work / "lake").glob("*.parquet"))
    time = table.schema.get_field_index("commit_time")
    column = table["commit_time"].cast(pa.timestamp("us", tz="UTC"))
    return table.set_column(time, "commit_time", column)


class HeldSlot:
    """Replaces a stream's slot."""

    def __init__(self) -> None:
        self.lsns: list[int] = []

    def hold(self, lsn: int, wal_seg_size: int) -> None:
        self.lsns.append(lsn)


def test_slot_is_held_where_the_oldest_open_transaction_began(
    changed_wal: ChangedWal, expected: pa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When Spark asks for the end of a batch, and again when it asks for its partitions."""
    from pyspark.sql.streaming.datasource import ReadMaxBytes  # needs Spark 4.2

    from quorum_wal.spark.sources import wal_stream
    from quorum_wal.spark.sources.change_stream import ChangeStreamReader

    slot = HeldSlot()
    monkeypatch.setattr(wal_stream, "slot_of", lambda _: slot)
    rows = expected.to_pylist()
    slow = [row["lsn"] for row in rows if row["table"] == "notes"]
    filled = sorted({row["commit_lsn"] for row in rows if row["operation"] == "insert"})
    options = source(changed_wal)
    changes = parse_change_options({"catalog": options.pop("catalog")})
    reader = ChangeStreamReader(parse_options(options, is_stream=True), changes)

    def plan(start_lsn: int) -> None:
        start = {"lsn": format_lsn(start_lsn)}
        end = reader.latestOffset(start, ReadMaxBytes(MIB))
        assert end != start
        reader.partitions(start, end)

    for start_lsn in filled[1:3]:
        assert min(slow) < start_lsn < max(slow)
        plan(start_lsn)
    assert all(changed_wal.begin_lsn - MIB < lsn <= min(slow) for lsn in slot.lsns)
    assert len(slot.lsns) == 4
    plan(rows[-1]["commit_lsn"])
    assert max(slow) < slot.lsns[-1] <= rows[-1]["lsn"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"catalog": ""}, "neither catalog nor dsn is given"),
        ({"table": "nowhere"}, 'has no table "nowhere"'),
        ({"rmgr": "Heap"}, 'option "rmgr" is only for pg_wal'),
        ({"tabel": "orders"}, 'unknown option "tabel"'),
        ({"on_damage": "skip"}, "on_damage=skip and on_unknown=fail contradict each other"),
    ],
)
def test_wrong_options(
    session: SparkSession, changed_wal: ChangedWal, options: dict[str, str], message: str
) -> None:
    with pytest.raises(PySparkException, match=message):
        changes(session, changed_wal, **options).collect()


def test_a_connection_instead_of_a_catalog(postgres: Postgres) -> None:
    postgres.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    dsn = postgres.dsn(password="secret")
    options = parse_change_options({"dsn": dsn, "Table": "orders"})
    assert options.table == options.catalog.table_named("public.orders")
    assert "secret" not in repr(options)
    postgres.execute("CREATE TABLE later (id int)")
    assert options.refresh is not None
    assert options.refresh().table_named("later").schema == "public"


def test_what_decodes_is_loaded_when_it_is_needed() -> None:
    """Spark loads the modules of both sources in short processes, whatever their purpose."""
    script = "import pyspark_pg_changes, pyspark_pg_wal, sys; print(*sys.modules)"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "quorum_wal.spark.sources.pg_changes" in loaded
    assert not loaded & {"numba", "psycopg"}
