"""`FileWriter`: writes the files of a new version with Spark, one round of a batch after the other.

    step: empty, or rewrite for another definition or more buckets
    rows of the round --keyed, folded, merged--> the new files of the buckets that have changes

A small batch is read by one task, which then has all changes of each key, and folds them without a
shuffle.

Law: a round returns after all of its files are durable. Files of other buckets stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import uuid4

from quorum_wal.spark.jobs.replay_table import escaped, families_of
from quorum_wal.spark.mirror.batch_plan import Step, name_of
from quorum_wal.spark.mirror.schema_change import ColumnSource, column_sources
from quorum_wal.spark.mirror.table_columns import columns_of
from quorum_wal.spark.mirror.table_files import TableFiles
from quorum_wal.spark.mirror.table_tasks import (
    BucketId,
    Keyed,
    Net,
    RoundTables,
    family_id,
    task_of,
    task_of_bucket,
)
from quorum_wal.spark.mirror.version import ROWS_PER_BUCKET, MirrorFile, MirrorTable

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import DataFrame, SparkSession

BYTES_PER_BUCKET = 64 << 20
#: changes that one task folds
ROWS_PER_TASK = 50_000
TASKS_PER_CORE = 2
#: a condition for each table is planned faster than a join, if they are few
CONDITIONS_MAX = 16

_PARTS = "table_number int, schema string, table string, after_place string, until_place string"
_COLUMNS = ("commit_lsn", "lsn", "seq", "operation", "key", "new", "old")
_PLACE = "concat(lpad(hex(commit_lsn), 16, '0'), lpad(hex(lsn), 16, '0'), lpad(hex(seq), 8, '0'))"


class FileWriter:
    """Writes for one version. Every method raises MirrorError, ObjectStoreError."""

    def __init__(
        self,
        session: SparkSession,
        url: str,
        store_options: tuple[tuple[str, str], ...],
        version: int,
        *,
        is_text: bool,
    ) -> None:
        self._session = session
        self._url = url
        self._store_options = store_options
        self._version = version
        self._is_text = is_text

    def run_round(
        self,
        tables: list[MirrorTable],
        steps: Mapping[int, Step],
        rows: DataFrame,
        counts: Mapping[str, int],
    ) -> int:
        """Replaces the tables that change in `tables`. `counts` are the changes of each table in
        the whole batch. Returns the number of changes that were applied."""
        for number, step in steps.items():
            tables[number] = self._prepared(tables[number], step)
        changing = {}
        for number, step in steps.items():
            count = counts.get(name_of(step.definition), 0)
            if step.has_rows and count:
                tables[number] = self._with_room(tables[number], count)
                changing[number] = count
        if not changing:
            return 0
        used = {number: steps[number] for number in changing}
        parts = _rows_of(self._session, used, rows)
        is_whole = all(step.is_whole for step in used.values())
        return self._merge(tables, parts, changing, is_whole=is_whole)

    def _prepared(self, table: MirrorTable, step: Step) -> MirrorTable:
        """The table before the changes of the step."""
        if step.is_emptied:
            return MirrorTable(step.definition)
        if step.before is None:
            return table
        sources = column_sources(step.before, step.definition)
        after = MirrorTable(step.definition, table.buckets, table.files)
        is_same = (
            table.name == after.name
            and self._files(table).columns == self._files(after).columns
            and step.before["key"] == step.definition["key"]
            and not any(source.labels for source in sources)
        )
        return after if is_same else self._rewritten(table, after, sources)

    def _with_room(self, table: MirrorTable, count: int) -> MirrorTable:
        """With enough buckets for `count` more rows."""
        rows = table.rows + count
        size = sum(file.bytes for file in table.files)
        wanted = max(rows / ROWS_PER_BUCKET, size / BYTES_PER_BUCKET)
        if wanted <= 2 * table.buckets:
            return table
        after = replace(table, buckets=int(wanted) + 1)
        sources = column_sources(table.definition, table.definition)
        return self._rewritten(table, after, sources)

    def _rewritten(
        self, table: MirrorTable, after: MirrorTable, sources: list[ColumnSource]
    ) -> MirrorTable:
        if not table.files:
            return after
        before, target = self._files(table), self._files(after)
        context = self._session.sparkContext
        numbered = context.parallelize(list(enumerate(table.files)), len(table.files))
        written: list[MirrorFile] = numbered.flatMap(
            lambda each: before.rewrite(each[1], each[0], target, sources)
        ).collect()
        return replace(after, files=tuple(sorted(written, key=lambda file: file.path)))

    def _merge(
        self,
        tables: list[MirrorTable],
        parts: DataFrame,
        counts: Mapping[int, int],
        *,
        is_whole: bool,
    ) -> int:
        """`is_whole`: `counts` are the numbers of rows in `parts`; otherwise there may be fewer."""
        found = RoundTables({number: self._files(tables[number]) for number in counts})
        rows, applied = parts.rdd, sum(counts.values())
        if is_whole and applied <= ROWS_PER_TASK and rows.getNumPartitions() == 1:
            written = self._written(found, rows.mapPartitions(found.keyed_and_folded), tables)
        else:
            keyed = rows.mapPartitions(found.keyed).persist()
            try:
                moved, families = _families(keyed)
                tasks = max(2, applied // ROWS_PER_TASK)
                net = (
                    keyed.map(lambda each: (task_of(each, families, tasks), each))
                    .partitionBy(tasks, _identity)
                    .mapPartitions(found.folded)
                )
                written, applied = self._written(found, net, tables), moved
            finally:
                keyed.unpersist()
        for number in counts:
            mine = {bucket: file for (of, bucket), file in written if of == number}
            kept = [file for file in tables[number].files if file.bucket not in mine]
            new = [file for file in mine.values() if file is not None]
            files = sorted((*kept, *new), key=lambda file: file.path)
            tables[number] = replace(tables[number], files=tuple(files))
        return applied

    def _written(
        self, found: RoundTables, net: RDD[tuple[BucketId, Net]], tables: list[MirrorTable]
    ) -> list[tuple[BucketId, MirrorFile | None]]:
        """The new files of the buckets that have net changes."""
        buckets = sum(tables[number].buckets for number in found.tables)
        cores = self._session.sparkContext.defaultParallelism
        mergers = min(buckets, TASKS_PER_CORE * cores)
        return (
            net.partitionBy(mergers, lambda bucket: task_of_bucket(bucket, mergers))
            .mapPartitions(found.merged)
            .collect()
        )

    def _files(self, table: MirrorTable) -> TableFiles:
        return TableFiles(
            self._url,
            self._store_options,
            table.name,
            columns_of(table.definition, is_text=self._is_text),
            tuple(table.definition["key"]),
            table.buckets,
            table.files,
            self._version,
            uuid4().hex[:8],
        )


def _rows_of(session: SparkSession, steps: Mapping[int, Step], rows: DataFrame) -> DataFrame:
    """The changes of the round, with the number of their table."""
    parts = [
        (number, step.definition["schema"], step.definition["table"],
         _text(step.after), _text(step.until))
        for number, step in steps.items()
    ]  # fmt: skip
    changes = rows.where("operation IN ('insert', 'update', 'delete')")
    if len(steps) <= CONDITIONS_MAX:
        return changes.selectExpr(f"CASE {_cases(steps)} END AS table_number", *_COLUMNS).where(
            "table_number IS NOT NULL"
        )
    placed = changes.selectExpr("*", f"{_PLACE} AS place")
    joined = placed.join(
        session.createDataFrame(parts, _PARTS).hint("broadcast"), ["schema", "table"]
    )
    return joined.where("place > after_place AND place < until_place").select(
        "table_number", *_COLUMNS
    )


def _cases(steps: Mapping[int, Step]) -> str:
    """SQL: the number of the table of a row, or NULL."""
    cases = []
    for number, step in steps.items():
        schema, table = (escaped(step.definition[name]) for name in ("schema", "table"))
        condition = f"schema = '{schema}' AND table = '{table}'"
        if not step.is_whole:
            condition += f" AND {_PLACE} > '{_text(step.after)}'"
            condition += f" AND {_PLACE} < '{_text(step.until)}'"
        cases.append(f"WHEN {condition} THEN {number}")
    return " ".join(cases)


def _text(place: tuple[int, int, int]) -> str:
    """As `_PLACE`. The texts are in the order of the places."""
    commit_lsn, lsn, seq = place
    return "" if commit_lsn < 0 else f"{commit_lsn:016X}{lsn:016X}{seq:08X}"


def _families(keyed: RDD[Keyed]) -> tuple[int, dict[str, str]]:
    """The number of changes, and the families of keys that updates change into each other: those
    are folded together. Such changes are rare, so the driver collects them."""
    found = keyed.mapPartitions(_moves).collect()
    return sum(count for count, _ in found), dict(families_of(m for _, each in found for m in each))


def _moves(changes: Iterable[Keyed]) -> Iterator[tuple[int, list[tuple[str, str]]]]:
    count, moves = 0, set()
    for number, change in changes:
        count += 1
        if change.old_key is not None:
            moves.add((family_id(number, change.old_key), family_id(number, change.key)))
    yield count, sorted(moves)


def _identity(number: int) -> int:
    return number
