"""A driver to be killed: `python streaming_driver.py SOURCE WORK`."""

from __future__ import annotations

import sys

from spark.session import new_session


def main(source: str, work: str) -> None:
    session = new_session("driver", "local[1,4]", {"spark.driver.memory": "512m"})
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
