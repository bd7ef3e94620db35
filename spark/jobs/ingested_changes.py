"""Changes of tables as rows for `ingest.py`. A batch has the changes that commit in its range."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Self

import pyarrow as pa
import structlog

from quorum_wal.spark.changes.alteration_search import find_alterations
from quorum_wal.spark.changes.alterations import unseen_note
from quorum_wal.spark.changes.change_batches import ChangeBatches
from quorum_wal.spark.changes.change_reader import ChangeOptions, read_changes, restart_lsn
from quorum_wal.spark.changes.change_schema import CHANGES_SCHEMA, Note
from quorum_wal.spark.inputs.wal_reader import WalRange
from quorum_wal.spark.jobs.ingested_wal import IngestedRange, hold_slot, range_of
from quorum_wal.spark.jobs.lake import Batch

log = structlog.get_logger()


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

    def for_batch(self, batch: Batch) -> Self:
        """A copy that knows the tables altered before the batch. A note about unseen WAL that
        passes goes to the log and not into a file, because a file depends on its range alone.
        Raises WalInputError, and the errors of `changes.undecoded`."""
        starts = WalRange(batch.start_lsn, batch.ranges[-1][0], batch.end_lsn)
        known = find_alterations(
            self.options.wal_input, self.changes.catalog, starts, self.options.on_damage,
            self.changes.alterations,
        )  # fmt: skip
        rows = ChangeBatches(self.changes.catalog)
        notes = [
            rows.note(Note.NOT_SEARCHED, lsn, unseen_note(lsn, end_lsn))
            for lsn, end_lsn in known.unseen
        ]
        for note in self.changes.undecoded.apply(notes, starts):
            log.warning("a catalog may be too old", reason=note["detail"][0].as_py())
        return replace(self, changes=replace(self.changes, alterations=replace(known, unseen=[])))

    def hold(self, start_lsn: int) -> None:
        """Also keeps the WAL of transactions that are still open at `start_lsn`."""
        if self.options.slot is not None:
            oldest_lsn = restart_lsn(
                self.options.wal_input, start_lsn, self.changes, self.options.on_damage
            )
            hold_slot(self.options, oldest_lsn)

    def read(self, batch: Batch, start_lsn: int, end_lsn: int) -> Iterator[pa.RecordBatch]:
        return read_changes(
            self.options.wal_input,
            range_of(batch, start_lsn, end_lsn),
            self.changes,
            self.options.on_damage,
        )
