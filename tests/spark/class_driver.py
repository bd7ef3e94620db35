"""A driver that loads the classes of most queries: `class_driver.py FOLDER`. It writes and reads
Parquet files in FOLDER, and starts no Python worker."""

from __future__ import annotations

import sys

from quorum_wal.spark.session import new_session

SETTINGS = {
    "spark.driver.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


def main(folder: str) -> None:
    session = new_session("classes", "local[1]", SETTINGS)
    session.sparkContext.setLogLevel("OFF")
    stream = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    writer = stream.writeStream.format("parquet").option("checkpointLocation", f"{folder}/log")
    writer.trigger(once=True).start(f"{folder}/rows").awaitTermination()
    rows = session.read.parquet(f"{folder}/rows").selectExpr("value % 2 AS v", "timestamp")
    rows.groupBy("v").count().orderBy("v").toArrow()
    session.stop()


if __name__ == "__main__":
    main(sys.argv[1])
