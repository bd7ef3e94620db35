"""Changes of tables as rows for `ingest.py`. A batch has the changes that commit in its range."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

import pyarrow as pa
import structlog

from quorum_wal.spark.changes.change_batches import ChangeBatches
from quorum_wal.spark.changes.change_reader import ChangeOptions, read_changes, restart_lsn
from quorum_wal.spark.changes.change_schema import CHANGES_SCHEMA
from quorum_wal.spark.changes.earlier_changes import EarlierChanges, KnownChanges
from quorum_wal.spark.inputs.wal_reader import WalRange
from quorum_wal.spark.jobs.ingested_wal import IngestedRange, hold_slot, range_of
from quorum_wal.spark.jobs.lake import Batch

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class IngestedChanges(IngestedRange):
    """`IngestedRows` of one input and the catalog of one database."""

    changes: ChangeOptions = field(kw_only=True)
    #: of the present batch, by the start of a range
    known: Mapping[int, KnownChanges] = field(default_factory=dict, kw_only=True, repr=False)
    earlier: EarlierChanges | None = field(default=None, kw_only=True, repr=False, compare=False)

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
        """A copy that knows the changes of tables before and in the batch. A note about unseen WAL
        that passes goes to the log and not into a file, because a file depends on its range alone.
        Raises WalInputError, CatalogError, and the errors of `changes.undecoded`."""
        options = self.options
        earlier = self.earlier or EarlierChanges(options.wal_input, self.changes, options.on_damage)
        parts = [range_of(batch, *lsns) for lsns in batch.ranges]
        known = earlier.of_tasks(parts)
        rows = ChangeBatches(self.changes.catalog)
        notes = [
            rows.note(problem.kind, problem.lsn, problem.text)
            for problem in known[0].problems_before(batch.start_lsn)
        ]
        before = WalRange(batch.start_lsn, batch.start_lsn, batch.end_lsn)
        for note in self.changes.undecoded.apply(notes, before):
            log.warning("a catalog may be too old", reason=note["detail"][0].as_py())
        by_start = {part.start_lsn: each for part, each in zip(parts, known, strict=True)}
        return replace(self, earlier=earlier, known=by_start)

    def hold(self, start_lsn: int) -> None:
        """Also keeps the WAL of transactions that are still open at `start_lsn`."""
        if self.options.slot is not None:
            oldest_lsn = restart_lsn(
                self.options.wal_input, start_lsn, self.changes, self.options.on_damage
            )
            hold_slot(self.options, oldest_lsn)

    def read(self, batch: Batch, start_lsn: int, end_lsn: int) -> Iterator[pa.RecordBatch]:
        known = self.known[start_lsn].without_problems_before(start_lsn)
        return read_changes(
            self.options.wal_input,
            range_of(batch, start_lsn, end_lsn),
            known.options(self.changes),
            self.options.on_damage,
        )
