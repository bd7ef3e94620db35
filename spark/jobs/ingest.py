"""`ingest`: writes WAL into a Parquet lake, once or continuously, each record exactly once.

    plan a batch -> executors write the files of its ranges -> commit -> next batch

Law: a planned batch is finished as planned before another one begins, even after a crash
(`lake.py`). Rows never pass through the driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from quorum_wal.objectstore.store import open_store
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.spark.errors import LakeError
from quorum_wal.spark.jobs.lake import Batch, CommittedBatch, Job, Lake, LakeFile
from quorum_wal.spark.jobs.lake_writer import write_range
from quorum_wal.spark.requirements import check_classic
from quorum_wal.spark.sources.shown_errors import shown_errors
from quorum_wal.spark.worker_memory import keep_memory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: in bytes of WAL; as rows in a task's memory they take two to four times as much
RANGE_BYTES = 16 << 20
BATCH_BYTES_MAX = 1 << 30
#: Many for each core, because their lengths differ: cores without a task wait for the last one.
TASKS_PER_CORE = 16


class IngestedRows(Protocol):
    """The rows to ingest: WAL records or changes of tables. Picklable; raises SparkWalError."""

    @property
    def name(self) -> str:
        """wal or changes"""
        ...

    @property
    def schema(self) -> pa.Schema:
        """The schema of the batches of read()."""
        ...

    @property
    def time_column(self) -> str:
        """The column with the time of a row, which determines its folder."""
        ...

    @property
    def dropped(self) -> frozenset[str]:
        """Columns that are read but not written to the lake."""
        ...

    def system_id(self) -> int: ...

    def first_lsn(self) -> int:
        """The position at which a new lake begins."""
        ...

    def plan(self, start_lsn: int) -> Batch | None:
        """The batch that begins at `start_lsn`; None if there is no whole record yet."""
        ...

    def for_batch(self, batch: Batch) -> IngestedRows:
        """A copy with the facts about earlier WAL that the executors need."""
        ...

    def hold(self, start_lsn: int) -> None:
        """Keeps the WAL that a batch at `start_lsn` reads, until that batch is committed."""
        ...

    def read(self, batch: Batch, start_lsn: int, end_lsn: int) -> Iterator[pa.RecordBatch]:
        """The rows of one range of the batch. Runs on the executors."""
        ...


@dataclass(frozen=True, slots=True)
class RangeTask:
    """Writes one range. Opens the lake's store itself, because connections cannot be pickled."""

    rows: IngestedRows
    lake_url: str
    lake_options: tuple[tuple[str, str], ...] = field(repr=False)  # may contain secrets
    batch: Batch

    def write(self, lsns: tuple[int, int]) -> Sequence[LakeFile]:
        keep_memory()
        store = open_store(self.lake_url, dict(self.lake_options))
        batches = self.rows.read(self.batch, *lsns)
        rows = self.rows
        with shown_errors():
            return write_range(store, batches, rows.schema, lsns, rows.time_column, rows.dropped)


class Ingest:
    """Ingests rows into one lake."""

    def __init__(
        self, session: SparkSession, rows: IngestedRows, lake_url: str, lake_options: dict[str, str]
    ) -> None:
        """Raises UnsupportedSpark."""
        check_classic(session, "an ingest")
        self._session = session
        self._rows = rows
        self._lake_url = lake_url
        self._lake_options = tuple(sorted(lake_options.items()))
        #: the start of the next batch; None until the lake has been read
        self._next_lsn: int | None = None
        self._held_lsn: int | None = None
        self.lake = Lake(open_store(lake_url, lake_options))

    def begin(self) -> Job:
        """Raises LakeError if the lake is of another cluster or has other columns."""
        return self.lake.begin(job_of(self._rows))

    def run_batch(self) -> CommittedBatch | None:
        """Runs the next batch, or the unfinished one; None if there is no new WAL.

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
        """Ingests all WAL that exists now."""
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


def check_lake(lake: Lake, rows: IngestedRows) -> None:
    """Raises the errors of begin() without a session, and writes nothing."""
    found = lake.job()
    job = job_of(rows)
    if found is not None:
        lake.require_same(found, job)


def job_of(rows: IngestedRows) -> Job:
    """Raises SparkWalError if the WAL cannot be read."""
    columns = tuple(name for name in rows.schema.names if name not in rows.dropped)
    return Job(rows.name, rows.system_id(), columns, rows.first_lsn())


def cut(start_lsn: int, end_lsn: int, range_bytes: int) -> tuple[tuple[int, int], ...]:
    """Ranges that end at multiples of `range_bytes`, and so at ends of segments."""
    if end_lsn <= start_lsn:
        raise LakeError(f"no WAL between {format_lsn(start_lsn)} and {format_lsn(end_lsn)}")
    first = start_lsn - start_lsn % range_bytes + range_bytes
    inner = list(range(first, end_lsn, range_bytes))
    return tuple(zip([start_lsn, *inner], [*inner, end_lsn], strict=True))
