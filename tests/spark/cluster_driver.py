"""A driver on a cluster: `python cluster_driver.py MASTER SOURCE WORK`; a batch, then a stream.

The batch's LSNs go to WORK/batch, the stream's to WORK/lake, in batches of one megabyte.
"""

from __future__ import annotations

import sys
from pathlib import Path

from spark.session import new_session

SETTINGS = {
    "spark.driver.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.cores.max": "2",
}


def main(master: str, source: str, work: str) -> None:
    session = new_session("cluster", master, SETTINGS)
    session.sparkContext.setLogLevel("OFF")
    options = {"path": source, "columns": "lsn,rmgr"}
    frame = session.read.format("pg_wal").options(**options, partition_bytes="2MB").load()
    rows = frame.select("lsn").toArrow()
    Path(work, "batch").write_text("\n".join(map(str, sorted(rows["lsn"].to_pylist()))))
    query = (
        session.readStream.format("pg_wal")
        .options(**options, max_bytes_per_batch="1MB", partition_bytes="1MB")
        .load()
        .writeStream.format("parquet")
        .option("path", f"{work}/lake")
        .option("checkpointLocation", f"{work}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
