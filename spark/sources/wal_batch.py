"""`spark.read`: a range of WAL, split into tasks.

Laws. The rows do not depend on the way in which the WAL is split (`wal_reader.py`). Conditions of a
query are not pushed down: Spark 4.1 to 4.3 keeps the plan of a source that was given filters, and
uses it for all scans of the same DataFrame, also for those without these filters. Source: Spark's
`PythonScanBuilder.pushFilters` and `PythonDataSourceV2.setReadInfo`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from quorum_wal.spark.inputs.wal_reader import OnDamage
from quorum_wal.spark.sources.input_options import InputOptions
from quorum_wal.spark.sources.range_plan import plan_range, split
from quorum_wal.spark.sources.shown_errors import shown_errors
from quorum_wal.spark.sources.wal_task import WalTask, run_task


class WalBatchReader(DataSourceReader):
    """`partitions` runs on the driver, `read` on the executors."""

    def __init__(self, options: InputOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        with shown_errors():
            options = self._options
            facts = options.wal_input.facts()
            whole = plan_range(options, facts)
            if options.on_damage is OnDamage.STOP:
                # One task: only a reader of all WAL before knows whether it is damaged.
                return [WalTask(whole, options.wal_filter)]
            parts = split(whole, facts, options.partition_bytes)
            return [WalTask(part, options.wal_filter) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return run_task(self._options, partition)
