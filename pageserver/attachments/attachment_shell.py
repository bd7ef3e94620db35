"""`AttachmentShell`: executes the actions of the attachment core and returns the outcomes to it.

    event loop: core.step(event) -> actions       worker: the store answers -> next event

Law: actions are started in their order. Each request is answered by one event: its outcome, or
Failed after a pause. The shell passes answers of the store to the core and decides nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar, assert_never

import structlog

from quorum_wal.objectstore.errors import ObjectDamaged
from quorum_wal.pageserver.attachments import attachment_events as events
from quorum_wal.pageserver.attachments import scrub as scrubbing
from quorum_wal.pageserver.attachments.attachment import Attachment, Phase
from quorum_wal.pageserver.attachments.compaction_shell import CompactionShell
from quorum_wal.pageserver.attachments.deletion_events import Condemned
from quorum_wal.pageserver.attachments.event_loop import EventLoop
from quorum_wal.pageserver.attachments.scrub import Scrub
from quorum_wal.pageserver.cuts.page_objects import PageObjects
from quorum_wal.pageserver.layers.fork_table import ForkTable
from quorum_wal.pageserver.objects.attachment_id import AttachmentId
from quorum_wal.pageserver.objects.page_index import Cut
from quorum_wal.pageserver.objects.page_keys import StoredName

T = TypeVar("T")

RETRY_SECONDS = 2.0

log = structlog.get_logger()


def missing_text(names: Sequence[StoredName]) -> str:
    """The problem as a sentence."""
    return (
        f"{len(names)} objects of its cuts are missing in the archive, the first is "
        f"{names[0].format()}: another program deleted them"
    )


class AttachmentListener(Protocol):
    """Receives the events of an attachment."""

    def activated(self, shell: AttachmentShell) -> None:
        """Its index is loaded: ingest may begin."""

    def ended(self, shell: AttachmentShell, message: str) -> None:
        """It was refused, it failed, or its timeline was deleted."""

    def condemned(self, condemned: Condemned) -> None:
        """Names for the deletion queue."""

    def published(self, shell: AttachmentShell, visible_lsn: int) -> None:
        """WAL below `visible_lsn` may be removed."""

    def stored(self, shell: AttachmentShell, change: int) -> None:
        """An index in the store names all objects of a change or of a merge."""


class AttachmentShell:
    """The shell of one attachment. Call its methods on the event loop."""

    def __init__(
        self,
        loop: EventLoop,
        core: Attachment,
        attachment_id: AttachmentId,
        objects: PageObjects,
        listener: AttachmentListener,
        grace_ms: int,
    ) -> None:
        self.core = core
        self.id = attachment_id
        self.objects = objects
        #: Messages for the administrator, newest last.
        self.alarms: list[str] = []
        self.refusal = ""
        self._loop = loop
        self._listener = listener
        self._grace_ms = grace_ms
        #: Merges layers; None until open_compaction().
        self.compaction: CompactionShell | None = None
        self._changes: dict[int, Sequence[Path]] = {}
        self._numbers = 0
        self._scrub: Scrub | None = None
        self._scrub_missing: tuple[StoredName, ...] = ()
        self._is_detached = False
        self._log = log.bind(timeline=str(attachment_id.timeline), suffix=str(core.suffix))

    def begin(self) -> None:
        self.step(events.Begun())

    def detach(self) -> None:
        """Stops the attachment: later events are ignored."""
        self._is_detached = True
        if self.compaction is not None:
            self.compaction.stop()

    def change(self, cut: Cut, base_backup_id: str, parts: Sequence[Path], frame: Path) -> int:
        """Takes the files of a replayed epoch. Returns the number of the change."""
        self._numbers += 1
        self._changes[self._numbers] = [*parts, frame]
        layers = tuple(
            events.NewLayer(cut.end_lsn, part, path.stat().st_size)
            for part, path in enumerate(parts)
        )
        frames = (events.NewFrame(cut.end_lsn, frame.stat().st_size),)
        self.step(events.Changed(self._numbers, cut, layers, frames, base_backup_id=base_backup_id))
        return self._numbers

    def open_compaction(self, folder: Path, base_forks: Callable[[], ForkTable | None]) -> None:
        """The compaction works below `folder`. `base_forks` returns the fork lengths in the base
        backup, or None while they are unknown."""
        self.compaction = CompactionShell(
            self._loop, self.core, self.objects, folder, base_forks, self.step
        )

    def begin_compaction(self) -> None:
        if self.compaction is not None:
            self._numbers += 1
            self.compaction.begin(self._numbers)

    @property
    def missing(self) -> tuple[StoredName, ...]:
        """The objects that the index names and that the last scrub did not find."""
        return tuple(name for name in self._scrub_missing if name in self.core.index.names)

    def begin_scrub(self) -> None:
        if self._scrub is None or self._scrub.is_ended:
            self.step(events.FreshIndexWanted())

    def step(self, event: events.Event) -> None:
        if self._is_detached:
            return
        was_active = self.core.phase is Phase.ACTIVE
        actions = self.core.step(event)
        if self.core.phase is Phase.ACTIVE and not was_active:
            self._log.info("attached", cuts=len(self.core.index.cuts))
            self._listener.activated(self)
        for action in actions:
            self._execute(action)

    # ---- actions

    def _execute(self, action: events.Action) -> None:
        objects = self.objects
        match action:
            case events.CreateClaim(suffix, incarnation):
                self._ask(
                    action,
                    lambda: objects.create_claim(suffix, incarnation),
                    lambda found: self.step(events.Claimed(found)),
                )
            case events.ListIndices():
                # Check for the tombstone after listing: it is created before anything is deleted.
                self._ask(
                    action,
                    lambda: (objects.indices(), objects.is_deleted()),
                    lambda found: self.step(events.IndicesListed(*found)),
                )
            case events.LoadIndex(name):
                self._ask(
                    action,
                    lambda: objects.index(name),
                    lambda index: self.step(events.IndexLoaded(name, index)),
                    lambda error: self.step(events.IndexDamaged(name, str(error))),
                )
            case events.Upload(change, position, ref):
                path = self._path(change, position)
                self._ask(
                    action,
                    lambda: objects.upload(ref, path),
                    lambda _: self._uploaded(action),
                )
            case events.UploadIndex(name, index):
                self._ask(
                    action,
                    lambda: objects.create_index(name, index),
                    lambda _: self.step(events.IndexUploaded(name)),
                )
            case events.Condemn(names, hint):
                self._listener.condemned(Condemned(self.id, names, hint))
            case events.Publish(visible_lsn):
                self._listener.published(self, visible_lsn)
            case events.Stored(change):
                self._stored(change)
            case events.SurveyLayers() | events.MergeLayers():
                assert self.compaction is not None, "compaction was opened before it was due"
                self.compaction.execute(action)
            case events.FreshIndex(name):
                self._scrub = Scrub(self.core.suffix, name, self._grace_ms)
                self._step_scrub(self._scrub, scrubbing.ScrubBegun())
            case events.Refuse(message, hint):
                self.refusal = message
                self._log.error("the attachment was refused", reason=message, hint=hint)
                self._listener.ended(self, message)
            case events.Alarm(kind, message):
                self.alarms.append(f"{kind.value}: {message}")
                self._log.error("attachment", alarm=kind.value, reason=message)
                if self.core.phase is Phase.BROKEN or self.core.is_deleted:
                    self._listener.ended(self, message)
            case _:
                assert_never(action)

    def _stored(self, change: int) -> None:
        self._changes.pop(change, None)
        if self.compaction is not None:
            self.compaction.stored(change)
        self._listener.stored(self, change)

    def _path(self, change: int, position: int) -> Path:
        """The local file of a layer part or a frame."""
        of_merge = self.compaction.path(change, position) if self.compaction is not None else None
        return self._changes[change][position] if of_merge is None else of_merge

    def _uploaded(self, upload: events.Upload) -> None:
        if self.compaction is not None:
            self.compaction.uploaded(upload.change, upload.position)
        self.step(events.Uploaded(upload.ref.name))

    def _ask(
        self,
        request: events.Request,
        attempt: Callable[[], T],
        answered: Callable[[T], None],
        damaged: Callable[[ObjectDamaged], None] | None = None,
    ) -> None:
        def failed(error: Exception) -> None:
            if damaged is not None and isinstance(error, ObjectDamaged):
                damaged(error)
                return
            self._log.warning("a request to the object store failed; will retry", reason=str(error))
            again = partial(self.step, events.Failed(request))
            self._loop.call_later(RETRY_SECONDS, again)

        self._loop.work(attempt, answered, failed)

    # ---- scrubs

    def _step_scrub(self, scrub: Scrub, event: scrubbing.Event) -> None:
        if self._scrub is not scrub or self._is_detached:
            return
        for action in scrub.step(event):
            self._execute_scrub(scrub, action)

    def _execute_scrub(self, scrub: Scrub, action: scrubbing.Action) -> None:
        objects = self.objects

        def failed(error: Exception) -> None:
            self._step_scrub(scrub, scrubbing.ScrubFailed(str(error)))

        match action:
            case scrubbing.ListPages():
                self._loop.work(
                    objects.pages,
                    lambda found: self._step_scrub(scrub, scrubbing.PagesListed(found)),
                    failed,
                )
            case scrubbing.ReadIndex(name):
                self._loop.work(
                    lambda: objects.index(name),
                    lambda index: self._step_scrub(scrub, scrubbing.IndexRead(name, index)),
                    failed,
                )
            case scrubbing.Orphans(names):
                self._log.info("scrub found objects that no index names", objects=len(names))
                self.step(events.OrphansFound(names))
            case scrubbing.Missing(names):
                self._scrub_missing = names
                if self.missing:
                    self._log.error("objects are missing", reason=missing_text(self.missing))
            case scrubbing.ScrubEnded(problem):
                if problem:
                    self._log.warning("scrub was cancelled", reason=problem)
            case _:
                assert_never(action)
