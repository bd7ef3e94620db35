"""A client of Spark Connect: `connect_driver.py SERVER batches|streams WAL CATALOG WORK`.

It prints the numbers of rows, and errors, as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from quorum_wal.spark.errors import SparkWalError
from quorum_wal.spark.mirror.mirror import Mirror
from quorum_wal.spark.register import register
from quorum_wal.spark.reported_errors import short_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TIMEOUT = 300  # seconds


def main(server: str, kind: str, wal: str, catalog: str, work: str) -> None:
    session = SparkSession.builder.remote(server).getOrCreate()
    register(session)
    of_changes = {"path": wal, "catalog": catalog}
    options = {
        "strict": ("pg_changes", of_changes),
        "pg_wal": ("pg_wal", {"path": wal}),
        "pg_changes": ("pg_changes", {**of_changes, "on_unknown": "pass"}),
    }
    frames = {}
    for name, (source, given) in options.items():
        reader = session.read if kind == "batches" else session.readStream
        frames[name] = reader.format(source).options(**given).load()
    count = counted if kind == "batches" else written
    found = {name: result(count, frame, Path(work, name)) for name, frame in frames.items()}
    found["mirror"] = result(lambda *_: Mirror(session, work), frames["pg_wal"], Path(work))
    print(json.dumps(found))


def result(count: Callable[[DataFrame, Path], object], frame: DataFrame, work: Path) -> object:
    """What `count` returns, or our error."""
    try:
        with short_errors():
            return count(frame, work)
    except SparkWalError as error:
        return f"{type(error).__module__}.{type(error).__name__}: {error}"


def counted(frame: DataFrame, work: Path) -> int:
    return frame.count()


def written(frame: DataFrame, work: Path) -> int:
    """The rows of a stream."""
    writer = frame.writeStream.format("parquet").option("path", str(work / "lake"))
    writer = writer.option("checkpointLocation", str(work / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination(TIMEOUT)
    return frame.sparkSession.read.parquet(str(work / "lake")).count()


if __name__ == "__main__":
    main(*sys.argv[1:])
