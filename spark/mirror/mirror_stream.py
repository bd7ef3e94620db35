"""`MirrorStream`: takes the initial snapshot, and lets a stream of `pg_changes` follow it.

    no version yet   initial snapshot | the WAL has all that it saw -> version 1
    then             pg_changes from the position of the current version --foreachBatch--> Mirror

Laws. The position in the current version is the only state. Spark's checkpoint is temporary: a
restart begins a new stream at the position. Version 1 is created when the followed WAL has all that
the snapshot saw, on the timeline of its server, so that no failover can remove it. The catalog of
the version is advanced regularly, because a restart needs the WAL since that catalog.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from quorum_wal.objectstore.store import open_store
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.spark.changes.schema_search import SchemaSearch
from quorum_wal.spark.changes.undecoded_rows import OnUnknown
from quorum_wal.spark.errors import MirrorError, OptionError
from quorum_wal.spark.mirror.initial_snapshot import InitialSnapshot, Source, TakenSnapshot
from quorum_wal.spark.mirror.mirror import AppliedBatch, Mirror
from quorum_wal.spark.mirror.selection import Selection
from quorum_wal.spark.mirror.table_logs import check_format
from quorum_wal.spark.mirror.version import (
    FORMAT,
    MirrorJob,
    TableFormat,
    Version,
    Versions,
)
from quorum_wal.spark.reported_errors import is_slow_start
from quorum_wal.spark.requirements import check_streams
from quorum_wal.spark.sources.input_options import InputOptions
from quorum_wal.spark.sources.pg_changes_options import parse_input_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = structlog.get_logger()

#: A restart reads at most so much WAL before the position to know the definitions of tables.
ADVANCE_BYTES = 64 << 20
BATCH_BYTES = "512MB"
#: how often a continuous stream looks whether it must stop
POLL_SECONDS = 1
#: the wait for the WAL of the snapshot that is reported
REPORT_SECONDS = 10.0
#: in a row, without a batch
SLOW_STARTS_MAX = 5
#: options that the mirror sets itself
_RESERVED = ("catalog", "dsn", "table", "on_unknown", "start_lsn", "start_time", "on_damage")


@dataclass(frozen=True, slots=True)
class MirrorSettings:
    """`source` are options of `pg_changes`: where the WAL is. `dsn` is the server of the initial
    snapshot; None is allowed if the mirror exists."""

    url: str
    source: Mapping[str, str] = field(repr=False)
    dsn: str | None = field(default=None, repr=False)
    selection: Selection = Selection()  # noqa: RUF009
    store_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    is_text: bool = False
    table_format: TableFormat = TableFormat.PARQUET

    def __post_init__(self) -> None:
        for name in self.source:
            if name.lower() in _RESERVED:
                raise OptionError(
                    f"option {name} is not for a mirror",
                    hint="It begins at its position and fails on changes that it cannot decode.",
                )


@dataclass(frozen=True, slots=True)
class _FollowedCatalog:
    """The catalog of a version, and a search that goes on from there: a new search would read the
    WAL from the checkpoint before the catalog."""

    key: str
    lsn: int
    search: SchemaSearch


class MirrorStream:
    """One mirror, and where its changes come from. Methods raise SparkWalError and
    ObjectStoreError."""

    def __init__(self, settings: MirrorSettings, report_seconds: float = REPORT_SECONDS) -> None:
        """Raises UnsupportedSpark before a snapshot is taken."""
        check_streams()
        self._settings = settings
        self._report_seconds = report_seconds
        self._options: InputOptions = parse_input_options(settings.source, is_stream=True)
        self._versions = Versions(open_store(settings.url, dict(settings.store_options)))
        check_format(settings.table_format, self._versions.store)
        self._followed: _FollowedCatalog | None = None

    def exists(self) -> bool:
        """Whether the initial snapshot is complete."""
        return self._versions.newest() is not None

    def begin(self, on_waiting: Callable[[str], None] = lambda _: None) -> tuple[Version, bool]:
        """The current version, and whether it is the initial snapshot that was just taken.
        `on_waiting` is called if the WAL of the snapshot does not come."""
        settings, found = self._settings, self._versions.newest()
        if found is not None:
            job = self._versions.job()
            self._versions.begin(self._job(job.system_id, job.database))
            return found, False
        if settings.dsn is None:
            raise MirrorError(
                f"there is no mirror in {settings.url} yet, and no server for its first rows",
                hint="Give --dsn: the primary, a standby, or a restored server that is paused.",
            )
        taking = InitialSnapshot(
            settings.dsn, settings.selection, settings.url,
            tuple(sorted(settings.store_options.items())), settings.is_text,
        )  # fmt: skip
        source = taking.source()
        self._check_source(source)
        self._versions.begin(self._job(source.system_id, source.database))
        taken = taking.take(self._versions)
        self._wait_for(taken, on_waiting)
        self._versions.create(taken.version)
        return taken.version, True

    def run(
        self,
        session: SparkSession,
        *,
        interval: float | None,
        on_applied: Callable[[AppliedBatch], None],
        is_stopping: Callable[[], bool],
    ) -> None:
        """Applies all WAL that exists now, or, with `interval`, all that comes. Begins again at the
        position if Spark could not start its Python in time."""
        from pyspark.errors import StreamingQueryException

        slow_starts = 0

        def applied(batch: AppliedBatch) -> None:
            nonlocal slow_starts
            slow_starts = 0
            on_applied(batch)
            self._advanced(batch.version)

        while True:
            try:
                return self._follow(session, interval, applied, is_stopping)
            except StreamingQueryException as error:
                slow_starts += 1
                if not is_slow_start(error) or slow_starts == SLOW_STARTS_MAX:
                    raise
                log.warning("Spark could not start its Python in time; the stream begins again")

    def _follow(
        self,
        session: SparkSession,
        interval: float | None,
        applied: Callable[[AppliedBatch], None],
        is_stopping: Callable[[], bool],
    ) -> None:
        """One query, from the position of the current version."""
        version = self.begin()[0]
        mirror = Mirror(session, self._settings.url, dict(self._settings.store_options), applied)
        mirror.publish(version)
        version = self._advanced(version)
        with tempfile.TemporaryDirectory(prefix="sk-mirror-") as scratch:
            catalog = Path(scratch) / "catalog.json"
            catalog.write_bytes(self._versions.get_catalog(version).to_json())
            options = {
                "max_bytes_per_batch": BATCH_BYTES,
                **self._settings.source,
                "catalog": str(catalog),
                "start_lsn": format_lsn(version.position + 1),
                "on_unknown": OnUnknown.PASS.value,
            }
            changes = session.readStream.format("pg_changes").options(**options).load()
            writer = changes.writeStream.foreachBatch(mirror.apply).option(
                "checkpointLocation", f"{scratch}/checkpoint"
            )
            if interval is None:
                query = writer.trigger(availableNow=True).start()
            else:
                query = writer.trigger(processingTime=f"{interval} seconds").start()
            try:
                while not query.awaitTermination(POLL_SECONDS) and not is_stopping():
                    pass
            finally:
                query.stop()

    def _check_source(self, source: Source) -> None:
        """The server must have written the WAL, or replay it."""
        wal_input = self._options.wal_input
        system_id = wal_input.facts().system_id
        if source.system_id != system_id:
            raise MirrorError(
                f"the server of --dsn has system identifier {source.system_id}, "
                f"the WAL {system_id}",
                hint="Name the WAL of that server, or another server.",
            )
        tli, _ = wal_input.end()
        _check_timeline(source.tli, tli)

    def _wait_for(self, taken: TakenSnapshot, on_waiting: Callable[[str], None]) -> None:
        """Returns when the WAL has all transactions that the snapshot saw."""
        wal_input = self._options.wal_input
        begun, is_reported = time.monotonic(), False
        while True:
            wal_input.newest_lsn()  # asks another safekeeper if one makes no progress
            tli, lsn = wal_input.end()
            _check_timeline(taken.tli, tli)
            if lsn >= taken.end_lsn:
                return
            if not is_reported and time.monotonic() - begun > self._report_seconds:
                is_reported = True
                on_waiting(
                    f"the snapshot needs WAL up to {format_lsn(taken.end_lsn)}, the available WAL "
                    f"ends at {format_lsn(lsn)}; waiting for it"
                )
            time.sleep(wal_input.poll_seconds)

    def _job(self, system_id: int, database: str) -> MirrorJob:
        settings = self._settings
        return MirrorJob(
            FORMAT, system_id, database, settings.selection.include, settings.selection.exclude,
            settings.is_text, settings.table_format,
        )  # fmt: skip

    def _advanced(self, version: Version) -> Version:
        """With the catalog of its position, if the present one is much older."""
        wal_input, end_lsn = self._options.wal_input, version.position + 1
        followed = self._followed
        if followed is None or followed.key != version.catalog:
            catalog = self._versions.get_catalog(version)
            search = SchemaSearch(wal_input, catalog, self._options.on_damage)
            followed = self._followed = _FollowedCatalog(version.catalog, catalog.lsn, search)
        if version.position - followed.lsn < ADVANCE_BYTES:
            return version
        advanced = followed.search.advance(end_lsn, max(end_lsn, wal_input.newest_lsn()))
        key = self._versions.put_catalog(advanced)
        self._followed = replace(followed, key=key, lsn=advanced.lsn)
        made = replace(version, number=version.number + 1, catalog=key)
        self._versions.create(made)
        return made


def _check_timeline(tli: int | None, wal_tli: int) -> None:
    """Whether the WAL continues the rows of a server on timeline `tli`."""
    if tli not in (None, wal_tli):
        raise MirrorError(
            f"the server of --dsn is on timeline {tli}, the WAL ends on timeline {wal_tli}",
            hint="The WAL does not continue its rows: after a failover it is the old primary, or "
            "it was promoted apart, as a branch. Name the primary, a standby, or a server in "
            "paused recovery.",
        )
