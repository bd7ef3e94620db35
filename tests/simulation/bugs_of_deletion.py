"""Planted bugs of pageservers: the deletion queue, garbage, scrubs and removals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from quorum_wal.generations.suffix import Suffix
from quorum_wal.pageserver.attachments import (
    attachment,
    deletion_queue,
    garbage,
    scrub,
    timeline_removal,
)
from quorum_wal.pageserver.attachments.attachment import Attachment
from quorum_wal.pageserver.attachments.attachment_events import (
    Condemn,
    Mode,
)
from quorum_wal.pageserver.attachments.deletion_queue import DeletionQueue
from quorum_wal.pageserver.attachments.scrub import Orphans, Scrub, ScrubEnded
from quorum_wal.pageserver.objects.attachment_id import Verdict
from quorum_wal.pageserver.objects.deletion_list import QueueHeader
from quorum_wal.pageserver.objects.page_index import PageIndex
from quorum_wal.pageserver.objects.page_keys import FrameName, IndexName, LayerName

from .pageserver_process import Process
from .planting import Patch, plant_pageserver, plant_rare_pageserver

# ---- deleting


@plant_pageserver
def validate_before_index(patch: Patch) -> None:
    """Dropped objects are condemned at once, while the index without them is being uploaded."""
    write = Attachment._write_index

    def naive(self: Attachment) -> None:
        dropped, self._next.dropped = self._next.dropped, []
        if dropped and self.mode is Mode.SINGLE:
            self._actions.append(Condemn(tuple(dropped)))
        write(self)

    patch(Attachment, "_write_index", naive)


@plant_pageserver
def deletion_in_multi(patch: Patch) -> None:
    release = Attachment._release

    def naive(self: Attachment) -> None:
        mode = self.mode
        self.mode = Mode.SINGLE if mode is Mode.MULTI else mode
        release(self)
        self.mode = mode

    patch(Attachment, "_release", naive)


@plant_pageserver
def unvalidated_list_executed_after_a_restart(patch: Patch) -> None:
    """It was written by this node, so the node trusts it."""
    read = DeletionQueue._read

    def as_valid(self: DeletionQueue, name: Any, use: Any) -> None:
        read(self, name, deletion_queue._ReadPurpose.EXECUTE)

    execute = DeletionQueue._execute

    def without_header(self: DeletionQueue, name: Any, deletions: Any) -> None:
        if all(each.suffix != name.suffix for each in self._headers):
            self._headers[deletion_queue.HeaderName(name.suffix, 0)] = QueueHeader("")
        execute(self, name, deletions)

    patch(DeletionQueue, "_read", as_valid)
    patch(DeletionQueue, "_execute", without_header)


@plant_pageserver
def a_stale_attachment_is_not_dropped_from_a_list(patch: Patch) -> None:
    """The list is valid because the node is valid."""
    validated = DeletionQueue._validated

    def naive(self: DeletionQueue, ticket: int, verdicts: Any) -> None:
        validated(self, ticket, dict.fromkeys(verdicts, Verdict.VALID))

    patch(DeletionQueue, "_validated", naive)


@plant_rare_pageserver
def staleness_is_forgotten_with_the_list(patch: Patch) -> None:
    """The list is removed, but a late request creates it again."""
    forget = DeletionQueue._forget

    def naive(self: DeletionQueue, name: Any) -> None:
        forget(self, name)
        left = frozenset().union(*self._lists.values())
        self.header = replace(self.header, invalid=self.header.invalid & left)

    patch(DeletionQueue, "_forget", naive)


@plant_pageserver
def validated_without_having_been_in_the_store(patch: Patch) -> None:
    """The answer validates all lists that exist when it arrives."""
    validated = DeletionQueue._validated

    def naive(self: DeletionQueue, ticket: int, verdicts: Any) -> None:
        self._asked_seq = self._list_seq
        validated(self, ticket, {**dict.fromkeys(self.unvalidated, Verdict.VALID), **verdicts})

    patch(DeletionQueue, "_validated", naive)


@plant_pageserver
def no_grace_for_readers(patch: Patch) -> None:
    begin = DeletionQueue.__init__
    patch(DeletionQueue, "__init__", lambda self, suffix, name, _: begin(self, suffix, name, 0))


# ---- garbage


@plant_pageserver
def horizon_goes_back(patch: Patch) -> None:
    """The horizon moves to the time of another host's clock."""

    def naive(self: Attachment, now_unix_s: int) -> None:
        old = [c for c in self.desired.cuts if c.time_unix_s <= now_unix_s - self.history_seconds]
        horizon_lsn = max((cut.end_lsn for cut in old), default=0)
        if horizon_lsn != self.desired.horizon_lsn:
            index = self.desired
            before, frames = garbage.without_garbage(index, horizon_lsn)
            self.desired = PageIndex(horizon_lsn, before.cuts, before.layers, before.frames)
            self._next.dropped += [frame.name for frame in frames]
            self._write_index()

    patch(Attachment, "_collect", naive)


