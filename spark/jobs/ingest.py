"""`ingest`: WAL into a Parquet lake, once or for ever, each record exactly once.

    plan a batch -> its ranges to the executors, which write files -> commit -> the next

Law: whatever is killed, a batch that was planned is finished as it was planned before another one
is begun (`lake.py`). Rows never pass through the driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from objectstore.store import open_store
from pgwal.lsn import format_lsn
from spark.errors import LakeError
from spark.jobs.lake import Batch, CommittedBatch, Job, Lake, LakeFile
from spark.jobs.lake_writer import write_range

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: of WAL; what one task holds in memory as rows is two to four times as much
RANGE_BYTES = 16 << 20
BATCH_BYTES_MAX = 1 << 30
#: A task costs some 50 ms whatever it does; several for each core, since they are not equally long.
TASKS_PER_CORE = 4


class IngestedRows(Protocol):
    """What is ingested: WAL records or changes of tables. Picklable; raises SparkWalError."""

    @property
    def name(self) -> str:
        """wal or changes"""
        ...

    @property
    def schema(self) -> pa.Schema:
        """Of the batches that read() gives."""
        ...

    @property
    def time_column(self) -> str:
        """Which of them says the time, and thus the folder."""
        ...

    @property
    def dropped(self) -> frozenset[str]:
        """Columns that are read, but not wanted in the lake."""
        ...

    def system_id(self) -> int: ...

    def first_lsn(self) -> int:
        """Where a new lake begins."""
        ...

    def plan(self, start_lsn: int) -> Batch | None:
        """The next batch, at `start_lsn`; None when there is no whole record yet."""
        ...

    def for_batch(self, batch: Batch) -> IngestedRows:
        """The same, with what the executors must know of WAL before the batch."""
        ...

    def hold(self, start_lsn: int) -> None:
        """What a batch at `start_lsn` reads must not go away before it is committed."""
        ...

    def read(self, batch: Batch, start_lsn: int, end_lsn: int) -> Iterator[pa.RecordBatch]:
        """The rows of one of the batch's ranges. Runs on the executors."""
        ...


@dataclass(frozen=True, slots=True)
class RangeTask:
    """What a task does; it opens the lake's store itself, since connections do not travel."""

    rows: IngestedRows
    lake_url: str
    lake_options: tuple[tuple[str, str], ...] = field(repr=False)  # there are secrets among them
    batch: Batch

    def write(self, lsns: tuple[int, int]) -> Sequence[LakeFile]:
        store = open_store(self.lake_url, dict(self.lake_options))
        batches = self.rows.read(self.batch, *lsns)
        rows = self.rows
        return write_range(store, batches, rows.schema, lsns, rows.time_column, rows.dropped)


class Ingest:
    """One lake and what goes into it."""

    def __init__(
        self, session: SparkSession, rows: IngestedRows, lake_url: str, lake_options: dict[str, str]
    ) -> None:
        self._session = session
        self._rows = rows
        self._lake_url = lake_url
        self._lake_options = tuple(sorted(lake_options.items()))
        #: where the next batch begins; None until it has been looked up
        self._next_lsn: int | None = None
        self._held_lsn: int | None = None
        self.lake = Lake(open_store(lake_url, lake_options))

    def begin(self) -> Job:
        """Raises LakeError when the lake is of another cluster or has other columns."""
        rows = self._rows
        columns = tuple(name for name in rows.schema.names if name not in rows.dropped)
        return self.lake.begin(Job(rows.name, rows.system_id(), columns, rows.first_lsn()))

    def run_batch(self) -> CommittedBatch | None:
        """The next batch, or the one that was not finished; None when there is nothing new.

        Raises SparkWalError, ObjectStoreError.
        """
        start_lsn = self._begin_lsn() if self._next_lsn is None else self._next_lsn
        if start_lsn != self._held_lsn:
            self._rows.hold(start_lsn)
            self._held_lsn = start_lsn
        batch = self.lake.planned(start_lsn)
        if batch is None:
            batch = self._rows.plan(start_lsn)
            if batch is None:
                return None
            batch = self.lake.plan(batch)
        committed = self.lake.commit(batch, self._write(batch))
        self._next_lsn = batch.end_lsn
        return committed

    def run_once(self) -> Iterator[CommittedBatch]:
        """All there is now."""
        while (committed := self.run_batch()) is not None:
            yield committed

    def _begin_lsn(self) -> int:
        job, last = self.begin(), self.lake.last_commit()
        return job.start_lsn if last is None else last.batch.end_lsn

    def _write(self, batch: Batch) -> list[LakeFile]:
        self._rows = self._rows.for_batch(batch)
        task = RangeTask(self._rows, self._lake_url, self._lake_options, batch)
        context = self._session.sparkContext
        tasks = min(len(batch.ranges), TASKS_PER_CORE * context.defaultParallelism)
        ranges = context.parallelize(batch.ranges, tasks)
        files: list[LakeFile] = ranges.flatMap(task.write).collect()
        return sorted(files, key=lambda file: file.key)


def cut(start_lsn: int, end_lsn: int, range_bytes: int) -> tuple[tuple[int, int], ...]:
    """Ranges that end at multiples of `range_bytes`, of whole segments thus."""
    if end_lsn <= start_lsn:
        raise LakeError(f"no WAL between {format_lsn(start_lsn)} and {format_lsn(end_lsn)}")
    first = start_lsn - start_lsn % range_bytes + range_bytes
    inner = list(range(first, end_lsn, range_bytes))
    return tuple(zip([start_lsn, *inner], [*inner, end_lsn], strict=True))
