"""Changes of tables as what `ingest.py` brings into a lake: those that a batch's range commits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from spark.changes.change_reader import ChangeOptions, read_changes, restart_lsn
from spark.changes.change_schema import CHANGES_SCHEMA
from spark.jobs.ingest import BATCH_BYTES_MAX, RANGE_BYTES
from spark.jobs.ingested_wal import first_lsn, hold_slot, plan_batch, range_of
from spark.jobs.lake import Batch
from spark.sources.input_options import InputOptions


@dataclass(frozen=True, slots=True)
class IngestedChanges:
    """`IngestedRows` of one input and the catalog of one database."""

    options: InputOptions
    changes: ChangeOptions
    batch_bytes: int = BATCH_BYTES_MAX
    range_bytes: int = RANGE_BYTES

    @property
    def name(self) -> str:
        return "changes"

    @property
    def schema(self) -> pa.Schema:
        return CHANGES_SCHEMA

    @property
    def time_column(self) -> str:
        return "commit_time"

    @property
    def dropped(self) -> frozenset[str]:
        return frozenset()

    def system_id(self) -> int:
        return self.options.wal_input.facts().system_id

    def first_lsn(self) -> int:
        return first_lsn(self.options)

    def plan(self, start_lsn: int) -> Batch | None:
        return plan_batch(self.options, start_lsn, self.batch_bytes, self.range_bytes)

    def hold(self, start_lsn: int) -> None:
        """Also what transactions have begun that are still open there."""
        if self.options.slot is not None:
            oldest_lsn = restart_lsn(self.options.wal_input, start_lsn, self.changes)
            hold_slot(self.options, oldest_lsn)

    def read(self, batch: Batch, start_lsn: int, end_lsn: int) -> Iterator[pa.RecordBatch]:
        return read_changes(
            self.options.wal_input,
            range_of(batch, start_lsn, end_lsn),
            self.changes,
            self.options.on_damage,
        )
