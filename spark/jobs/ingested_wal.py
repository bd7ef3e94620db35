"""WAL records as rows for `ingest.py`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import pyarrow as pa

from quorum_wal.spark.inputs.boundary import boundary_at, next_boundary
from quorum_wal.spark.inputs.wal_reader import WalRange, read_records
from quorum_wal.spark.jobs.ingest import BATCH_BYTES_MAX, RANGE_BYTES, cut
from quorum_wal.spark.jobs.lake import Batch
from quorum_wal.spark.records.wal_schema import schema_of
from quorum_wal.spark.sources.input_options import InputOptions, slot_of
from quorum_wal.spark.sources.range_plan import plan_start

TIME = "xact_time"
RECORD_ALIGNMENT = 8


def first_lsn(options: InputOptions) -> int:
    """The position at which a new lake begins. Raises SparkWalError."""
    wal_input = options.wal_input
    return plan_start(options, wal_input.facts(), wal_input.newest_lsn())


def plan_batch(
    options: InputOptions, start_lsn: int, batch_bytes: int, range_bytes: int
) -> Batch | None:
    """A batch up to a record boundary, at most up to the end in the options. None if no record is
    whole. Raises SparkWalError."""
    wal_input, facts = options.wal_input, options.wal_input.facts()
    limit_lsn = newest_lsn = wal_input.newest_lsn()
    if options.end_lsn is not None and options.end_lsn < newest_lsn:
        # A record that starts below end_lsn is included, even across the start of a segment.
        behind = options.end_lsn + (0 if options.end_lsn % facts.wal_seg_size else RECORD_ALIGNMENT)
        limit_lsn = boundary_at(wal_input, facts, behind, newest_lsn)
    if limit_lsn <= start_lsn:
        return None
    end_lsn = next_boundary(wal_input, facts, start_lsn, limit_lsn, batch_bytes)
    if end_lsn <= start_lsn:
        return None
    return Batch(start_lsn, end_lsn, cut(start_lsn, end_lsn, max(range_bytes, facts.wal_seg_size)))


def hold_slot(options: InputOptions, lsn: int) -> None:
    """Makes the safekeepers keep WAL from `lsn` on, if option `slot` names a slot. Raises
    WalInputError."""
    slot = slot_of(options)
    if slot is not None:
        slot.hold(lsn, options.wal_input.facts().wal_seg_size)


def range_of(batch: Batch, start_lsn: int, end_lsn: int) -> WalRange:
    """One range of the batch. All its records end within the batch."""
    return WalRange(start_lsn, end_lsn, batch.end_lsn, start_lsn == batch.start_lsn)


@dataclass(frozen=True, slots=True)
class IngestedRange:
    """The common part of all `IngestedRows` of one input: which WAL, and in which batches."""

    options: InputOptions
    batch_bytes: int = BATCH_BYTES_MAX
    range_bytes: int = RANGE_BYTES

    def system_id(self) -> int:
        return self.options.wal_input.facts().system_id

    def first_lsn(self) -> int:
        return first_lsn(self.options)

    def plan(self, start_lsn: int) -> Batch | None:
        return plan_batch(self.options, start_lsn, self.batch_bytes, self.range_bytes)

    def for_batch(self, batch: Batch) -> Self:
        return self


@dataclass(frozen=True, slots=True)
class IngestedWal(IngestedRange):
    """`IngestedRows` of WAL records."""

    @property
    def name(self) -> str:
        return "wal"

    @property
    def schema(self) -> pa.Schema:
        columns = self.options.columns
        return schema_of(columns if TIME in columns else (*columns, TIME))

    @property
    def time_column(self) -> str:
        return TIME

    @property
    def dropped(self) -> frozenset[str]:
        return frozenset({TIME} - set(self.options.columns))

    def hold(self, start_lsn: int) -> None:
        hold_slot(self.options, start_lsn)

    def read(self, batch: Batch, start_lsn: int, end_lsn: int) -> Iterator[pa.RecordBatch]:
        return read_records(
            self.options.wal_input,
            range_of(batch, start_lsn, end_lsn),
            columns=self.schema.names,
            wal_filter=self.options.wal_filter,
            on_damage=self.options.on_damage,
        )
