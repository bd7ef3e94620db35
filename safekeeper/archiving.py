"""Archiving of all timelines of a safekeeper: one archiver each, as long as it is there."""

from __future__ import annotations

from threading import Event, Thread

from consensus.ids import TimelineId
from objectstore.store import ObjectStore, open_store
from safekeeper.archive_progress import ArchiveSettings
from safekeeper.archived_wal import ArchivedWalReader
from safekeeper.archiver import Archiver
from safekeeper.timeline import Timeline
from safekeeper.timelines import Timelines

STOP_TIMEOUT_SECONDS = 5.0


class Archiving:
    """`attend`, called now and then, starts archivers and lets those of deleted timelines go."""

    def __init__(self, settings: ArchiveSettings, timelines: Timelines) -> None:
        """Raises ObjectStoreError: the URL or the options make no sense."""
        self._store: ObjectStore = open_store(settings.url, settings.options)
        self._timelines = timelines
        self._running: dict[TimelineId, tuple[Event, Thread]] = {}
        self._readers: dict[TimelineId, ArchivedWalReader] = {}

    def attend(self) -> None:
        present = {
            timeline.control.timeline: timeline
            for timeline in self._timelines.all()
            if timeline.control.active
        }
        for name in [name for name in self._running if name not in present]:
            stopping, _ = self._running.pop(name)
            stopping.set()
        for name, timeline in present.items():
            if name not in self._running:
                self._running[name] = self._start(timeline)
        for name, reader in list(self._readers.items()):
            if reader.release() and name not in present:
                del self._readers[name]

    def _start(self, timeline: Timeline) -> tuple[Event, Thread]:
        assert timeline.archive is not None
        reader = ArchivedWalReader(timeline, self._store)
        self._readers[timeline.control.timeline] = reader
        timeline.read_archived = reader.read
        stopping = Event()
        archiver = Archiver(timeline, self._store, timeline.archive)
        thread = Thread(target=archiver.run, args=(stopping,), name="archiver", daemon=True)
        thread.start()
        return stopping, thread

    def close(self) -> None:
        """What is on its way is waited for, not long: the next archiver uploads it again."""
        for stopping, _ in self._running.values():
            stopping.set()
        for _, thread in self._running.values():
            thread.join(STOP_TIMEOUT_SECONDS)
        for reader in self._readers.values():
            reader.close()
