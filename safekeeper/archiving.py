"""Archiving of all timelines of a safekeeper: one archiver for each timeline that is awake.

    every half a second: which archivers have work? ──> workers
    every few seconds:   which timelines are new or deleted?

A timeline that sleeps has nothing to archive, so it costs nothing.
"""

from __future__ import annotations

from threading import Event, Thread

import structlog

from quorum_wal.objectstore.store import ObjectStore, open_store
from quorum_wal.safekeeper.archive_progress import ArchiveSettings
from quorum_wal.safekeeper.archive_workers import ArchiveWorkers
from quorum_wal.safekeeper.archived_wal import ArchivedWalReader
from quorum_wal.safekeeper.archiver import Archiver
from quorum_wal.safekeeper.timeline import Timeline
from quorum_wal.safekeeper.timelines import Timelines

log = structlog.get_logger()

POLL_SECONDS = 0.5
STOP_TIMEOUT_SECONDS = 5.0


class Archiving:
    """`update_readers`, called periodically, adds new timelines and removes those that were
    deleted or left."""

    def __init__(self, settings: ArchiveSettings, timelines: Timelines) -> None:
        """Raises ObjectStoreError if the URL or the options are invalid."""
        self._store: ObjectStore = open_store(settings.url, settings.options)
        self._timelines = timelines
        # A timeline that was left and joined again is another object: its log begins elsewhere.
        self._workers = ArchiveWorkers(settings.workers_max)
        self._archivers: dict[Timeline, Archiver] = {}  # used by `_thread` only
        self._readers: dict[Timeline, ArchivedWalReader] = {}
        self._stopping = Event()
        self._thread = Thread(target=self._run, name="archiving", daemon=True)
        self._thread.start()

    def update_readers(self) -> None:
        """Called by one thread."""
        present = {
            timeline
            for timeline in self._timelines.all()
            if timeline.control.active and not timeline.control.has_left
        }
        for timeline in present:
            if timeline not in self._readers:
                reader = self._readers[timeline] = ArchivedWalReader(timeline, self._store)
                timeline.read_archived = reader.read
        for timeline, reader in list(self._readers.items()):
            if reader.release() and timeline not in present:
                del self._readers[timeline]

    def close(self) -> None:
        """Waits a short time for uploads that run; the next archiver repeats unfinished ones."""
        self._stopping.set()
        self._thread.join()
        self._workers.close(STOP_TIMEOUT_SECONDS)
        for reader in self._readers.values():
            reader.close()

    def _run(self) -> None:
        reason = ""
        while not self._stopping.wait(POLL_SECONDS):
            try:
                self._offer_work()
            except Exception as error:  # bugs too: a thread that ended would report nothing
                if repr(error) != reason:
                    log.error("archiving could not look for work", reason=repr(error))
                reason = repr(error)

    def _offer_work(self) -> None:
        present = self._timelines.all()
        for removed in self._archivers.keys() - set(present):
            del self._archivers[removed]
        for timeline in self._timelines.awake():
            archiver = self._archiver_of(timeline)
            if archiver is None or self._workers.is_busy_with(archiver):
                continue
            if archiver.has_work():
                self._workers.offer(archiver)
        self._workers.replace_hanging()

    def _archiver_of(self, timeline: Timeline) -> Archiver | None:
        """None while the timeline is being created, or after it was left."""
        archiver, control = self._archivers.get(timeline), timeline.control
        is_active = control.active and not control.has_left
        if archiver is None and is_active and timeline.archive is not None:
            archiver = Archiver(timeline, self._store, timeline.archive)
            self._archivers[timeline] = archiver
        return archiver
