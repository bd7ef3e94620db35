"""`pg_changes` in batches. They are planned as those of `pg_wal`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from quorum_wal.spark.changes.change_reader import ChangeOptions
from quorum_wal.spark.changes.debezium_envelope import DebeziumEnvelope
from quorum_wal.spark.changes.earlier_changes import EarlierChanges
from quorum_wal.spark.inputs.wal_reader import OnDamage
from quorum_wal.spark.sources.change_task import change_tasks, run_change_task
from quorum_wal.spark.sources.input_options import InputOptions
from quorum_wal.spark.sources.range_plan import plan_range, split
from quorum_wal.spark.sources.shown_errors import shown_errors


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
            return change_tasks(parts, earlier)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return run_change_task(self._options, self._changes, partition, self._envelope)
