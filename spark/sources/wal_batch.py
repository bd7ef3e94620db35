"""`spark.read`: a range of WAL, split into tasks.

Law: the rows do not depend on the way in which the WAL is split (`wal_reader.py`) or filters are
pushed down (`pushed_filters.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from quorum_wal.spark.inputs.wal_reader import OnDamage
from quorum_wal.spark.sources.input_options import InputOptions
from quorum_wal.spark.sources.pushed_filters import PushedFilters, PushFilters
from quorum_wal.spark.sources.range_plan import plan_range, split
from quorum_wal.spark.sources.shown_errors import shown_errors
from quorum_wal.spark.sources.wal_task import WalTask, run_task


class WalBatchReader(DataSourceReader):
    """`partitions` runs on the driver, `read` on the executors."""

    def __init__(self, options: InputOptions) -> None:
        self._options = options
        self._pushed = PushedFilters()

    @property
    def pushFilters(self) -> PushFilters:
        return PushFilters(self._take)

    def _take(self, pushed: PushedFilters) -> None:
        self._pushed = pushed

    def partitions(self) -> Sequence[InputPartition]:
        with shown_errors():
            options = self._options
            facts = options.wal_input.facts()
            whole = self._pushed.narrow_range(plan_range(options, facts))
            wal_filter = self._pushed.narrow_filter(options.wal_filter, facts.pg_major)
            if options.on_damage is OnDamage.STOP:
                # One task: only a reader of all WAL before knows whether it is damaged.
                return [WalTask(whole, wal_filter)]
            parts = split(whole, facts, options.partition_bytes)
            return [WalTask(part, wal_filter) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return run_task(self._options, partition)
