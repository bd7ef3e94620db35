"""`AttachmentShell`: carries out what the core of an attachment orders, and tells it the outcome.

    turn:    core.step(event) -> actions          work:   the store answers -> the next turn

Law: actions are begun in their order, and every request is answered by an event: its outcome, or
Failed, after a pause. What the store says goes into the core as it is; this decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar, assert_never

import structlog

from objectstore.errors import ObjectDamaged
from pageserver.attachments import attachment_events as events
from pageserver.attachments import scrub as scrubbing
from pageserver.attachments.attachment import Attachment, Phase
from pageserver.attachments.compaction_shell import CompactionShell
from pageserver.attachments.deletion_events import Condemned
from pageserver.attachments.scrub import Scrub
from pageserver.attachments.turns import Turns
from pageserver.cuts.page_objects import PageObjects
from pageserver.layers.fork_table import ForkTable
from pageserver.objects.attachment_id import AttachmentId
from pageserver.objects.page_index import Cut

T = TypeVar("T")

RETRY_SECONDS = 2.0

log = structlog.get_logger()


class AttachmentListener(Protocol):
    """Who hears of an attachment."""

    def activated(self, shell: AttachmentShell) -> None:
        """Its index is known: work may begin."""

    def ended(self, shell: AttachmentShell, message: str) -> None:
        """It was refused, has broken, or its timeline was deleted."""

    def condemned(self, condemned: Condemned) -> None:
        """For the deletion queue."""

    def published(self, shell: AttachmentShell, visible_lsn: int) -> None:
        """WAL below may go."""

    def stored(self, shell: AttachmentShell, change: int) -> None:
        """All of a change, or of a merge, is in an index in the store."""


class AttachmentShell:
    """Of one attachment; its methods are called within turns."""

    def __init__(
        self,
        turns: Turns,
        core: Attachment,
        attachment_id: AttachmentId,
        objects: PageObjects,
        listener: AttachmentListener,
        grace_ms: int,
    ) -> None:
        self.core = core
        self.id = attachment_id
        self.objects = objects
        #: In words, of what an administrator should hear; newest last.
        self.alarms: list[str] = []
        self.refusal = ""
        self._turns = turns
        self._listener = listener
        self._grace_ms = grace_ms
        #: What merges layers, once it was opened.
        self.compaction: CompactionShell | None = None
        self._changes: dict[int, Sequence[Path]] = {}
        self._numbers = 0
        self._scrub: Scrub | None = None
        self._is_detached = False
        self._log = log.bind(timeline=str(attachment_id.timeline), suffix=str(core.suffix))

    def begin(self) -> None:
        self.step(events.Begun())

    def detach(self) -> None:
        """Nothing of it is done any more."""
        self._is_detached = True
        if self.compaction is not None:
            self.compaction.stop()

    def change(self, cut: Cut, base_backup_id: str, parts: Sequence[Path], frame: Path) -> int:
        """An epoch was replayed, and its files are there; the number of the change."""
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
        """It works below `folder`. `base_forks`: lengths in the base backup, once known."""
        self.compaction = CompactionShell(
            self._turns, self.core, self.objects, folder, base_forks, self.step
        )

    def begin_compaction(self) -> None:
        if self.compaction is not None:
            self._numbers += 1
            self.compaction.begin(self._numbers)

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
                # The tombstone is looked for behind the list: it comes before all else of it.
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
                assert self.compaction is not None, "it has said that a compaction is due"
                self.compaction.execute(action)
            case events.FreshIndex(name):
                self._scrub = Scrub(self.core.suffix, name, self._grace_ms)
                self._step_scrub(self._scrub, scrubbing.ScrubBegun())
            case events.Refuse(message, hint):
                self.refusal = message
                self._log.error("the attachment is refused", reason=message, hint=hint)
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
        """Of a part, or a frame, on the local disk."""
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
            self._log.warning("the store is asked again", reason=str(error))
            again = partial(self.step, events.Failed(request))
            self._turns.call_later(RETRY_SECONDS, again)

        self._turns.work(attempt, answered, failed)

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
                self._turns.work(
                    objects.pages,
                    lambda found: self._step_scrub(scrub, scrubbing.PagesListed(found)),
                    failed,
                )
            case scrubbing.ReadIndex(name):
                self._turns.work(
                    lambda: objects.index(name),
                    lambda index: self._step_scrub(scrub, scrubbing.IndexRead(name, index)),
                    failed,
                )
            case scrubbing.Orphans(names):
                self._log.info("a scrub found objects that nothing names", objects=len(names))
                self.step(events.OrphansFound(names))
            case scrubbing.ScrubEnded(problem):
                if problem:
                    self._log.warning("a scrub was broken off", reason=problem)
            case _:
                assert_never(action)
