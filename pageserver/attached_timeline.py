"""`AttachedTimeline`: one timeline in a process: its attachment, and the thread that ingests it.

Law: events of the attachment are handled on the event loop. The ingest thread waits until an index
in the store names its cut.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Event
from typing import Protocol

import structlog

from quorum_wal.consensus.ids import TimelineId
from quorum_wal.generations.errors import GenerationRefused
from quorum_wal.generations.protocol import GenerationService
from quorum_wal.objectstore.archive import TimelineArchive
from quorum_wal.objectstore.store import ObjectStore
from quorum_wal.pageserver.attachments import deletion_events as deleting
from quorum_wal.pageserver.attachments.attachment import Attachment
from quorum_wal.pageserver.attachments.attachment_shell import AttachmentShell
from quorum_wal.pageserver.attachments.event_loop import EventLoop
from quorum_wal.pageserver.config import ProcessConfig
from quorum_wal.pageserver.cuts.page_objects import PageObjects
from quorum_wal.pageserver.epochs.epoch import EpochOutput
from quorum_wal.pageserver.ingest.ingest import Ingest
from quorum_wal.pageserver.objects.attachment_id import AttachmentId
from quorum_wal.pageserver.objects.page_index import Cut
from quorum_wal.pgwal.lsn import format_lsn

RETRY_SECONDS = 2.0

log = structlog.get_logger()


class TimelineOwner(Protocol):
    """Receives events that concern more than one timeline."""

    def condemned(self, condemned: deleting.Condemned) -> None: ...

    def found_deleted(self, timeline: TimelineId) -> None: ...

    def validate_soon(self) -> None: ...


class AttachedTimeline:
    """Call its methods on the event loop, except where a docstring says otherwise."""

    def __init__(
        self,
        owner: TimelineOwner,
        config: ProcessConfig,
        timeline: TimelineId,
        core: Attachment,
        loop: EventLoop,
        store: ObjectStore,
    ) -> None:
        self.timeline = timeline
        self.ingest: Ingest | None = None
        self._owner = owner
        self._config = config
        self._loop = loop
        self._store = store
        self._waiting: dict[int, Event] = {}
        grace_ms = int(config.grace_seconds * 1000)
        objects = PageObjects(store, timeline)
        attachment_id = AttachmentId(timeline, core.suffix)
        self.shell = AttachmentShell(loop, core, attachment_id, objects, self, grace_ms)

    def begin(self, service: GenerationService) -> None:
        """Registers the timeline with the service first, because a deleted id is never reused."""
        tenant, timeline = self.timeline.tenant_id.hex(), self.timeline.timeline_id.hex()

        def answered(_: object) -> None:
            self.shell.begin()

        def failed(error: Exception) -> None:
            if isinstance(error, GenerationRefused):
                self.refuse(error)
                return
            self._loop.call_later(RETRY_SECONDS, partial(self.begin, service))

        self._loop.work(lambda: service.create_timeline(tenant, timeline), answered, failed)

    def refuse(self, error: GenerationRefused) -> None:
        """The service refused the timeline. If a tombstone exists, the refusal is expected."""

        def checked(is_deleted: bool) -> None:
            if is_deleted:
                self._owner.found_deleted(self.timeline)

        self.shell.refusal = str(error)
        self.shell.detach()
        log.error("the timeline is not attached", reason=str(error), hint=error.hint)
        self._loop.work(self.shell.objects.is_deleted, checked, lambda _: None)

    def close(self) -> None:
        """Waits for the ingest thread; do not call it on the event loop."""
        for waiting in list(self._waiting.values()):
            waiting.set()
        if self.shell.compaction is not None:
            self.shell.compaction.stop()
        if self.ingest is not None:
            self.ingest.stop()

    # ---- events of the attachment

    def activated(self, shell: AttachmentShell) -> None:
        def opened(archive: TimelineArchive) -> None:
            folder = self._config.data_dir / str(self.timeline)
            self.ingest = ingest = Ingest(
                archive,
                shell.objects,
                lambda: shell.core.index,
                folder,
                self._config.ingest,
                self._hand_over,
                shell.core.suffix,
                lambda: shell.core.visible_lsn,
            )
            ingest.start()
            shell.open_compaction(folder, lambda: ingest.base_forks)

        def failed(error: Exception) -> None:
            log.warning("the object store is unavailable", reason=str(error))
            self._loop.call_later(RETRY_SECONDS, lambda: self.activated(shell))

        self._loop.work(lambda: TimelineArchive.open(self._store, self.timeline), opened, failed)

    def ended(self, shell: AttachmentShell, message: str) -> None:
        for waiting in self._waiting.values():
            waiting.set()
        if shell.core.is_deleted:
            self._loop.post(partial(self._owner.found_deleted, self.timeline))

    def condemned(self, condemned: deleting.Condemned) -> None:
        self._owner.condemned(condemned)

    def published(self, shell: AttachmentShell, visible_lsn: int) -> None:
        log.info(
            "WAL below this position may be removed",
            timeline=str(self.timeline),
            below=format_lsn(visible_lsn),
        )

    def stored(self, shell: AttachmentShell, change: int) -> None:
        self._owner.validate_soon()
        waiting = self._waiting.pop(change, None)
        if waiting is not None:
            waiting.set()

    # ---- calls of the ingest, on its thread

    def _hand_over(
        self, cut: Cut, base_backup_id: str, output: EpochOutput
    ) -> Callable[[float], bool | None]:
        stored = Event()

        def change() -> None:
            number = self.shell.change(cut, base_backup_id, output.parts, output.frame.path)
            self._waiting[number] = stored

        self._loop.post(change)

        def wait(seconds: float) -> bool | None:
            if stored.wait(seconds):
                return self.shell.core.index.newest_end_lsn >= cut.end_lsn
            return False if not self.shell.core.may_write else None

        return wait
