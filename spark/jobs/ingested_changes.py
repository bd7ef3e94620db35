"""Changes of tables as what `ingest.py` brings into a lake: those that a batch's range commits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from spark.changes.change_reader import ChangeOptions, read_changes, restart_lsn
from spark.changes.change_schema import CHANGES_SCHEMA
from spark.jobs.ingested_wal import IngestedRange, hold_slot, range_of
from spark.jobs.lake import Batch


@dataclass(frozen=True, slots=True)
class IngestedChanges(IngestedRange):
    """`IngestedRows` of one input and the catalog of one database."""

    changes: ChangeOptions = field(kw_only=True)

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
