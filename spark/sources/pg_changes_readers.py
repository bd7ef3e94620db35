"""The readers of `pg_changes`, for batches and streams.

They plan and keep offsets as `pg_wal` does. The range of a task contains the commits; the task
finds by itself where its transactions began (`change_reader.py`). Law: the slot of a stream keeps
the WAL of all transactions that are still open.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from quorum_wal.spark.changes.change_reader import ChangeOptions, read_changes, restart_lsn
from quorum_wal.spark.changes.debezium_envelope import DebeziumEnvelope
from quorum_wal.spark.changes.earlier_changes import EarlierChanges, KnownChanges
from quorum_wal.spark.inputs.wal_reader import OnDamage, WalRange
from quorum_wal.spark.records.wal_filter import WalFilter
from quorum_wal.spark.sources.input_options import InputOptions
from quorum_wal.spark.sources.range_plan import plan_range, split
from quorum_wal.spark.sources.shown_errors import shown_errors
from quorum_wal.spark.sources.wal_stream import Offset, WalStreamReader
from quorum_wal.spark.sources.wal_task import WalTask


@dataclass(frozen=True, slots=True)
class ChangeTask(WalTask):
    """`known`: the changes of tables since the catalog."""

    known: KnownChanges


class ChangeBatchReader(DataSourceReader):
    """`partitions` runs on the driver, `read` on the executors."""

    def __init__(
        self,
        options: InputOptions,
        changes: ChangeOptions,
        envelope: DebeziumEnvelope | None = None,
    ) -> None:
        self._options = options
        self._changes = changes
        self._envelope = envelope

    def partitions(self) -> Sequence[InputPartition]:
        with shown_errors():
            options = self._options
            facts = options.wal_input.facts()
            whole = plan_range(options, facts)
            is_whole = options.on_damage is OnDamage.STOP
            parts = [whole] if is_whole else split(whole, facts, options.partition_bytes)
            earlier = EarlierChanges(options.wal_input, self._changes, options.on_damage)
            return _tasks(parts, earlier)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, self._changes, partition, self._envelope)


class ChangeStreamReader(WalStreamReader):
    """Streams as `pg_wal` does, except for the rows, and for the WAL that the slot keeps."""

    def __init__(
        self,
        options: InputOptions,
        changes: ChangeOptions,
        envelope: DebeziumEnvelope | None = None,
    ) -> None:
        super().__init__(options)
        self._changes = changes
        self._envelope = envelope
        self._held: tuple[int, int] | None = None
        self._earlier = EarlierChanges(options.wal_input, changes, options.on_damage)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        with shown_errors():
            parts = self._parts(start, end)
            return _tasks(parts, self._earlier)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, self._changes, partition, self._envelope)

    def _hold(self, start_lsn: int) -> None:
        if self._slot is None:
            return
        if self._held is None or self._held[0] != start_lsn:
            self._held = (
                start_lsn,
                restart_lsn(self._input, start_lsn, self._changes, self._options.on_damage),
            )
        super()._hold(self._held[1])


def _tasks(parts: Sequence[WalRange], earlier: EarlierChanges) -> list[InputPartition]:
    """Raises WalInputError."""
    return [
        ChangeTask(part, WalFilter(), known)
        for part, known in zip(parts, earlier.of_tasks(parts), strict=True)
    ]


def _read(
    options: InputOptions,
    changes: ChangeOptions,
    partition: InputPartition,
    envelope: DebeziumEnvelope | None,
) -> Iterator[pa.RecordBatch]:
    """The rows of a task. Raises SparkWalError."""
    assert isinstance(partition, ChangeTask)
    changes = partition.known.options(changes)
    with shown_errors():
        rows = read_changes(options.wal_input, partition.wal_range, changes, options.on_damage)
        yield from rows if envelope is None else envelope.apply(rows)
