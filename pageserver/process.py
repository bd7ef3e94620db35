"""`PageserverProcess`: one process of a node and its attachments, until it ends.

    register -> deletion queue -> attachments -> ingest          timers: validation, rounds of the
                                                                 queue, horizons, scrubs, the list
                                                                 of attachments

Laws. The process writes nothing before the generation service has assigned its node generation. It
asks the service for its attachments periodically. It begins new ones and ends those that are no
longer listed. A process that is not the newest of its node ends itself.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

import structlog

from quorum_wal.consensus.ids import TimelineId
from quorum_wal.generations.errors import GenerationRefused
from quorum_wal.generations.messages import (
    AttachmentMode,
    NodeAttachments,
    NodeRegistration,
    TenantAttachment,
)
from quorum_wal.generations.protocol import GenerationService
from quorum_wal.generations.suffix import Suffix
from quorum_wal.objectstore.archive import find_timelines
from quorum_wal.objectstore.store import ObjectStore
from quorum_wal.pageserver.attached_timeline import AttachedTimeline
from quorum_wal.pageserver.attachments import attachment_events as attaching
from quorum_wal.pageserver.attachments import deletion_events as deleting
from quorum_wal.pageserver.attachments.attachment import (
    AttachDecision,
    Attachment,
    Phase,
    decide_attach,
)
from quorum_wal.pageserver.attachments.attachment_events import Mode
from quorum_wal.pageserver.attachments.compaction_round import CompactionRound
from quorum_wal.pageserver.attachments.deletion_queue import DeletionQueue
from quorum_wal.pageserver.attachments.emergency_start import (
    AdvanceAnswer,
    EmergencyAttachments,
    EmergencyStart,
)
from quorum_wal.pageserver.attachments.event_loop import EventLoop
from quorum_wal.pageserver.attachments.queue_shell import QueueShell
from quorum_wal.pageserver.attachments.timeline_deletion import RemovedPages, remove_pages
from quorum_wal.pageserver.attachments.validation import ValidationDue
from quorum_wal.pageserver.attachments.validation_shell import ValidationShell
from quorum_wal.pageserver.config import ProcessConfig
from quorum_wal.pageserver.objects.attachment_id import AttachmentId, Verdict

T = TypeVar("T")

REGISTER_RETRY_SECONDS = 2.0
FULL_ROUND_SECONDS = 3600.0
#: By then, a request sent before has reached the store, or it never will.
LATE_SECONDS = 600.0
#: Delay after an index was written. A validation then releases WAL and deletes dropped objects.
VALIDATION_DELAY_SECONDS = 0.5
BEGINNING = (Phase.CLAIMING, Phase.LISTING, Phase.LOADING)
MODES = {AttachmentMode.SINGLE: Mode.SINGLE, AttachmentMode.MULTI: Mode.MULTI}

log = structlog.get_logger()


class PageserverProcess:
    """Call its methods on the event loop, except where a docstring says otherwise."""

    def __init__(
        self, config: ProcessConfig, loop: EventLoop, store: ObjectStore, service: GenerationService
    ) -> None:
        self.config = config
        self.incarnation = secrets.token_hex(16)
        self.node_generation = 0
        self.attached: dict[TimelineId, AttachedTimeline] = {}
        #: Timelines whose pages were permanently deleted.
        self.deleted: frozenset[TimelineId] = frozenset()
        self.queue: QueueShell | None = None
        #: Why this process ended itself: message and hint.
        self.end_reason: tuple[str, str] | None = None
        self.service_problem = "the generation service has not answered yet"
        #: "" unless it started in an emergency and the service does not know of that yet.
        self.emergency_notice = ""
        self._loop = loop
        self._store = store
        self._service = service
        self.validation = ValidationShell(loop, store, service, config.node_id, self)
        self._starts = 0
        self._compactions = CompactionRound()
        self._emergency = EmergencyStart(loop, store, service, config.node_id, self)

    # ---- start and end

    def start(self) -> None:
        if self.config.emergency_tenants is not None:
            self._emergency.begin(self.config.emergency_tenants)
            return
        self.ask_service(
            lambda: self._service.register_node(self.config.node_id, self.incarnation),
            self._registered,
            lambda: self._loop.call_later(REGISTER_RETRY_SECONDS, self.start),
        )

    def _registered(self, registration: NodeRegistration) -> None:
        self.node_generation = registration.node_generation
        log.info("registered", node_id=self.config.node_id, node_generation=self.node_generation)
        self._attach(registration.attachments)
        self._start_queue_and_timers()

    def _start_queue_and_timers(self) -> None:
        """The service knows this process: from here on it may delete objects and release WAL."""
        suffix = Suffix.pack(0, self.config.node_id, self.node_generation)
        core = DeletionQueue(suffix, self.incarnation, int(self.config.grace_seconds * 1000))
        self.queue = QueueShell(self._loop, core, self._store, self._hinted, self.end)
        self.queue.step(deleting.QueueBegun())
        config = self.config
        self._every(config.validation_seconds, self._validate)
        self._every(config.attachments_seconds, self._ask_attachments)
        self._every(config.round_seconds, lambda: self._step_queue(deleting.RoundDue()))
        self._every(FULL_ROUND_SECONDS, lambda: self._step_queue(deleting.FullRoundDue()))
        self._every(config.collect_seconds, self._collect)
        self._every(config.scrub_seconds, self._scrub)
        self._every(config.compact_seconds, self._compact)
        self._ask_attachments()

    def _every(self, seconds: float, call: Callable[[], None]) -> None:
        def due() -> None:
            call()
            self._loop.call_later(seconds, due)

        self._loop.call_later(seconds, due)

    def end(self, message: str, hint: str) -> None:
        log.critical("pageserver process ends itself", reason=message, hint=hint)
        self.end_reason = message, hint
        self._loop.end()

    def replaced(self) -> None:
        self.end(
            f"node {self.config.node_id} has a newer process than this one",
            "Give each pageserver a different --node-id. If the generation service was restored "
            "from an old copy, run sk generations advance.",
        )

    def close(self) -> None:
        """Call it after the event loop ended, on the same thread. Waits for all ingest threads."""
        for each in self.attached.values():
            each.close()

    # ---- the generation service

    def ask_service(
        self, ask: Callable[[], T], answered: Callable[[T], None], failed: Callable[[], None]
    ) -> None:
        def on_answer(answer: T) -> None:
            self.service_problem = ""
            answered(answer)

        def on_failure(error: Exception) -> None:
            if isinstance(error, GenerationRefused):
                self.end(str(error), error.hint)
                return
            words = " ".join(str(error).split())
            if words != self.service_problem:
                log.warning("the generation service is unavailable", reason=words)
            self.service_problem = words
            failed()

        self._loop.work(ask, on_answer, on_failure)

    def _ask_attachments(self) -> None:
        def ask() -> NodeAttachments:
            if self.config.attaches_all:
                self._attach_all()
            return self._service.attached(self.config.node_id, self.node_generation)

        def answered(found: NodeAttachments) -> None:
            if not found.is_node_valid:
                self.replaced()
                return
            self._attach(found.attachments)

        self.ask_service(ask, answered, lambda: None)

    def _attach_all(self) -> None:
        """Attaches each tenant of the archive that has no attachment, also after an advance.

        Do not call it on the event loop."""
        attached = {each.tenant for each in self._service.status().tenants if each.attachments}
        for timeline in find_timelines(self._store):
            tenant = timeline.tenant_id.hex()
            if tenant not in attached:
                self._service.attach(tenant, self.config.node_id)
                attached.add(tenant)

    # ---- attachments

    def _attach(self, attachments: tuple[TenantAttachment, ...]) -> None:
        by_tenant = {each.tenant: each for each in attachments}

        def answered(timelines: list[TimelineId]) -> None:
            for timeline in timelines:
                at = by_tenant.get(timeline.tenant_id.hex())
                is_wanted = at is not None and timeline not in self.deleted
                if at is not None and is_wanted and at.mode in MODES:
                    self._attach_one(timeline, at)
            for timeline in [*self.attached]:
                if timeline.tenant_id.hex() not in by_tenant:
                    self._detach(timeline)

        def failed(error: Exception) -> None:
            log.warning("the object store is unavailable", reason=str(error))

        self._loop.work(lambda: find_timelines(self._store), answered, failed)

    def _attach_one(self, timeline: TimelineId, at: TenantAttachment) -> None:
        suffix = Suffix.pack(at.attachment_generation, at.node_id, self.node_generation)
        attached = self.attached.get(timeline)
        match decide_attach(attached.shell.core.suffix if attached else None, suffix):
            case AttachDecision.BEGIN:
                self._begin(timeline, suffix, MODES[at.mode])
            case AttachDecision.KEEP:
                assert attached is not None
                attached.shell.step(attaching.ModeSet(MODES[at.mode]))
            case AttachDecision.REFUSE:
                log.warning("ignored an outdated attachment", suffix=str(suffix))

    def _begin(self, timeline: TimelineId, suffix: Suffix, mode: Mode) -> None:
        if timeline in self.attached:
            self._detach(timeline)
        self._starts += 1
        config = self.config
        core = Attachment(
            suffix, f"{self.incarnation}{self._starts:08x}", mode, config.history_seconds,
            config.local_bytes_max,
        )  # fmt: skip
        attached = AttachedTimeline(self, self.config, timeline, core, self._loop, self._store)
        self.attached[timeline] = attached
        if mode is Mode.EMERGENCY:
            attached.shell.begin()
        else:
            attached.begin(self._service)

    def _detach(self, timeline: TimelineId) -> None:
        attached = self.attached.pop(timeline)
        attached.shell.detach()
        log.info("detached", timeline=str(timeline))
        self._loop.work(attached.close, lambda _: None, lambda _: None)
        self._step_queue(deleting.TimelineDetached(timeline))

    # ---- without the service

    def emergency_begun(self, found: EmergencyAttachments) -> None:
        self.node_generation = found.suffix.node_generation
        self.emergency_notice = found.notice
        for timeline in found.timelines:
            self._begin(timeline, found.suffix, Mode.EMERGENCY)

    def emergency_ended(self, answer: AdvanceAnswer) -> None:
        """Validations that follow report the current owner of each tenant. A mode can be set only
        when the attachment has begun."""
        if any(each.shell.core.phase in BEGINNING for each in self.attached.values()):
            again = partial(self.emergency_ended, answer)
            self._loop.call_later(REGISTER_RETRY_SECONDS, again)
            return
        self.emergency_notice = self.service_problem = ""
        self._start_queue_and_timers()
        for timeline, attached in self.attached.items():
            if timeline in answer.refused:
                attached.refuse(answer.refused[timeline])
            mode = answer.modes[timeline.tenant_id.hex()]
            attached.shell.step(attaching.ModeSet(MODES[mode]))

    # ---- deleted timelines

    def found_deleted(self, timeline: TimelineId) -> None:
        """A tombstone exists. Removes objects that late requests of this process create."""
        if timeline not in self.deleted:
            self.deleted |= {timeline}
            log.warning("the timeline's pages were deleted", timeline=str(timeline))
            if timeline in self.attached:
                self._detach(timeline)
            self._loop.call_later(LATE_SECONDS, lambda: self._remove(timeline))
            self._remove(timeline)

    def _remove(self, timeline: TimelineId) -> None:
        suffix = Suffix.pack(0, self.config.node_id, self.node_generation)

        def remove() -> RemovedPages:
            # The service first: a service restored from an old copy does not know of the deletion.
            tenant, name = timeline.tenant_id.hex(), timeline.timeline_id.hex()
            self._service.delete_timeline(tenant, name)
            return remove_pages(self._store, timeline, suffix)

        def failed(error: Exception) -> None:
            log.warning(
                "could not remove the pages of a deleted timeline; will retry", reason=str(error)
            )
            self._loop.call_later(LATE_SECONDS, lambda: self._remove(timeline))

        self._loop.work(remove, lambda _: None, failed)

    # ---- timers

    def _step_queue(self, event: deleting.QueueEvent) -> None:
        if self.queue is not None:
            self.queue.step(event)

    def condemned(self, condemned: deleting.Condemned) -> None:
        self._step_queue(condemned)

    def _hinted(self, hint: deleting.Hint) -> None:
        attached = self.attached.get(hint.timeline)
        if attached is None:
            self._step_queue(deleting.TimelineDetached(hint.timeline))
        else:
            attached.shell.step(attaching.Hinted(hint.hint, hint.names))

    def _collect(self) -> None:
        for each in self.attached.values():
            each.shell.step(attaching.CollectDue(int(datetime.now(UTC).timestamp())))

    def _compact(self) -> None:
        self._compactions.begin(each.shell for each in self.attached.values())

    def _scrub(self) -> None:
        for each in self.attached.values():
            each.shell.begin_scrub()
        for timeline in self.deleted:
            self._remove(timeline)

    # ---- validation

    def _validate(self) -> None:
        if self.queue is None:
            return
        due = {each.shell.id for each in self.attached.values() if each.shell.core.is_validated}
        asked = frozenset(due) | self.queue.core.unvalidated
        self.validation.step(ValidationDue(asked))

    def validate_soon(self) -> None:
        self._loop.call_later(VALIDATION_DELAY_SECONDS, self._validate)

    def validation_begun(self, ticket: int) -> None:
        self._step_queue(deleting.QueueValidationBegun(ticket))
        for each in self.attached.values():
            each.shell.step(attaching.ValidationBegun(ticket))

    def validation_announced(self, ticket: int, verdicts: Mapping[AttachmentId, Verdict]) -> None:
        self._step_queue(deleting.QueueValidated(ticket, verdicts))
        for each in self.attached.values():
            if each.shell.id in verdicts:
                each.shell.step(attaching.Validated(ticket, verdicts[each.shell.id]))
