"""The scrub: slowly reads the cold segments of all timelines and finds damage.

It compares every byte with the checksums of the WAL that was written, and decodes every record with
its CRC. So it also finds damage that came from a donor of an older release. The segment that is
being written is not cold. Slices are small: the interpreter is held for less than a millisecond at
a time. The operator sets the rate.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import Event
from typing import Any

import structlog

from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.pgwal.segment import segno_of
from quorum_wal.safekeeper.errors import WalDamaged
from quorum_wal.safekeeper.read_wal import found_damage, read_wal
from quorum_wal.safekeeper.record_check import SLICE_BYTES, RecordCheck
from quorum_wal.safekeeper.timeline import Timeline
from quorum_wal.safekeeper.timeline_state import TimelineState
from quorum_wal.safekeeper.timelines import Timelines
from quorum_wal.storage.errors import StorageError

log = structlog.get_logger()

MEGABYTE = 1 << 20
RATE_MEGABYTES = 8.0
PERIOD_HOURS = 24.0
#: Between two checks whether a pass is due.
IDLE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class ScrubSettings:
    """The operator's settings; a rate of 0 disables the scrub."""

    bytes_per_second: float = RATE_MEGABYTES * MEGABYTE
    period_seconds: float = PERIOD_HOURS * 3600


DEFAULT_SCRUB = ScrubSettings()


class Scrub:
    """`run` uses a thread of its own, until `stopping`; others read the fields one at a time."""

    def __init__(self, timelines: Timelines, settings: ScrubSettings) -> None:
        self._timelines = timelines
        self._settings = settings
        self.scrubbed_bytes = 0
        self.passes_count = 0
        self.damages_count = 0
        #: The current timeline and lsn; "" between two passes.
        self.position = ""
        self.pass_began_at: datetime | None = None
        self.pass_ended_at: datetime | None = None

    def describe(self) -> dict[str, Any]:
        """For the status page."""
        began_at, ended_at = self.pass_began_at, self.pass_ended_at
        return {
            "bytes_per_second": self._settings.bytes_per_second,
            "period_seconds": self._settings.period_seconds,
            "position": self.position or None,
            "passes": self.passes_count,
            "scrubbed_bytes": self.scrubbed_bytes,
            "damages_found": self.damages_count,
            "pass_began_at": began_at.isoformat() if began_at is not None else None,
            "pass_ended_at": ended_at.isoformat() if ended_at is not None else None,
        }

    def run(self, stopping: Event) -> None:
        due = time.monotonic()
        while self._settings.bytes_per_second and not stopping.wait(IDLE_SECONDS):
            now = time.monotonic()
            if now >= due:
                due = now + self._settings.period_seconds
                self._pass(stopping)

    def _pass(self, stopping: Event) -> None:
        self.pass_began_at = datetime.now(UTC)
        before_bytes, before_damages = self.scrubbed_bytes, self.damages_count
        for timeline in self._timelines.all():
            try:
                self._scrub(timeline, stopping)
            except Exception as error:  # bugs too: the other timelines must still be scrubbed
                name = str(timeline.control.timeline)
                reason = str(error) if isinstance(error, StorageError) else repr(error)
                log.warning("scrub failed", timeline=name, reason=reason)
        self.position = ""
        if not stopping.is_set():
            self.passes_count += 1
            self.pass_ended_at = datetime.now(UTC)
            log.info(
                "scrub done",
                bytes=self.scrubbed_bytes - before_bytes,
                damages_found=self.damages_count - before_damages,
                seconds=round((self.pass_ended_at - self.pass_began_at).total_seconds()),
            )

    def _scrub(self, timeline: Timeline, stopping: Event) -> None:
        """Scrubs all segments that are cold now. Raises StorageError."""
        lsn = timeline.control.local_start_lsn
        lsn -= lsn % timeline.store.wal_seg_size
        if lsn >= cold_end_lsn(timeline):
            return  # a timeline that sleeps is not woken
        with timeline.sleep.prevented():
            self._scrub_from(timeline, lsn, stopping)

    def _scrub_from(self, timeline: Timeline, lsn: int, stopping: Event) -> None:
        while not stopping.is_set() and lsn < cold_end_lsn(timeline):
            try:
                lsn = self._scrub_run(timeline, lsn, stopping)
            except WalDamaged as damage:
                seg_size = timeline.store.wal_seg_size
                if segno_of(damage.lsn, seg_size) not in timeline.holes:
                    return  # it was removed meanwhile, or it became the lost end of the log
                lsn = damage.end_lsn + -damage.end_lsn % seg_size

    def _scrub_run(self, timeline: Timeline, lsn: int, stopping: Event) -> int:
        """Scrubs from a segment's start to a hole or to the cold end. Returns where the next run
        begins. Raises WalDamaged, StorageError."""
        store, seg_size = timeline.store, timeline.store.wal_seg_size
        while segno_of(lsn, seg_size) in timeline.holes:
            lsn += seg_size
        if lsn >= cold_end_lsn(timeline):
            return lsn
        facts = store.facts(timeline.control.local_start_lsn)
        check = RecordCheck(lambda at, length: read_wal(timeline, at, length), lsn, facts)
        while check.fed_lsn < cold_end_lsn(timeline) and not stopping.is_set():
            if segno_of(check.fed_lsn, seg_size) in timeline.holes:
                break
            self.position = f"{timeline.control.timeline} {format_lsn(check.fed_lsn)}"
            try:
                length = check.step()
            except WalDamaged as damage:
                self._found(timeline, damage)
                raise
            if not length:
                break  # removed, as retention allows
            self.scrubbed_bytes += length
            stopping.wait(SLICE_BYTES / self._settings.bytes_per_second)
        return int(max(check.fed_lsn, lsn + seg_size))

    def _found(self, timeline: Timeline, damage: WalDamaged) -> None:
        """Damage found by the checksums, which reported it already, or by the records."""
        if damage.lsn >= timeline.control.local_start_lsn:
            self.damages_count += 1
            found_damage(timeline, damage)


def cold_end_lsn(timeline: Timeline) -> int:
    """The start of the segment with the newest committed byte; 0 if the log was left."""
    if timeline.state is TimelineState.LEFT:
        return 0
    positions = timeline.positions
    lsn = min(positions.commit_lsn, positions.flush_lsn)
    return lsn - lsn % timeline.store.wal_seg_size
