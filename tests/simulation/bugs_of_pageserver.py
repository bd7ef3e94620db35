"""Planted bugs of pageservers: of attachments, validation, deletion, garbage and scrubs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from generations.suffix import Suffix
from pageserver import attachment, deletion_queue, garbage, scrub, timeline_removal, validation
from pageserver.attachment import Attachment, Phase
from pageserver.attachment_events import (
    Condemn,
    IndexLoaded,
    LoadIndex,
    Mode,
    Publish,
)
from pageserver.attachment_id import Verdict
from pageserver.deletion_list import QueueHeader
from pageserver.deletion_queue import DeletionQueue
from pageserver.page_index import PageIndex
from pageserver.page_keys import FrameName, IndexName, LayerName
from pageserver.scrub import Orphans, Scrub, ScrubEnded
from pageserver.validation import AskService, ServiceAnswered, Validation

from .pageserver_process import Process
from .planting import Patch, plant_pageserver, plant_rare_pageserver

# ---- beginning


@plant_pageserver
def claim_ignored(patch: Patch) -> None:
    """It exists, but the service has given out the number."""
    claimed, refuse = Attachment._claimed, Attachment._refuse

    def naive(self: Attachment, message: str, *hint: str) -> None:
        if "has an index" in message:
            self.phase = Phase.LOADING
            self._actions.append(LoadIndex(self.index_name))
        else:
            refuse(self, message, *hint)

    created = DeletionQueue._header_created
    patch(Attachment, "_claimed", lambda self, _: claimed(self, self.incarnation))
    patch(Attachment, "_refuse", naive)
    patch(DeletionQueue, "_header_created", lambda self, n, _: created(self, n, self.incarnation))


@plant_pageserver
def index_above_the_own_suffix_taken(patch: Patch) -> None:
    """It is the newest of all."""
    patch(Attachment, "_choose", lambda _, names: max(names, default=None))


@plant_pageserver
def index_above_the_own_suffix_does_not_make_stale(patch: Patch) -> None:
    """The next validation will say it."""
    listed = Attachment._listed

    def naive(self: Attachment, names: Any, is_deleted: bool) -> None:
        listed(self, [name for name in names if name.suffix <= self.suffix], is_deleted)

    patch(Attachment, "_listed", naive)
    patch(validation, "verdict_of", lambda _: Verdict.VALID)


@plant_pageserver
def error_taken_for_absence(patch: Patch) -> None:
    """The index could not be read, so there is none."""
    failed = Attachment._failed

    def naive(self: Attachment, request: Any) -> None:
        if isinstance(request, LoadIndex) and self.phase is Phase.LOADING:
            self._activate(PageIndex())
        else:
            failed(self, request)

    patch(Attachment, "_failed", naive)


@plant_pageserver
def indices_listed_before_the_claim(patch: Patch) -> None:
    """Both are asked for at once; what comes first counts."""
    begin = Attachment._begin

    def naive(self: Attachment, event: Any) -> None:
        if isinstance(event, attachment.Begun):
            self._list()
        elif isinstance(event, attachment.IndicesListed) and self.phase is Phase.LISTING:
            self.early = event  # type: ignore[attr-defined]
            self.phase = Phase.CLAIMING
            begin(self, attachment.Begun())
        elif isinstance(event, attachment.Claimed) and self.phase is Phase.CLAIMING:
            begin(self, event)
            if self.phase is Phase.LISTING:
                self._actions.pop()
                begin(self, self.early)  # type: ignore[attr-defined]
        else:
            begin(self, event)

    patch(Attachment, "_begin", naive)


@plant_pageserver
def tombstone_not_looked_for(patch: Patch) -> None:
    listed = Attachment._listed
    patch(Attachment, "_listed", lambda self, names, _: listed(self, names, False))


@plant_pageserver
def local_state_adopted(patch: Patch) -> None:
    """What it had on its disk is there already, and the index of the store is older."""
    loaded, kept = Attachment._loaded, dict[Any, PageIndex]()
    stepped = Process.step_attached

    def naive(self: Attachment, index: PageIndex | None) -> None:
        local = kept.get(self.incarnation)
        if index is not None and local is not None and local.newest_end_lsn > index.newest_end_lsn:
            index = local
        loaded(self, index)

    def step(self: Process, there: Any, event: Any) -> None:
        disk = id(self.world), self.node_id, there.id.timeline
        if isinstance(event, IndexLoaded) and disk in kept:
            kept[there.core.incarnation] = kept[disk]
        stepped(self, there, event)
        if there.core.phase is Phase.ACTIVE:
            kept[disk] = there.core.desired

    patch(Attachment, "_loaded", naive)
    patch(Process, "step_attached", step)


# ---- writing


@plant_pageserver
def name_reused_within_a_generation(patch: Patch) -> None:
    """A layer is named by what it covers."""
    next_seq = Attachment._next_seq

    def naive(self: Attachment) -> int:
        return next_seq(self) // 4

    patch(Attachment, "_next_seq", naive)


@plant_pageserver
def own_generation_used_for_old_layers(patch: Patch) -> None:
    """All that an index names is of who writes it."""
    write = Attachment._write_index

    def naive(self: Attachment) -> None:
        layers = tuple(
            type(ref)(ref.end_lsn, ref.part, self.suffix, ref.seq, ref.size_bytes)
            for ref in self.desired.layers
        )
        if layers != self.desired.layers:
            index = self.desired
            self.desired = PageIndex(index.horizon_lsn, index.cuts, layers, index.frames)
        write(self)

    patch(Attachment, "_write_index", naive)


@plant_pageserver
def index_before_its_layers(patch: Patch) -> None:
    """They are on their way."""
    changed = Attachment._changed

    def naive(self: Attachment, change: Any) -> None:
        changed(self, change)
        if self._pending:
            self._pending[-1].missing.clear()
            self._apply()

    patch(Attachment, "_changed", naive)


@plant_pageserver
def stale_goes_on_uploading(patch: Patch) -> None:
    become_stale = Attachment._become_stale

    def naive(self: Attachment, kind: Any, message: str) -> None:
        writing, pending = self._writing, list(self._pending)
        become_stale(self, kind, message)
        self._writing = writing
        self._pending.extend(pending)

    patch(Attachment, "_become_stale", naive)
    patch(Attachment, "may_write", property(lambda self: self.phase is Phase.ACTIVE))


@plant_pageserver
def compaction_of_layers_that_are_gone(patch: Patch) -> None:
    """It names the new ones, and drops what is left of the old ones."""
    patch(attachment, "may_compact", lambda *_: True)


# ---- deleting


@plant_pageserver
def validate_before_index(patch: Patch) -> None:
    """What is dropped is condemned at once; the index that lacks it is on its way."""
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
    """It was written by this node, which meant it."""
    read = DeletionQueue._read

    def as_valid(self: DeletionQueue, name: Any, use: Any) -> None:
        read(self, name, deletion_queue._Use.EXECUTE)

    execute = DeletionQueue._execute

    def without_header(self: DeletionQueue, name: Any, deletions: Any) -> None:
        if all(each.suffix != name.suffix for each in self._headers):
            self._headers[deletion_queue.HeaderName(name.suffix, 0)] = QueueHeader("")
        execute(self, name, deletions)

    patch(DeletionQueue, "_read", as_valid)
    patch(DeletionQueue, "_execute", without_header)


@plant_rare_pageserver
def a_header_speaks_for_lists_of_other_processes(patch: Patch) -> None:
    """They have one folder, and one sequence."""
    of = deletion_queue._Round.of

    def naive(listing: Any, now: Any) -> Any:
        found = of(listing, now)
        suffixes = {name.suffix for name in found.lists}
        return replace(found, headers=dict.fromkeys(suffixes, now))

    execute = DeletionQueue._execute

    def executed(self: DeletionQueue, name: Any, deletions: Any) -> None:
        self._headers.setdefault(deletion_queue.HeaderName(name.suffix, 0), self.header)
        execute(self, name, deletions)

    patch(DeletionQueue, "_execute", executed)
    patch(deletion_queue._Round, "of", naive)


@plant_pageserver
def a_stale_attachment_is_not_dropped_from_a_list(patch: Patch) -> None:
    """The list is valid, as the node is."""
    validated = DeletionQueue._validated

    def naive(self: DeletionQueue, ticket: int, verdicts: Any) -> None:
        validated(self, ticket, dict.fromkeys(verdicts, Verdict.VALID))

    patch(DeletionQueue, "_validated", naive)


@plant_rare_pageserver
def what_was_stale_is_forgotten_with_its_list(patch: Patch) -> None:
    """The list is removed: but a late request brings it back."""
    forget = DeletionQueue._forget

    def naive(self: DeletionQueue, name: Any) -> None:
        forget(self, name)
        left = frozenset().union(*self._lists.values())
        self.header = replace(self.header, invalid=self.header.invalid & left)

    patch(DeletionQueue, "_forget", naive)


@plant_pageserver
def validated_without_having_been_in_the_store(patch: Patch) -> None:
    """All lists that exist when the answer comes are validated by it."""
    validated = DeletionQueue._validated

    def naive(self: DeletionQueue, ticket: int, verdicts: Any) -> None:
        self._asked_seq = self._list_seq
        validated(self, ticket, {**dict.fromkeys(self.unvalidated, Verdict.VALID), **verdicts})

    patch(DeletionQueue, "_validated", naive)


@plant_pageserver
def no_grace_for_readers(patch: Patch) -> None:
    begin = DeletionQueue.__init__
    patch(DeletionQueue, "__init__", lambda self, suffix, name, _: begin(self, suffix, name, 0))


# ---- validation


@plant_pageserver
def missing_means_valid(patch: Patch) -> None:
    """The service says nothing of it: it does not know, and has no objection."""
    answered = Validation._answered

    def naive(self: Validation, answer: ServiceAnswered) -> Any:
        asked = () if self._round is None else self._round.attachments
        known = {validation.tenant_generation(each): True for each in asked}
        return answered(self, replace(answer, tenants={**known, **answer.tenants}))

    patch(Validation, "_answered", naive)
    patch(validation, "verdict_of", lambda _: Verdict.VALID)


@plant_pageserver
def validation_is_cached(patch: Patch) -> None:
    """The service is asked now and then, and what it said is good until then."""
    step = Validation.step

    def naive(self: Validation, event: Any) -> Any:
        actions = step(self, event)
        known = getattr(self, "known", {})
        if isinstance(event, ServiceAnswered) and event.is_node_valid:
            self.known = {**known, **event.tenants}  # type: ignore[attr-defined]
        for action in actions:
            if isinstance(action, AskService) and all(known.get(t) for t in action.tenants):
                answer = ServiceAnswered(action.ticket, True, known)
                return [actions[0], *step(self, answer)]
        return actions

    patch(Validation, "step", naive)
    patch(validation, "verdict_of", lambda _: Verdict.VALID)


@plant_pageserver
def claims_above_are_not_looked_for(patch: Patch) -> None:
    """The service has said that it is valid."""
    patch(validation, "verdict_of", lambda _: Verdict.VALID)


@plant_pageserver
def projected_value_published(patch: Patch) -> None:
    """What is in the store is in the store."""
    uploaded = Attachment._index_uploaded

    def naive(self: Attachment, name: IndexName) -> None:
        uploaded(self, name)
        self._actions.append(Publish(self.projected_lsn))

    patch(Attachment, "_index_uploaded", naive)


@plant_pageserver
def projected_value_of_after_the_call_published(patch: Patch) -> None:
    """The answer says that it is valid now."""
    validated = Attachment._validated

    def naive(self: Attachment, ticket: int, verdict: Verdict) -> None:
        self._asked_lsn = self.projected_lsn
        validated(self, ticket, verdict)

    patch(Attachment, "_validated", naive)


# ---- garbage


@plant_pageserver
def horizon_goes_back(patch: Patch) -> None:
    """To what the clock of another host says."""

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
def layers_below_the_horizon_go(patch: Patch) -> None:
    """Nobody asks for what was before: but what is there now was made then."""
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
    """What is named by an index that comes between is not seen."""
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
    """One index could not be read: what the others do not name is garbage."""
    step = Scrub.step

    def naive(self: Scrub, event: Any) -> list[Any]:
        if isinstance(event, scrub.ScrubFailed) and self._unread and not self.is_ended:
            self.is_ended = True
            return [Orphans(tuple(self._candidates)), ScrubEnded("")]
        return step(self, event)

    patch(Scrub, "step", naive)
    patch(Attachment, "is_needed", lambda *_: False)


@plant_pageserver
def what_is_on_its_way_is_an_orphan(patch: Patch) -> None:
    """No index names it; and the grace is short."""
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
def orphans_are_never_looked_for(patch: Patch) -> None:
    """What is leaked is a few objects."""
    patch(Process, "scrub", lambda *_: None)
