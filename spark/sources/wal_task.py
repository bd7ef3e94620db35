"""A task of `pg_wal`: its description, and the function that runs it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from quorum_wal.spark.inputs.wal_reader import WalRange, read_records
from quorum_wal.spark.records.wal_filter import WalFilter
from quorum_wal.spark.sources.input_options import InputOptions
from quorum_wal.spark.sources.shown_errors import shown_errors
from quorum_wal.spark.worker_memory import keep_memory


@dataclass(frozen=True, slots=True)
class WalTask(InputPartition):
    """The driver sends it to an executor. The reader knows where the WAL is."""

    wal_range: WalRange
    wal_filter: WalFilter


def run_task(options: InputOptions, task: InputPartition) -> Iterator[pa.RecordBatch]:
    """The rows of the task. Raises SparkWalError."""
    assert isinstance(task, WalTask)
    keep_memory()
    with shown_errors():
        yield from read_records(
            options.wal_input,
            task.wal_range,
            columns=options.columns,
            wal_filter=task.wal_filter,
            on_damage=options.on_damage,
        )
