"""What `pg_changes` is read with: in batches, and in streams.

The planning and the offsets are those of `pg_wal`; a task's range is that of the commits, and where
its transactions began it finds out by itself (`change_reader.py`). Law: no slot of the stream lets
go of WAL that a transaction which is still open has begun in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from spark.changes.change_reader import ChangeOptions, read_changes, restart_lsn
from spark.inputs.wal_reader import OnDamage
from spark.records.wal_filter import WalFilter
from spark.sources.input_options import InputOptions
from spark.sources.range_plan import plan_range, split
from spark.sources.shown_errors import shown_errors
from spark.sources.wal_stream import WalStreamReader
from spark.sources.wal_task import WalTask


class ChangeBatchReader(DataSourceReader):
    """Planned on the driver; `read` runs on the executors."""

    def __init__(self, options: InputOptions, changes: ChangeOptions) -> None:
        self._options = options
        self._changes = changes

    def partitions(self) -> Sequence[InputPartition]:
        with shown_errors():
            options = self._options
            facts = options.wal_input.facts()
            whole = plan_range(options, facts)
            is_whole = options.on_damage is OnDamage.STOP
            parts = [whole] if is_whole else split(whole, facts, options.partition_bytes)
            return [WalTask(part, WalFilter()) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, self._changes, partition)


class ChangeStreamReader(WalStreamReader):
    """As `pg_wal` streams, but for what is read, and for what a slot holds."""

    def __init__(self, options: InputOptions, changes: ChangeOptions) -> None:
        super().__init__(options)
        self._changes = changes
        self._held: tuple[int, int] | None = None

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, self._changes, partition)

    def _hold(self, start_lsn: int) -> None:
        if self._slot is None:
            return
        if self._held is None or self._held[0] != start_lsn:
            self._held = start_lsn, restart_lsn(self._input, start_lsn, self._changes)
        super()._hold(self._held[1])


def _read(
    options: InputOptions, changes: ChangeOptions, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    """Its rows. Raises SparkWalError."""
    assert isinstance(partition, WalTask)
    with shown_errors():
        yield from read_changes(options.wal_input, partition.wal_range, changes, options.on_damage)
