"""Planted bugs of pageservers: attachments and validation. Those of deletion have their own
file."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from quorum_wal.pageserver.attachments import attachment, validation
from quorum_wal.pageserver.attachments.attachment import Attachment, Phase
from quorum_wal.pageserver.attachments.attachment_events import (
    IndexLoaded,
    LoadIndex,
    Publish,
)
from quorum_wal.pageserver.attachments.deletion_queue import DeletionQueue
from quorum_wal.pageserver.attachments.validation import AskService, ServiceAnswered, Validation
from quorum_wal.pageserver.objects.attachment_id import Verdict
from quorum_wal.pageserver.objects.page_index import PageIndex
from quorum_wal.pageserver.objects.page_keys import IndexName

from . import pageserver_world
from .pageserver_faults import KINDS, kill
from .pageserver_process import Process
from .planting import Patch, plant_pageserver, plant_rare_pageserver

# ---- beginning


@plant_pageserver
def claim_ignored(patch: Patch) -> None:
    """It exists, but the service has assigned the number."""
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
def error_taken_for_absence(patch: Patch) -> None:
    """The index could not be read, so it is taken as missing."""
    failed = Attachment._failed

    def naive(self: Attachment, request: Any) -> None:
        if isinstance(request, LoadIndex) and self.phase is Phase.LOADING:
            self._activate(PageIndex())
        else:
            failed(self, request)

    patch(Attachment, "_failed", naive)


@plant_pageserver
def indices_listed_before_the_claim(patch: Patch) -> None:
    """Both are requested at once; the first answer counts."""
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
def tombstone_not_checked(patch: Patch) -> None:
    listed = Attachment._listed
    patch(Attachment, "_listed", lambda self, names, _: listed(self, names, False))


@plant_pageserver
def local_state_adopted(patch: Patch) -> None:
    """The local disk has a newer state than the index in the store."""
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
    """The name of a layer contains only its range."""
    next_seq = Attachment._next_seq

    def naive(self: Attachment) -> int:
        return next_seq(self) // 4

    patch(Attachment, "_next_seq", naive)


@plant_pageserver
def own_generation_used_for_old_layers(patch: Patch) -> None:
    """All objects that an index names are attributed to the writer of the index."""
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
    """The layers are being uploaded."""
    changed = Attachment._changed

    def naive(self: Attachment, change: Any) -> None:
        changed(self, change)
        if self._pending:
            self._pending[-1].missing.clear()
            self._apply()

    patch(Attachment, "_changed", naive)


@plant_pageserver
def stale_pageserver_continues_to_upload(patch: Patch) -> None:
    become_stale = Attachment._become_stale

    def naive(self: Attachment, kind: Any, message: str) -> None:
        writing, pending = self._writing, list(self._pending)
        become_stale(self, kind, message)
        self._writing = writing
        self._pending.extend(pending)

    patch(Attachment, "_become_stale", naive)
    patch(Attachment, "may_write", property(lambda self: self.phase is Phase.ACTIVE))


# ---- validation


def service_alone(patch: Patch) -> None:
    """Not a bug: claims are not searched, and the service is always reachable and never restored
    from an old copy. Then the service alone is sufficient, so a broken law is caused by the bug
    that is planted besides."""
    others = dict.fromkeys(("put_service_back", "emergency", "late_claim"), kill)
    patch(pageserver_world, "KINDS", {**KINDS, **others})
    patch(validation, "verdict_of", lambda _: Verdict.VALID)


@plant_pageserver
def missing_means_valid(patch: Patch) -> None:
    """The service does not know the tenant, and does not reject it."""
    answered = Validation._answered

    def naive(self: Validation, answer: ServiceAnswered) -> Any:
        asked = () if self._round is None else self._round.attachments
        known = {validation.tenant_generation(each): True for each in asked}
        return answered(self, replace(answer, tenants={**known, **answer.tenants}))

    patch(Validation, "_answered", naive)
    service_alone(patch)


@plant_pageserver
def validation_is_cached(patch: Patch) -> None:
    """The service is asked only now and then, and its last answer is used in between."""
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
    service_alone(patch)


@plant_pageserver
def claims_above_are_not_searched(patch: Patch) -> None:
    """The service has confirmed that it is valid."""
    patch(validation, "verdict_of", lambda _: Verdict.VALID)


@plant_pageserver
def projected_value_published(patch: Patch) -> None:
    """The change is in the store."""
    uploaded = Attachment._index_uploaded

    def naive(self: Attachment, name: IndexName) -> None:
        uploaded(self, name)
        self._actions.append(Publish(self.projected_lsn))

    patch(Attachment, "_index_uploaded", naive)


@plant_rare_pageserver
def the_index_that_it_began_with_counts(patch: Patch) -> None:
    """It is in the store, and the claim is the newest, but an older one may write late."""
    activate = Attachment._activate

    def naive(self: Attachment, index: PageIndex) -> None:
        self.projected_lsn = index.newest_redo_lsn
        activate(self, index)

    patch(Attachment, "_activate", naive)


@plant_pageserver
def projected_value_from_after_the_call_published(patch: Patch) -> None:
    """The answer confirms that it is valid now."""
    validated = Attachment._validated

    def naive(self: Attachment, ticket: int, verdict: Verdict) -> None:
        self._asked_lsn = self.projected_lsn
        validated(self, ticket, verdict)

    patch(Attachment, "_validated", naive)
