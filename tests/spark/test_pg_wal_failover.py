"""A streaming query runs while clients commit and the primary is lost: no record is missing or
repeated, across the change of the timeline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from failover_world import TIMEOUT, FailoverWorld, Loss
from lake_query import LakeQuery
from sink_rows import written
from wal_rows import lsns, rows_of

from quorum_wal.objectstore.archive import find_timelines
from quorum_wal.objectstore.local import LocalStore
from quorum_wal.pg_fixtures.ledger import Ledger
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.spark.inputs.safekeeper_input import SafekeeperInput
from quorum_wal.spark.inputs.safekeeper_session import parse_safekeepers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_stream_over_a_failover(
    session: SparkSession, failover_world: FailoverWorld, archive_folder: Path, tmp_path: Path
) -> None:
    world = failover_world
    conninfo = world.cluster.replica_conninfo()
    archive_url = str(archive_folder)
    store = LocalStore(archive_url)
    wait_until(lambda: find_timelines(store), TIMEOUT, "the archive")
    writer = (
        session.readStream.format("pg_wal")
        .options(path=archive_url, safekeepers=conninfo, columns="lsn", slot="stream")
        .load()
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "lake"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
    )
    query = LakeQuery(writer)
    wal_input = SafekeeperInput(parse_safekeepers(conninfo, None))
    with Ledger(world.clients_dsn, clients=3, pause_seconds=0.1) as ledger:
        ledger.wait_for_progress(100, TIMEOUT)
        wait_until(lambda: query.end_lsn() > 0, TIMEOUT, "the first batch")
        world.lose(Loss.KILLED)
        with world.promotion() as promotion:
            promotion.wait_streaming(TIMEOUT)
            ledger.wait_for_progress(100, TIMEOUT)
            ledger.pause()
            ledger.wait_idle(TIMEOUT)
            committed = wal_input.newest_lsn()
            wait_until(lambda: query.end_lsn() >= committed, TIMEOUT, "the stream to have it all")
    query.stop()
    found = written(tmp_path / "lake")
    whole = rows_of(wal_input, columns=("lsn", "tli"))
    assert set(whole["tli"].to_pylist()) == {1, 2}
    assert found == lsns(whole)[: len(found)]  # newer WAL has not all been read
    assert found[-1] >= max(lsn for lsn in lsns(whole) if lsn < committed)

    for source in ({"safekeepers": conninfo}, {"safekeepers": conninfo, "path": archive_url}):
        frame = session.read.format("pg_wal").options(**source, columns="lsn,tli").load()
        assert frame.where(f"lsn <= {found[-1]}").count() == len(found)
