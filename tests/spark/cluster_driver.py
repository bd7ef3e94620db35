"""A driver on a cluster: a batch, then a stream: `cluster_driver.py MASTER SOURCE WORK`.

The batch's LSNs go to WORK/batch, the stream's to WORK/lake, in batches of two megabytes.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from quorum_wal.spark.session import new_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.executor.extraJavaOptions": os.environ["SPARK_TEST_EXECUTOR_OPTS"],
    "spark.cores.max": "2",
}


def main(master: str, source: str, work: str) -> None:
    session = new_session("cluster", master, SETTINGS)
    session.sparkContext.setLogLevel("OFF")
    options = {"path": source, "columns": "lsn,rmgr"}
    frame = session.read.format("pg_wal").options(**options, partition_bytes="2MB").load()
    rows = frame.select("lsn").toArrow()
    Path(work, "batch").write_text("\n".join(map(str, sorted(rows["lsn"].to_pylist()))))
    stream(session, options, work)
    session.stop()


def stream(session: SparkSession, options: dict[str, str], work: str) -> None:
    query = (
        session.readStream.format("pg_wal")
        .options(**options, max_bytes_per_batch="2MB", partition_bytes="1MB")
        .load()
        .writeStream.format("parquet")
        .option("path", f"{work}/lake")
        .option("checkpointLocation", f"{work}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
