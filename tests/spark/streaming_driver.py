"""A driver to be killed: `streaming_driver.py SOURCE WORK`. Spark finds the source by itself."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from quorum_wal.spark.session import prepare_environment


def main(source: str, work: str) -> None:
    prepare_environment()
    session = (
        SparkSession.builder.master("local[1,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "512m")
        .getOrCreate()
    )
    query = (
        session.readStream.format("pg_wal")
        .options(path=source, columns="lsn,rmgr", max_bytes_per_batch="200kB")
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
    main(sys.argv[1], sys.argv[2])
