"""An unused timeline sleeps: it has no open file, no thread and no timer.

    awake ──unused, and nothing is left to do──> asleep
    asleep ──a proposer, a reader, the scrub, the first check──> awake, loaded as after a start

Status, metrics and retention use values that stay in memory: the control state, positions, slots
and holes. They do not read the log. A timeline that wakes decodes the end of its log, as at a
start.

Law: a log must be loaded after it was last closed before it votes or serves a byte. Users of a
timeline keep it awake; it goes to sleep under the lock that all of them take first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from quorum_wal.safekeeper.archive_progress import ArchiverState
from quorum_wal.storage.errors import StorageError

if TYPE_CHECKING:
    from quorum_wal.safekeeper.timeline import Timeline

#: Long enough to stay awake for a proposer that restarts, or for a client that asks periodically.
IDLE_SECONDS = 60.0


class Sleep:
    """Of one timeline; changed under its lock. `load` finds the end of its log. `save_and_close`
    leaves nothing open, and raises StorageError if not all is on disk."""

    def __init__(
        self, timeline: Timeline, load: Callable[[], None], save_and_close: Callable[[], None]
    ) -> None:
        self._timeline = timeline
        self._load = load
        self._save_and_close = save_and_close
        self.is_asleep = False
        #: The end of its log was decoded since the process started.
        self.is_checked = False
        #: The number of users that keep it awake, besides proposers.
        self._users = 0
        #: The time of the last use, by the monotonic clock.
        self._used_at = time.monotonic()
        self._wal_bytes = 0

    # ---- use

    @contextmanager
    def prevented(self) -> Iterator[None]:
        """Keeps the timeline awake inside the block, if it can be loaded."""
        self.prevent()
        try:
            yield
        finally:
            self.allow()

    def prevent(self) -> None:
        """Keeps the timeline awake until `allow`, which must be called as often."""
        with self._timeline.lock:
            self.end()
            self._users += 1  # after `end`: a failure to wake it does not count

    def allow(self) -> None:
        with self._timeline.lock:
            self._users -= 1
            self.used()

    def wake(self) -> None:
        """Loads the timeline once, so that damage of its log is found."""
        with self._timeline.lock:
            self.end()

    def used(self) -> None:
        """Records a use. The caller holds the lock."""
        self._used_at = time.monotonic()

    def end(self) -> None:
        """Loads the timeline if it is asleep. The caller holds the lock."""
        timeline = self._timeline
        if not self.is_asleep:
            return
        if timeline.archive is not None and timeline.archive.state is ArchiverState.STARTING:
            # The archive may have lost WAL: nothing is removed before the archive is read again.
            timeline.archive.archived_lsn = timeline.control.local_start_lsn
        self._load()
        self.is_asleep = False

    # ---- going to sleep

    def is_wal_missing(self) -> bool:
        """At a start, before anything is loaded: true if the log's end was found damaged before,
        or if a segment is missing, short or unreadable."""
        timeline, control = self._timeline, self._timeline.control
        if control.lost_lsn:
            return True
        try:
            store = timeline.new_store()
            return not store.is_whole(control.local_start_lsn, control.horizon_lsn)
        except StorageError:
            return True

    def begin(self) -> None:
        """The caller holds the lock, or is the only user of the timeline; all files are closed."""
        timeline = self._timeline
        timeline.store = timeline.new_store()  # without cached state
        self._wal_bytes = timeline.store.size_bytes()
        self.is_asleep = True

    def begin_unloaded(self) -> None:
        """At a start. Until it wakes, archived_lsn is the saved one."""
        archive, control = self._timeline.archive, self._timeline.control
        if archive is not None:
            archive.archived_lsn = max(control.archived_lsn, control.local_start_lsn)
        self.begin()

    def maybe_begin(self, idle_seconds: float) -> None:
        """Goes to sleep if unused for `idle_seconds` and nothing is left to do. Raises
        StorageError; then it stays awake, or has stopped."""
        if not self._is_due(idle_seconds):
            return
        with self._timeline.lock:
            if self._is_due(idle_seconds):  # it may have been used meanwhile
                self._timeline.store.remove_spares()
                self._save_and_close()
                self.begin()

    def _is_due(self, idle_seconds: float) -> bool:
        timeline = self._timeline
        if self.is_asleep or self._users or not timeline.is_idle:
            return False
        if time.monotonic() - self._used_at < idle_seconds:
            return False
        archive = timeline.archive
        if archive is None or not timeline.control.active:
            return True
        return archive.is_settled(timeline.positions.commit_lsn)

    # ---- reports

    @property
    def wal_bytes(self) -> int:
        """The size of the timeline's segments. If its folder cannot be read, the last known size:
        other timelines need the value, and must not fail because of this one. The next user of
        its files gets the error."""
        if not self.is_asleep:
            with suppress(StorageError):
                self._wal_bytes = self._timeline.store.size_bytes()
        return self._wal_bytes
