"""`Mirror`: applies batches of `pg_changes` to the tables of a mirror. A `foreachBatch` function.

    mirror = Mirror(session, "/srv/mirror")
    changes.writeStream.foreachBatch(mirror.apply).start()

    rows of a batch --net changes by key--> merged into the files of their buckets --> a new version
          Spark tasks                          Spark tasks                           the driver

Laws. A row is applied if its transaction committed after the version's position and the initial
snapshot did not see it; so a repeated batch has no effect. A row that could not be decoded, of a
mirrored table or of an unknown one, is an error, and nothing of its batch is applied. Rows do not
pass through the driver, except those that change definitions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from quorum_wal.objectstore.store import open_store
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.spark.changes.change_schema import Note
from quorum_wal.spark.errors import MirrorError, UndecodedChange
from quorum_wal.spark.jobs.replay_table import is_unseen
from quorum_wal.spark.jobs.table_base import Snapshot
from quorum_wal.spark.mirror.batch_plan import Event, TablePlan, name_of, plan_batch
from quorum_wal.spark.mirror.file_writer import FileWriter
from quorum_wal.spark.mirror.selection import Selection
from quorum_wal.spark.mirror.table_logs import open_log
from quorum_wal.spark.mirror.version import (
    CLEAN_EVERY,
    MirrorTable,
    Version,
    Versions,
    following,
)
from quorum_wal.spark.requirements import check_classic
from quorum_wal.spark.sources.shown_errors import shown_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_KIND = (
    "CASE WHEN commit_lsn IS NULL THEN 'note'"
    " WHEN operation = 'unknown' OR detail IS NOT NULL THEN 'undecoded'"
    " WHEN operation IN ('schema', 'truncate') THEN 'event'"
    " WHEN operation IN ('insert', 'update', 'delete') THEN 'change' END"
)
_USED = "commit_lsn, commit_time, lsn, seq, xid, operation, schema, table, key, new, old, detail"


@dataclass(frozen=True, slots=True)
class AppliedBatch:
    """`rows` counts the changes of mirrored tables; `version` is the current one after it."""

    version: Version
    rows: int


class Mirror:
    """Used by one thread. `on_applied` is called after each batch."""

    def __init__(
        self,
        session: SparkSession,
        url: str,
        store_options: dict[str, str] | None = None,
        on_applied: Callable[[AppliedBatch], None] = lambda _: None,
    ) -> None:
        """Raises UnsupportedSpark."""
        check_classic(session, "a mirror")
        self._session = session
        self._url = url
        self._store_options = tuple(sorted((store_options or {}).items()))
        self._on_applied = on_applied
        self.versions = Versions(open_store(url, store_options))
        self._job = self.versions.job()
        self._selection = Selection(self._job.include, self._job.exclude)
        self._log = open_log(self.versions)

    def newest(self) -> Version:
        """The current version. Raises MirrorError."""
        found = self.versions.newest()
        if found is None:
            raise MirrorError(
                f"{self._url} has no version: its initial snapshot is not complete",
                hint="sk spark mirror takes one.",
            )
        return found

    def apply(self, frame: DataFrame, batch: int) -> None:
        """Applies a batch of `pg_changes` with on_unknown=pass, for `foreachBatch`.

        Raises MirrorError, UndecodedChange, ObjectStoreError; then the mirror is unchanged.
        """
        version = self.newest()
        self.publish(version)
        rows = frame.where(_unapplied(version)).selectExpr(*_USED.split(", ")).persist()
        try:
            with shown_errors():
                applied = self._applied(version, rows, batch)
        finally:
            rows.unpersist()
        self.publish(applied.version)
        if applied.version.number % CLEAN_EVERY == 0:
            self.versions.clean(applied.version, datetime.now(UTC))
        self._on_applied(applied)

    def publish(self, version: Version) -> None:
        """Writes the logs of Delta or Iceberg, if the mirror has them, once for a version."""
        if self._log is not None:
            self._log.publish(version, int(datetime.now(UTC).timestamp() * 1000))

    def _applied(self, version: Version, rows: DataFrame, batch: int) -> AppliedBatch:
        summary = _Summary.of(rows)
        if summary.has_notes:
            _check_notes(version, rows)
        if summary.position is None:
            return AppliedBatch(version, 0)
        events = []
        if summary.has_events:
            found = rows.where("operation IN ('schema', 'truncate')").collect()
            events = [Event.of(row.asDict()) for row in found]
        plans = plan_batch([each.definition for each in version.tables], events, self._selection)
        if summary.has_undecoded:
            _check_decoded(rows, plans)
        tables = [
            MirrorTable(plan.steps[0].definition) if plan.index is None
            else version.tables[plan.index]
            for plan in plans
        ]  # fmt: skip
        count = 0
        files = FileWriter(
            self._session, self._url, self._store_options, version.number + 1,
            is_text=self._job.is_text,
        )  # fmt: skip
        for number in range(max((len(plan.steps) for plan in plans), default=0)):
            steps = {
                index: plan.steps[number]
                for index, plan in enumerate(plans)
                if number < len(plan.steps)
            }
            count += files.run_round(tables, steps, rows, summary.counts)
        made = [table for table, plan in zip(tables, plans, strict=True) if not plan.is_dropped]
        new = replace(
            following(version, made),
            position=summary.position,
            commit_time=summary.commit_time,
            batch=batch,
        )
        self.versions.create(new)
        return AppliedBatch(new, count)


@dataclass(frozen=True, slots=True)
class _Summary:
    """What a batch has, from one job. `position` is None without commits; `counts` are the changes
    of each table by its name."""

    position: int | None
    commit_time: datetime | None
    has_notes: bool
    has_undecoded: bool
    has_events: bool
    counts: Mapping[str, int]

    @classmethod
    def of(cls, rows: DataFrame) -> _Summary:
        grouped = rows.selectExpr("*", f"{_KIND} AS kind").groupBy("kind", "schema", "table")
        last = F.max(F.struct("commit_lsn", "commit_time")).alias("last")
        found = grouped.agg(F.count(F.lit(1)).alias("rows"), last).collect()
        kinds = {row.kind for row in found}
        ends = [row.last for row in found if row.last.commit_lsn is not None]
        newest = max(ends, key=lambda end: end.commit_lsn, default=None)
        return cls(
            None if newest is None else newest.commit_lsn,
            # Spark returns times without a zone, in the one of this process.
            None if newest is None else newest.commit_time.astimezone(UTC),
            "note" in kinds,
            "undecoded" in kinds,
            "event" in kinds,
            {f"{row.schema}.{row.table}": row.rows for row in found if row.kind == "change"},
        )


def _unapplied(version: Version) -> str:
    """SQL: rows that are not in the version yet."""
    seen = version.seen
    if seen.xmax is None:
        is_new = f"commit_lsn >= {seen.before_lsn}"
    else:
        unseen = is_unseen(Snapshot(0, seen.xmax, seen.running))
        is_new = f"(commit_lsn >= {seen.before_lsn} OR {unseen})"
    return f"commit_lsn IS NULL OR (commit_lsn > {version.position} AND {is_new})"


def _check_notes(version: Version, rows: DataFrame) -> None:
    """What is reported about the WAL itself. The initial snapshot of a primary saw all transactions
    that began before it."""
    seen = version.seen
    allowed = "false"
    if seen.xmax is not None:
        allowed = f"(seq = {Note.INCOMPLETE.value} AND lsn <= {seen.since_lsn})"
    note = rows.where(f"commit_lsn IS NULL AND NOT {allowed}").first()
    if note is not None:
        raise UndecodedChange(
            f"changes may be missing from the mirror: {note.detail}",
            hint="If that WAL is lost, begin a new mirror in another folder.",
        )


def _check_decoded(rows: DataFrame, plans: Sequence[TablePlan]) -> None:
    names = {name_of(step.definition) for plan in plans for step in plan.steps}
    undecoded = rows.where(
        "commit_lsn IS NOT NULL AND (operation = 'unknown' OR detail IS NOT NULL)"
    )
    for row in undecoded.orderBy("commit_lsn", "lsn", "seq").toLocalIterator():
        if row.table is None or f"{row.schema}.{row.table}" in names:
            of_table = "" if row.table is None else f" of {row.schema}.{row.table}"
            raise UndecodedChange(
                f"a change at {format_lsn(row.lsn)}{of_table} could not be decoded: {row.detail}",
                hint="Begin a new mirror in another folder, or exclude the table.",
            )
