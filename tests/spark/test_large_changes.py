"""A transaction that needs many times the memory of a task, as a stream: it begins in the first
micro-batch, commits in the last one, and its Python worker is killed while it gathers changes."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from file_lease import FileLease
from sink_rows import committed_files

from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.spark.changes.catalog import load_catalog
from quorum_wal.spark.changes.catalog_snapshot import take_catalog
from quorum_wal.spark.changes.change_reader import ChangeOptions, read_changes
from quorum_wal.spark.inputs.folder_input import FolderInput
from quorum_wal.spark.inputs.wal_reader import WalRange

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ROWS, ROUNDS = 6000, 3
TIMEOUT = 240
ORDER = [(name, "ascending") for name in ("commit_lsn", "lsn", "seq")]


@dataclass(frozen=True, slots=True)
class LargeWal:
    """`rows` are those of the table at the end."""

    folder: Path
    catalog: Path
    begin_lsn: Lsn
    rows: set[tuple[int, int]]


@pytest.fixture
def large_wal(wal_server: Callable[..., Postgres], tmp_path: Path) -> LargeWal:
    """At wal_level replica, pages go through a temporary file, too."""
    with wal_server(tmp_path / "data", wal_level="replica") as postgres:
        postgres.execute("CREATE TABLE orders (id int PRIMARY KEY, paid int, note text)")
        postgres.execute("CREATE TABLE others (id int)")
        postgres.execute("CHECKPOINT")
        begin_lsn = postgres.flush_lsn()
        with postgres.connect(autocommit=False) as large:
            for number in range(ROUNDS):
                large.execute(
                    "INSERT INTO orders SELECT g, 0, 'order ' || g"
                    " FROM generate_series(%s::int, %s::int) g",
                    (number * ROWS, (number + 1) * ROWS - 1),
                )
                large.execute("UPDATE orders SET paid = paid + 1 WHERE id % 4 = 0")
                postgres.execute("INSERT INTO others VALUES (%s)", (number,))
                postgres.execute("SELECT pg_switch_wal()")
            large.commit()
        rows = set(postgres.execute("SELECT id, paid FROM orders"))
        catalog = tmp_path / "catalog.json"
        catalog.write_bytes(take_catalog(postgres.dsn()).to_json())
        postgres.stop()
        shutil.copytree(postgres.pg_wal, tmp_path / "pg_wal")
    return LargeWal(tmp_path / "pg_wal", catalog, begin_lsn, rows)


def test_a_worker_that_is_killed(
    session: SparkSession, large_wal: LargeWal, tmp_path: Path
) -> None:
    stream = session.readStream.format("pg_changes").options(
        path=large_wal.folder, catalog=large_wal.catalog, start_lsn=large_wal.begin_lsn,
        memory_bytes="1MB", max_bytes_per_batch="1MB",
    )  # fmt: skip
    # Segments that are read after the transaction has filled the memory.
    leases = list(map(FileLease, sorted(large_wal.folder.glob("0*"))[3:5]))
    assert all(lease.take() for lease in leases)
    query = (
        stream.load()
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "lake"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    wait_until(lambda: kill_gathering_worker(query, leases), TIMEOUT, "a worker with a file")
    for lease in leases:
        lease.close()
    assert query.awaitTermination(TIMEOUT)
    files = committed_files(tmp_path / "lake")
    found = pa.concat_tables(map(pq.read_table, files)).sort_by(ORDER)
    assert_same_rows(found, decoded_at_once(large_wal))
    assert latest(found) == large_wal.rows
    assert_many_batches(query, found)
    assert kept_pages(session), "no batch left pages for the next one"


def kept_pages(session: SparkSession) -> list[Path]:
    """The files of pages in the local folders of Spark, which Spark removes."""
    one = session.sparkContext.parallelize([0], 1)
    (folders,) = one.map(lambda _: os.environ["SPARK_LOCAL_DIRS"]).collect()
    return list(Path(folders.split(",")[0]).glob("pages-*/*.pages"))


def kill_gathering_worker(query: StreamingQuery, leases: list[FileLease]) -> bool:
    """Whether a process that opens a segment has a file without a name in a local folder of Spark;
    it is killed before it reads that segment."""
    assert query.isActive, query.exception() or "it has ended before its worker was killed"
    for lease in leases:
        if lease.has_waiter():
            worker = gathering_worker()
            if worker is not None:
                os.kill(worker, signal.SIGKILL)
                return True
            lease.let_in()
            wait_until(lease.take, TIMEOUT, "it to be closed")
    return False


def gathering_worker() -> int | None:
    for process in Path("/proc").glob("[0-9]*"):
        try:
            is_worker = b"pyspark" in (process / "cmdline").read_bytes()
            files = [os.readlink(each) for each in (process / "fd").iterdir()] if is_worker else ()
        except OSError:
            continue  # it has ended
        if any("/blockmgr-" in file or "/spark-" in file for file in map(deleted, files)):
            return int(process.name)
    return None


def deleted(file: str) -> str:
    """The name that a file had; "" if it has one."""
    name, mark, _ = file.partition(" (deleted)")
    return name if mark else ""


def decoded_at_once(wal: LargeWal) -> pa.Table:
    """With enough memory for all of it."""
    wal_input = FolderInput(str(wal.folder))
    end_lsn = wal_input.newest_lsn()
    wal_range = WalRange(int(wal.begin_lsn), end_lsn, end_lsn)
    options = ChangeOptions(load_catalog(str(wal.catalog)))
    return pa.Table.from_batches(read_changes(wal_input, wal_range, options))


def assert_same_rows(found: pa.Table, expected: pa.Table) -> None:
    names = [name for name in expected.column_names if name != "commit_time"]
    assert found.select(names).to_pylist() == expected.sort_by(ORDER).select(names).to_pylist()


def latest(found: pa.Table) -> set[tuple[int, int]]:
    """(id, paid) after all changes of `orders`."""
    rows = {}
    for row in found.select(["table", "new"]).to_pylist():
        if row["table"] == "orders":
            new = json.loads(row["new"])
            rows[new["id"]] = new["paid"]
    return set(rows.items())


def assert_many_batches(query: StreamingQuery, found: pa.Table) -> None:
    """The transaction with the most rows begins in the first batch and commits in a later one."""
    ends = [
        Lsn.parse(json.loads(each.json)["sources"][0]["endOffset"]["lsn"])
        for each in query.recentProgress
    ]
    ((commit_lsn, rows),) = Counter(found["commit_lsn"].to_pylist()).most_common(1)
    assert rows > ROUNDS * ROWS
    first_lsn = pc.min(found.filter(pc.field("commit_lsn") == commit_lsn)["lsn"]).as_py()
    assert first_lsn < ends[0]
    assert sum(end <= commit_lsn for end in ends) >= ROUNDS - 1
