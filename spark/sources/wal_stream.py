"""`readStream`: micro-batches of WAL between offsets.

    {"lsn": "0/3000028"}    {"lsn": "0/4800110"}    {"lsn": "0/5A2B3C8"}    up to commit_lsn
            |------- batch -------|------- batch -------|

Laws. An offset is a record boundary of committed WAL. Whatever happens to Postgres, the WAL below
it does not change, on any timeline. Spark keeps the offsets in its checkpoint; this module stores
none.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)

from quorum_wal.pgwal.errors import LsnSyntaxError
from quorum_wal.pgwal.lsn import Lsn, format_lsn
from quorum_wal.spark.errors import OptionError
from quorum_wal.spark.inputs.boundary import boundary_at, next_boundary
from quorum_wal.spark.inputs.wal_input import LostWal
from quorum_wal.spark.inputs.wal_reader import OnDamage, WalRange
from quorum_wal.spark.sources.input_options import InputOptions, slot_of
from quorum_wal.spark.sources.range_plan import plan_start, split
from quorum_wal.spark.sources.shown_errors import shown_errors
from quorum_wal.spark.sources.wal_task import WalTask, run_task

Offset = dict[str, str]

#: How long to wait for WAL after a gap: an archiver uploads several segments at once.
GAP_SECONDS = 10.0


class WalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Runs on the driver; Spark sends a copy to the executors, which call only read()."""

    def __init__(self, options: InputOptions) -> None:
        self._options = options
        self._input = options.wal_input
        self._slot = slot_of(options)
        self._target_lsn: int | None = None
        self._planned_lsn: int | None = None
        self._idle_until = 0.0
        self._waits_since: float | None = None

    def initialOffset(self) -> Offset:
        with shown_errors():
            facts = self._input.facts()
            newest_lsn = self._input.newest_lsn()
            start_lsn = plan_start(self._options, facts, newest_lsn)
            return _offset(boundary_at(self._input, facts, start_lsn, newest_lsn))

    def getDefaultReadLimit(self) -> ReadLimit:
        bytes_max = self._options.max_bytes_per_batch
        return ReadAllAvailable() if bytes_max is None else ReadMaxBytes(bytes_max)

    def prepareForTriggerAvailableNow(self) -> None:
        with shown_errors():
            self._target_lsn = self._input.newest_lsn()

    def reportLatestOffset(self) -> Offset:
        """The newest WAL, and how far the last planned batch is behind it. Spark only shows it."""
        with shown_errors():
            newest_lsn = self._input.newest_lsn()
            planned_lsn = newest_lsn if self._planned_lsn is None else self._planned_lsn
            return {**_offset(newest_lsn), "lag_bytes": str(max(0, newest_lsn - planned_lsn))}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """The end of the next batch; `start` itself if there is no new WAL."""
        with shown_errors():
            start_lsn = self._planned_lsn = _lsn(start)
            self._hold(start_lsn)
            end_lsn = self._available(start_lsn)
            if end_lsn <= start_lsn:
                return start
            bytes_max = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
            self._planned_lsn = self._boundary(start_lsn, end_lsn, bytes_max)
            return _offset(self._planned_lsn)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        with shown_errors():
            parts = self._parts(start, end)
            return [WalTask(part, self._options.wal_filter) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return run_task(self._options, partition)

    def commit(self, end: Offset) -> None:
        """Does nothing, because Spark calls it late or never; `_hold` does not need it."""

    # ---- parts

    def _parts(self, start: Offset, end: Offset) -> list[WalRange]:
        start_lsn, end_lsn = _lsn(start), _lsn(end)
        self._hold(start_lsn)
        whole = WalRange(start_lsn, end_lsn, end_lsn, is_boundary=True)
        return split(whole, self._input.facts(), self._options.partition_bytes)

    def _hold(self, start_lsn: int) -> None:
        """Spark asks for the next batch after it has committed the one before."""
        if self._slot is not None:
            self._slot.hold(start_lsn, self._input.facts().wal_seg_size)

    def _available(self, start_lsn: int) -> int:
        """The end of the WAL without a gap. If a gap at the start stays, the end of all WAL, so
        that the batch reports the gap."""
        while True:
            time.sleep(max(0.0, self._idle_until - time.monotonic()))
            end_lsn = self._input.extent(start_lsn)[1]
            newest_lsn = end_lsn
            if end_lsn <= start_lsn:
                newest_lsn = self._input.newest_lsn(start_lsn)
            if self._target_lsn is not None:
                end_lsn = min(end_lsn, self._target_lsn)
                newest_lsn = min(newest_lsn, self._target_lsn)
            if end_lsn > start_lsn:
                self._waits_since = None
                return end_lsn
            # Spark asks an idle stream again at once; a pause protects the source of the WAL.
            now = time.monotonic()
            self._idle_until = now + self._input.poll_seconds
            if newest_lsn <= start_lsn:
                self._waits_since = None
                return start_lsn
            self._waits_since = self._waits_since or now
            if now - self._waits_since > GAP_SECONDS:
                return newest_lsn
            if self._target_lsn is None:
                return start_lsn

    def _boundary(self, start_lsn: int, end_lsn: int, bytes_max: int | None) -> int:
        facts = self._input.facts()
        try:
            return next_boundary(self._input, facts, start_lsn, end_lsn, bytes_max)
        except LostWal:
            if self._options.on_damage is not OnDamage.SKIP:
                raise
            return start_lsn - start_lsn % facts.wal_seg_size + facts.wal_seg_size


def _offset(lsn: int) -> Offset:
    return {"lsn": format_lsn(lsn)}


def _lsn(offset: Mapping[str, str]) -> int:
    try:
        return int(Lsn.parse(offset["lsn"]))
    except (KeyError, TypeError, LsnSyntaxError) as error:
        raise OptionError(f"the checkpoint has an offset of another source: {offset}") from error
