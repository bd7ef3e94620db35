"""`pg_changes` as a stream. It plans and keeps offsets as `pg_wal` does.

Law: the slot of a stream keeps the WAL of all transactions that are still open.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from uuid import uuid4

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from quorum_wal.spark.changes.change_reader import ChangeOptions, restart_lsn
from quorum_wal.spark.changes.debezium_envelope import DebeziumEnvelope
from quorum_wal.spark.changes.earlier_changes import EarlierChanges
from quorum_wal.spark.sources.change_task import change_tasks, run_change_task
from quorum_wal.spark.sources.input_options import InputOptions
from quorum_wal.spark.sources.shown_errors import shown_errors
from quorum_wal.spark.sources.wal_stream import Offset, WalStreamReader


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
        #: of the folder in which batches leave pages for the next one
        self._name = uuid4().hex
        self._held: tuple[int, int] | None = None
        self._earlier = EarlierChanges(options.wal_input, changes, options.on_damage)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        with shown_errors():
            parts = self._parts(start, end)
            return change_tasks(parts, self._earlier, self._name)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return run_change_task(self._options, self._changes, partition, self._envelope)

    def _hold(self, start_lsn: int) -> None:
        if self._slot is None:
            return
        if self._held is None or self._held[0] != start_lsn:
            self._held = (
                start_lsn,
                restart_lsn(self._input, start_lsn, self._changes, self._options.on_damage),
            )
        super()._hold(self._held[1])
