"""A folder of Parquet files, and a log that makes sure that each record is ingested exactly once.

    _ingest/job.json                            what is ingested; never changes
    _ingest/plans/0000000001000000.json         the batch that begins there, with its ranges;
                                                written before any of its files
    _ingest/commits/0000000001000000.json       its files; written after all of them
    date=2026-11-21/hour=10/0000000001000000-0000000002000000.parquet
                                                the rows of that range and hour

Laws. The content and the name of a file depend on its range alone. A planned batch is written as
planned, however many attempts that takes. So if a driver is killed, its successor writes the same
files again, and two drivers at once write the same files. Readers of the folder ignore names that
begin with `_`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from quorum_wal.objectstore.errors import ObjectNotFound
from quorum_wal.objectstore.store import ObjectStore
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.spark.errors import LakeError

JOB = "_ingest/job.json"
PLANS = "_ingest/plans/"
COMMITS = "_ingest/commits/"
LSN_DIGITS = 16
#: Hive's name for a missing value; Spark and others read it as null
NONE = "__HIVE_DEFAULT_PARTITION__"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Job:
    """What a lake contains. `rows` is wal or changes."""

    rows: str
    system_id: int
    columns: tuple[str, ...]
    start_lsn: int


@dataclass(frozen=True, slots=True)
class Batch:
    """The records that start in [start_lsn, end_lsn), or the changes of transactions that commit
    there. Each range becomes one file for each hour."""

    start_lsn: int
    end_lsn: int
    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class LakeFile:
    """One Parquet file; `key` is relative to the lake."""

    key: str
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class CommittedBatch:
    """A batch and its files."""

    batch: Batch
    files: tuple[LakeFile, ...]


class Lake:
    """`store` contains the lake. Every method raises ObjectStoreError, LakeError."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store

    def begin(self, job: Job) -> Job:
        """The job of the lake: this one, or the same from an earlier start. Raises LakeError."""
        if self.store.create(JOB, msgspec.json.encode(job)):
            return job
        found = self._read(JOB, Job)
        self.require_same(found, job)
        return found

    def job(self) -> Job | None:
        """The job of an earlier start. Raises LakeError."""
        try:
            return self._read(JOB, Job)
        except ObjectNotFound:
            return None

    def require_same(self, found: Job, job: Job) -> None:
        """Raises LakeError if the job of the lake is not this one."""
        is_ours = (found.rows, found.system_id) == (job.rows, job.system_id)
        missing = [name for name in job.columns if name not in found.columns]
        if is_ours and missing:
            raise LakeError(
                f"lake {self.store.url} is of another job: it lacks the columns "
                f"{', '.join(missing)}",
                hint="A job with other columns or of an earlier version wrote it. It is still "
                "readable. Name another lake for new rows.",
            )
        if not is_ours or found.columns != job.columns:
            raise LakeError(
                f"lake {self.store.url} is of another job: expected {job}, found {found}",
                hint="A lake has the rows of one cluster, with one set of columns. Name another.",
            )

    def last_commit(self) -> CommittedBatch | None:
        keys = [info.key for info in self.store.list(COMMITS)]
        return self._read(keys[-1], CommittedBatch) if keys else None

    def commits(self) -> list[CommittedBatch]:
        return [self._read(info.key, CommittedBatch) for info in self.store.list(COMMITS)]

    def planned(self, start_lsn: int) -> Batch | None:
        """The batch that was planned there, and may be unfinished."""
        try:
            return self._read(_key(PLANS, start_lsn), Batch)
        except ObjectNotFound:
            return None

    def plan(self, batch: Batch) -> Batch:
        """Plans this batch. Returns the existing one if another driver has planned it."""
        if self.store.create(_key(PLANS, batch.start_lsn), msgspec.json.encode(batch)):
            return batch
        return self._read(_key(PLANS, batch.start_lsn), Batch)

    def commit(self, batch: Batch, files: Sequence[LakeFile]) -> CommittedBatch:
        committed = CommittedBatch(batch, tuple(files))
        self.store.create(_key(COMMITS, batch.start_lsn), msgspec.json.encode(committed))
        return committed

    def _read(self, key: str, kind: type[T]) -> T:
        try:
            return msgspec.convert(msgspec.json.decode(self.store.get(key)), kind)
        except msgspec.MsgspecError as error:
            raise LakeError(f'"{key}" in lake {self.store.url} is damaged: {error}') from error


def file_key(date: str | None, hour: int | None, start_lsn: int, end_lsn: int) -> str:
    """`file_key("2026-11-21", 10, ...) == "date=2026-11-21/hour=10/...-....parquet"`."""
    partition = f"date={date or NONE}/hour={NONE if hour is None else f'{hour:02}'}"
    return f"{partition}/{start_lsn:0{LSN_DIGITS}X}-{end_lsn:0{LSN_DIGITS}X}.parquet"


def _key(folder: str, lsn: int) -> str:
    return f"{folder}{lsn:0{LSN_DIGITS}X}.json"


def describe(batch: Batch) -> str:
    """`0/1000000 .. 0/2000000`"""
    return f"{format_lsn(batch.start_lsn)} .. {format_lsn(batch.end_lsn)}"
