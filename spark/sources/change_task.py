"""A task of `pg_changes`: its description, and the function that runs it.

The range of a task contains the commits; the task finds by itself where its transactions began
(`change_reader.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from quorum_wal.spark.changes.change_reader import ChangeOptions, read_changes
from quorum_wal.spark.changes.debezium_envelope import DebeziumEnvelope
from quorum_wal.spark.changes.earlier_changes import EarlierChanges, KnownChanges
from quorum_wal.spark.changes.page_folder import PageFolder
from quorum_wal.spark.inputs.wal_reader import WalRange
from quorum_wal.spark.records.wal_filter import WalFilter
from quorum_wal.spark.sources.input_options import InputOptions
from quorum_wal.spark.sources.shown_errors import shown_errors
from quorum_wal.spark.sources.wal_task import WalTask
from quorum_wal.spark.worker_memory import keep_memory


@dataclass(frozen=True, slots=True)
class ChangeTask(WalTask):
    """`known`: the changes of tables since the catalog. `stream`: the unique name of a stream,
    whose batches leave pages for the next one; the last task of a batch stores them."""

    known: KnownChanges
    stream: str | None = None
    is_last: bool = False


def change_tasks(
    parts: Sequence[WalRange], earlier: EarlierChanges, stream: str | None = None
) -> list[InputPartition]:
    """One for each range. Raises WalInputError."""
    return [
        ChangeTask(part, WalFilter(), known, stream, is_last=part is parts[-1])
        for part, known in zip(parts, earlier.of_tasks(parts), strict=True)
    ]


def run_change_task(
    options: InputOptions,
    changes: ChangeOptions,
    task: InputPartition,
    envelope: DebeziumEnvelope | None,
) -> Iterator[pa.RecordBatch]:
    """The rows of the task. Raises SparkWalError."""
    assert isinstance(task, ChangeTask)
    keep_memory()
    folder = None if task.stream is None else PageFolder.of_stream(task.stream)
    changes = replace(task.known.options(changes), folder=folder, stores_pages=task.is_last)
    with shown_errors():
        rows = read_changes(options.wal_input, task.wal_range, changes, options.on_damage)
        yield from rows if envelope is None else envelope.apply(rows)