@plant_pageserver
def layers_below_the_horizon_are_deleted(patch: Patch) -> None:
    """No reader needs an older moment, but present pages were written then."""
    without_garbage = garbage.without_garbage

    def naive(index: PageIndex, horizon_lsn: int) -> Any:
        kept, frames = without_garbage(index, horizon_lsn)
        layers = tuple(layer for layer in kept.layers if layer.end_lsn >= kept.horizon_lsn)
        return PageIndex(kept.horizon_lsn, kept.cuts, layers, kept.frames), frames

    patch(attachment, "without_garbage", naive)


@plant_pageserver
def superseded_index_not_kept_for_its_readers(patch: Patch) -> None:
    """It is older than the grace."""

    def naive(modified_ms: Any, own: Suffix, now_ms: int, grace_ms: int) -> Any:
        mine = sorted(name for name in modified_ms if name.suffix == own)
        return {mine[-1]}

    patch(scrub, "kept_indices", naive)
    begin = DeletionQueue.__init__
    patch(DeletionQueue, "__init__", lambda self, suffix, name, _: begin(self, suffix, name, 0))


# ---- scrubs, removals


@plant_pageserver
def objects_listed_after_the_index_was_read(patch: Patch) -> None:
    """Objects that are named by an index created in between are not seen."""
    begin = Scrub.__init__
    step = Process._step_scrub

    def started(self: Scrub, suffix: Suffix, name: IndexName, _: int) -> None:
        begin(self, suffix, name, 0)

    def stepped(self: Process, there: Any, run: Scrub, event: Any) -> None:
        if isinstance(event, scrub.ScrubBegun):
            run.named = there.core.index.names  # type: ignore[attr-defined]
        step(self, there, run, event)

    def listed(self: Scrub, modified_ms: Any) -> list[Any]:
        self.is_ended = True
        found = [n for n in modified_ms if isinstance(n, LayerName | FrameName)]
        orphans = tuple(n for n in found if n not in self.named)  # type: ignore[attr-defined]
        return [Orphans(orphans), ScrubEnded("")]

    patch(Scrub, "__init__", started)
    patch(Scrub, "_listed", listed)
    patch(Process, "_step_scrub", stepped)
    patch(Attachment, "is_needed", lambda *_: False)


@plant_pageserver
def incomplete_scan_deletes(patch: Patch) -> None:
    """One index could not be read: objects that the others do not name count as garbage."""
    step = Scrub.step

    def naive(self: Scrub, event: Any) -> list[Any]:
        if isinstance(event, scrub.ScrubFailed) and self._unread and not self.is_ended:
            self.is_ended = True
            return [Orphans(tuple(self._candidates)), ScrubEnded("")]
        return step(self, event)

    patch(Scrub, "step", naive)
    patch(Attachment, "is_needed", lambda *_: False)


@plant_pageserver
def an_upload_in_progress_is_an_orphan(patch: Patch) -> None:
    """No index names it, and the grace is short."""
    begin = Scrub.__init__
    patch(Scrub, "__init__", lambda self, suffix, name, _: begin(self, suffix, name, 0))
    named = Attachment.is_needed

    def naive(self: Attachment, name: Any) -> bool:
        return isinstance(name, IndexName) and named(self, name)

    patch(Attachment, "is_needed", naive)


@plant_pageserver
def objects_deleted_before_the_tombstone(patch: Patch) -> None:
    """It is created when nothing else is left."""
    step = timeline_removal.TimelineRemoval.step

    def naive(self: timeline_removal.TimelineRemoval, event: Any) -> list[Any]:
        if isinstance(event, timeline_removal.RemovalBegun):
            return [timeline_removal.ListAll()]
        actions = step(self, event)
        if any(isinstance(action, timeline_removal.TimelineRemoved) for action in actions):
            return [timeline_removal.CreateTombstone()]
        return [] if isinstance(event, timeline_removal.TombstoneCreated) else actions

    patch(timeline_removal.TimelineRemoval, "step", naive)


@plant_pageserver
def orphans_are_never_searched(patch: Patch) -> None:
    """A few leaked objects remain."""
    patch(Process, "scrub", lambda *_: None)
