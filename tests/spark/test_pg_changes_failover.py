"""A stream of changes runs while clients commit and the primary is lost: every acknowledged row is
one insert, across the change of the timeline, and no uncommitted row appears."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from failover_world import TIMEOUT, FailoverWorld, Loss
from lake_query import LakeQuery

from quorum_wal.objectstore.archive import find_timelines, require_archive
from quorum_wal.objectstore.local import LocalStore
from quorum_wal.pg_fixtures.ledger import Ledger
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.spark.changes.catalog_snapshot import take_catalog
from quorum_wal.spark.inputs.archive_input import ArchiveInput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CLIENTS = 3
ROWS = 100
PAUSE_SECONDS = 0.1
ORDER = [("commit_lsn", "ascending"), ("lsn", "ascending")]

Row = tuple[int, int, bytes]  # client, seq, payload


@pytest.mark.parametrize("wal_level", ["replica"])
def test_changes_over_a_failover(
    session: SparkSession,
    failover_world: FailoverWorld,
    archive_folder: Path,
    tmp_path: Path,
) -> None:
    world, archive = failover_world, {"path": str(archive_folder)}
    safekeepers = {"safekeepers": world.cluster.replica_conninfo()}
    catalog = tmp_path / "catalog.json"
    options = {"catalog": str(catalog), "table": "public.ledger"}
    options["start_lsn"] = str(quiet_lsn(world.cluster.postgres))
    wait_until(lambda: find_timelines(LocalStore(str(archive_folder))), TIMEOUT, "the archive")
    with Ledger(world.clients_dsn, clients=CLIENTS, pause_seconds=PAUSE_SECONDS) as ledger:
        ledger.wait_for_progress(ROWS, TIMEOUT)
        catalog.write_bytes(take_catalog(world.cluster.postgres.dsn()).to_json())
        stream = session.readStream.format("pg_changes").options(**options, slot="changes")
        frame = stream.options(**archive, **safekeepers).load()
        with into_lake(frame, tmp_path) as query:
            wait_until(lambda: query.end_lsn() > 0, TIMEOUT, "the first batch")
            world.lose(Loss.CUT_OFF)
            with world.promotion() as promotion:
                promotion.wait_streaming(TIMEOUT)
                ledger.wait_for_progress(ROWS, TIMEOUT)
                ledger.pause()
                ledger.wait_idle(TIMEOUT)
                last_lsn = world.standby.flush_lsn()
                wait_until(lambda: query.end_lsn() >= last_lsn, TIMEOUT, "the stream to have it")
                archived = ArchiveInput(str(archive_folder))
                wait_until(lambda: archived.newest_lsn() >= last_lsn, TIMEOUT, "the archive, too")
        report = ledger.verify(world.standby.dsn())
    assert report.ok, report
    expected = table_rows(world.standby)
    assert len(expected) == report.found + report.unknown_found
    streamed = session.read.parquet(str(tmp_path / "lake")).toArrow()
    assert_each_once(streamed, expected)
    assert_over_a_switch(streamed, archive_folder)
    for source in (archive, safekeepers, {**archive, **safekeepers}):
        batch = session.read.format("pg_changes").options(**options, **source).load()
        assert_each_once(chosen(batch).toArrow(), expected)


def quiet_lsn(postgres: Postgres) -> Lsn:
    """After a list of open transactions that is empty."""
    postgres.execute("CHECKPOINT")
    return postgres.flush_lsn()


def chosen(frame: DataFrame) -> DataFrame:
    """The compared columns of a row and of its position in the log."""
    return frame.selectExpr(
        "lsn", "commit_lsn", "operation", "detail", "new.client", "new.seq", "new.payload"
    )


@contextmanager
def into_lake(frame: DataFrame, work: Path) -> Iterator[LakeQuery]:
    """A running query. Spark reads a lake by the files that were committed to it."""
    writer = chosen(frame).writeStream.format("parquet")
    writer = writer.option("checkpointLocation", str(work / "checkpoint"))
    query = LakeQuery(writer.option("path", str(work / "lake")))
    try:
        yield query
    finally:
        query.stop()


def table_rows(postgres: Postgres) -> set[Row]:
    rows = postgres.execute("SELECT client, seq, payload FROM ledger")
    return {(client, seq, bytes(payload)) for client, seq, payload in rows}


def assert_each_once(found: pa.Table, expected: set[Row]) -> None:
    """Inserts of exactly these rows and nothing else, those of a client in their order."""
    in_order = found.sort_by(ORDER).to_pylist()
    assert {(row["operation"], row["detail"]) for row in in_order} == {("insert", None)}
    rows = [(row["client"], row["seq"], row["payload"]) for row in in_order]
    assert len(rows) == len(expected)
    assert set(rows) == expected
    for client in range(CLIENTS):
        seqs = [seq for owner, seq, _ in rows if owner == client]
        assert seqs == sorted(seqs)


def assert_over_a_switch(found: pa.Table, archive: Path) -> None:
    """Rows of both timelines are there."""
    history = require_archive(LocalStore(str(archive)), None).newest_history()
    assert history.tli == 2
    (switch,) = history.entries
    commit_lsns = found["commit_lsn"].to_pylist()
    assert min(commit_lsns) < switch.switch_lsn < max(commit_lsns)
