"""A timeline that nobody uses sleeps: no file is open, no thread works for it, no timer asks it.

    awake ──nobody uses it, nothing is left to do──> asleep
    asleep ──a proposer, a reader, the scrub, the first check──> awake, loaded as after a start

What status, metrics and retention ask for stays in memory: the control state, positions, slots and
holes. The log itself is not looked at: whoever wakes it has its end decoded, as a start does.

Law: no vote is given and no byte served of a log that was not loaded since it was put away last.
Who uses a timeline holds it awake; it falls asleep under the lock that all of them take first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from safekeeper.archive_progress import ArchiverState
from storage.errors import StorageError

if TYPE_CHECKING:
    from safekeeper.timeline import Timeline

#: Long enough that a proposer which restarts, and a client that asks now and then, meet it awake.
IDLE_SECONDS = 60.0


class Sleep:
    """Of one timeline; changed under its lock. `load` finds the end of its log, `put_away` leaves
    nothing open, and raises StorageError when not all is on disk."""

    def __init__(
        self, timeline: Timeline, load: Callable[[], None], put_away: Callable[[], None]
    ) -> None:
        self._timeline = timeline
        self._load = load
        self._put_away = put_away
        self.is_asleep = False
        #: The end of its log was decoded since the start of the process.
        self.is_checked = False
        #: How many hold it awake, beside proposers.
        self._users = 0
        #: When somebody last did, by the monotonic clock.
        self._used_at = time.monotonic()
        self._wal_bytes = 0

    # ---- being used

    @contextmanager
    def held_off(self) -> Iterator[None]:
        """Inside the timeline is awake, if it can be."""
        self.hold_off()
        try:
            yield
        finally:
            self.let_come()

    def hold_off(self) -> None:
        """The timeline is awake until `let_come`, which is called as often."""
        with self._timeline.lock:
            self.end()
            self._users += 1  # not of one who could not wake it

    def let_come(self) -> None:
        with self._timeline.lock:
            self._users -= 1
            self.used()

    def wake(self) -> None:
        """For now: what is wrong with its log is known then."""
        with self._timeline.lock:
            self.end()

    def used(self) -> None:
        """The lock is held. Somebody used it just now."""
        self._used_at = time.monotonic()

    def end(self) -> None:
        """The lock is held. The timeline is loaded, if it was not."""
        timeline = self._timeline
        if not self.is_asleep:
            return
        if timeline.archive is not None and timeline.archive.state is ArchiverState.STARTING:
            # What was in the archive once may be gone: nothing is removed before it is seen.
            timeline.archive.archived_lsn = timeline.control.local_start_lsn
        self._load()
        self.is_asleep = False

    # ---- falling asleep

    def misses_wal(self) -> bool:
        """At a start, before anything was loaded: the end of its log was found damaged before, or
        a segment is not there whole, or cannot be asked for."""
        timeline, control = self._timeline, self._timeline.control
        if control.lost_lsn:
            return True
        try:
            store = timeline.new_store()
            return not store.is_whole(control.local_start_lsn, control.horizon_lsn)
        except StorageError:
            return True

    def begin(self) -> None:
        """The lock is held, or nobody else knows the timeline yet; nothing of it is open."""
        timeline = self._timeline
        timeline.store = timeline.new_store()  # without what another one remembers
        self._wal_bytes = timeline.store.size_bytes()
        self.is_asleep = True

    def begin_unseen(self) -> None:
        """At a start. How far it is archived is what was seen once, until it wakes."""
        archive, control = self._timeline.archive, self._timeline.control
        if archive is not None:
            archive.archived_lsn = max(control.archived_lsn, control.local_start_lsn)
        self.begin()

    def maybe_begin(self, idle_seconds: float) -> None:
        """When nobody has used it for so long, and nothing is left to do. Raises StorageError; then
        it stays awake, or has stopped."""
        if not self._is_due(idle_seconds):
            return
        with self._timeline.lock:
            if self._is_due(idle_seconds):  # else somebody came meanwhile
                self._timeline.store.remove_spares()
                self._put_away()
                self.begin()

    def _is_due(self, idle_seconds: float) -> bool:
        timeline = self._timeline
        if self.is_asleep or self._users or not timeline.is_at_rest:
            return False
        if time.monotonic() - self._used_at < idle_seconds:
            return False
        archive = timeline.archive
        if archive is None or not timeline.control.active:
            return True
        return archive.is_settled(timeline.positions.commit_lsn)

    # ---- what is told

    @property
    def wal_bytes(self) -> int:
        """What the timeline's segments occupy; where its folder cannot be read, what they did when
        it could. Others ask, too, and what is wrong with this one is not theirs to stop for: who
        needs its files next says so."""
        if not self.is_asleep:
            with suppress(StorageError):
                self._wal_bytes = self._timeline.store.size_bytes()
        return self._wal_bytes
