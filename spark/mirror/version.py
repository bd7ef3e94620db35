"""`Versions`: the versions of a mirror. Each lists all files of all tables at one position.

    _mirror/job.json                        what is mirrored; never changes
    _mirror/versions/000000000017.json      one version; the last one is the current one
    _mirror/catalogs/0000000001A2B3C8.json  the catalog from which the WAL is followed
    public.orders/000000000017-0003-8b1f90ab.parquet
                                            rows of one bucket, written for version 17

Laws. A version is created whole, with a number that no other one has, after all of its files are
durable; so a reader sees all tables at one commit. It has all transactions up to `position`, and no
other. Whatever was killed, a batch is applied to a version exactly once, because the position is in
the version. If two processes write one mirror, one of them fails: the number is taken. Files that
only older versions have are deleted later, when no reader should need them any more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import pairwise
from typing import TypeVar

import msgspec

from quorum_wal.objectstore.store import ObjectStore
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.spark.changes.catalog import Catalog
from quorum_wal.spark.changes.table_definition import Definition
from quorum_wal.spark.errors import MirrorError

JOB = "_mirror/job.json"
VERSIONS = "_mirror/versions/"
CATALOGS = "_mirror/catalogs/"
FORMAT = 1
NUMBER_DIGITS = 12
LSN_DIGITS = 16
#: a table gets more buckets before it has twice as many
ROWS_PER_BUCKET = 200_000
#: How long files of an older version stay, for readers that have begun with it.
KEPT = timedelta(minutes=15)
#: Old versions are deleted after so many new ones.
CLEAN_EVERY = 20

_DATA_FILE = re.compile(rf"[^/]+/([0-9]{{{NUMBER_DIGITS}}})-[0-9]{{4,}}-[0-9a-z]+\.parquet")

T = TypeVar("T")


class TableFormat(StrEnum):
    """What other programs can read the tables as. The files are always Parquet."""

    PARQUET = "parquet"
    DELTA = "delta"
    ICEBERG = "iceberg"


@dataclass(frozen=True, slots=True)
class MirrorJob:
    """What a mirror has. `is_text`: all columns are strings."""

    format: int
    system_id: int
    database: str
    include: tuple[str, ...]
    exclude: tuple[str, ...]
    is_text: bool
    table_format: TableFormat


@dataclass(frozen=True, slots=True)
class MirrorFile:
    """A Parquet file; `path` is relative to the mirror. All its keys belong to `bucket`."""

    path: str
    bucket: int
    rows: int
    bytes: int

    @property
    def version(self) -> int:
        """The version for which it was written."""
        found = _DATA_FILE.fullmatch(self.path)
        return 0 if found is None else int(found[1])


@dataclass(frozen=True, slots=True)
class MirrorTable:
    """A table and its files. A partitioned table has none: its rows are in its partitions."""

    definition: Definition
    buckets: int = 1
    files: tuple[MirrorFile, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.definition['schema']}.{self.definition['table']}"

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def is_partitioned(self) -> bool:
        return bool(self.definition["kind"] == "partitioned table")


@dataclass(frozen=True, slots=True)
class SeenTransactions:
    """Which transactions the initial snapshot saw: of those that committed before `before_lsn`, on
    a primary, all but those from `xmax` on and the `running` ones; on a standby (`xmax` is None),
    all. What it did not see began after `since_lsn` on a primary."""

    before_lsn: int
    since_lsn: int
    xmax: int | None
    running: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Version:
    """`position` is the commit LSN of the last transaction that is included, whose time is
    `commit_time`; `batch` the number of the micro-batch that made it, for information."""

    number: int
    position: int
    commit_time: datetime | None
    batch: int | None
    catalog: str
    seen: SeenTransactions
    tables: tuple[MirrorTable, ...]

    def table(self, name: str) -> MirrorTable:
        """Raises MirrorError."""
        for each in self.tables:
            if each.name == name:
                return each
        names = ", ".join(sorted(each.name for each in self.tables)[:10]) or "none"
        raise MirrorError(
            f'the mirror has no table "{name}"',
            hint=f"Name it with its schema. The mirror has: {names}.",
        )

    def parts(self, name: str) -> list[MirrorTable]:
        """The table, or all its partitions that have rows of their own. Raises MirrorError."""
        table = self.table(name)
        if not table.is_partitioned:
            return [table]
        direct = [each for each in self.tables if each.definition.get("partition_of") == name]
        return [part for each in direct for part in self.parts(each.name)]

    def parents(self, definition: Definition) -> list[str]:
        """The partitioned tables above a table, the nearest first."""
        by_name = {each.name: each.definition for each in self.tables}
        return list(parents_of(definition, by_name))


def parents_of(definition: Definition, by_name: dict[str, Definition]) -> Iterator[str]:
    parent = definition.get("partition_of")
    while parent is not None:
        yield parent
        parent = by_name.get(parent, {}).get("partition_of")


class Versions:
    """`store` contains the mirror. Every method raises ObjectStoreError, MirrorError."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store

    def begin(self, job: MirrorJob) -> None:
        """Raises MirrorError if the store has a mirror of something else."""
        if self.store.create(JOB, msgspec.json.encode(job)):
            return
        found = self.job()
        if found == replace(job, table_format=found.table_format) != job:
            raise MirrorError(
                f"the mirror in {self.store.url} has the format {found.table_format}, "
                f"not {job.table_format}",
                hint=f"Use --format {found.table_format}, or name another folder.",
            )
        if found != job:
            raise MirrorError(
                f"{self.store.url} is another mirror: expected {job}, found {found}",
                hint="A mirror has tables of one database, with the same patterns and formats each "
                "time. Name another folder.",
            )

    def job(self) -> MirrorJob:
        return self._read(JOB, MirrorJob)

    def newest(self) -> Version | None:
        """The current version; None before the initial snapshot is complete."""
        keys = [info.key for info in self.store.list(VERSIONS)]
        return self._read(keys[-1], Version) if keys else None

    def numbered(self, number: int) -> Version:
        """Raises ObjectNotFound."""
        return self._read(_key(number), Version)

    def create(self, version: Version) -> None:
        """Makes it the current version, durably."""
        if not self.store.create(_key(version.number), msgspec.json.encode(version)):
            raise MirrorError(
                f"version {version.number} of {self.store.url} exists already",
                hint="Another process writes this mirror. Stop one of them.",
            )

    def clean(self, version: Version, now: datetime) -> None:
        """Deletes older versions, and the files that only they have. `now` is the current time by
        the store's clock, approximately; files are kept longer, not shorter, if it is early."""
        infos = list(self.store.list(VERSIONS))
        # A version is old since the next one exists, however long it was the current one.
        old = [info for info, later in pairwise(infos) if later.modified_at < now - KEPT]
        if not old:
            return
        kept = [self._read(info.key, Version) for info in infos[len(old) :]]
        used = {file.path for each in kept for table in each.tables for file in table.files}
        used |= {each.catalog for each in kept}
        for info in list(self.store.list("")):
            is_old = info.modified_at < now - KEPT and _is_of_earlier(info.key, version.number)
            if is_old and info.key not in used:
                self.store.delete(info.key)
        for info in old:
            self.store.delete(info.key)

    # ---- catalogs

    def put_catalog(self, catalog: Catalog) -> str:
        """Returns its key."""
        key = f"{CATALOGS}{catalog.lsn:0{LSN_DIGITS}X}.json"
        self.store.put(key, catalog.to_json())
        return key

    def get_catalog(self, version: Version) -> Catalog:
        """Raises CatalogError."""
        return Catalog.from_json(self.store.get(version.catalog), version.catalog)

    def _read(self, key: str, kind: type[T]) -> T:
        try:
            return msgspec.convert(msgspec.json.decode(self.store.get(key)), kind)
        except msgspec.MsgspecError as error:
            raise MirrorError(
                f'"{key}" in {self.store.url} is not of a mirror: {error}',
                hint="It is damaged, or another program or a newer version of sk wrote it.",
            ) from error


def following(version: Version, tables: Sequence[MirrorTable]) -> Version:
    """The next version, with the same position."""
    return replace(version, number=version.number + 1, tables=tuple(tables))


def describe(version: Version) -> str:
    """`version 17 at 0/1A2B3C8`"""
    return f"version {version.number} at {format_lsn(version.position)}"


def _key(number: int) -> str:
    return f"{VERSIONS}{number:0{NUMBER_DIGITS}}.json"


def _is_of_earlier(key: str, number: int) -> bool:
    """A catalog, or a data file that was written for a version before `number`. Other objects are
    not ours, whatever their names end with."""
    if key.startswith(CATALOGS):
        return True
    found = _DATA_FILE.fullmatch(key)
    return found is not None and int(found[1]) < number
