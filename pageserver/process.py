"""`PageserverProcess`: one process of a node, with what is attached to it, until it ends.

    register -> deletion queue -> attachments -> ingest          timers: validation, rounds of the
                                                                 queue, horizons, scrubs, what is
                                                                 attached now

Laws. Nothing is written before the generation service has given a number. What the service says of
attachments is asked for now and then: a new one begins, one that is gone ends. A process that is
not the newest of its node ends itself.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from threading import Event
from typing import TypeVar

import structlog

from consensus.ids import TimelineId
from generations.errors import GenerationRefused
from generations.messages import (
    AttachmentMode,
    NodeAttachments,
    NodeRegistration,
    TenantAttachment,
    TenantGeneration,
)
from generations.protocol import GenerationService
from generations.suffix import Suffix
from objectstore.archive import TimelineArchive, find_timelines
from objectstore.store import ObjectStore
from pageserver import attachment_events as attaching
from pageserver import deletion_events as deleting
from pageserver import validation as validating
from pageserver.attachment import AttachDecision, Attachment, decide_attach
from pageserver.attachment_events import Mode
from pageserver.attachment_id import AttachmentId
from pageserver.attachment_shell import AttachmentShell
from pageserver.compaction_shell import CompactionShell
from pageserver.deletion_queue import DeletionQueue
from pageserver.epoch import EpochOutput
from pageserver.ingest import Ingest, IngestConfig
from pageserver.page_index import Cut
from pageserver.page_objects import PageObjects
from pageserver.queue_shell import QueueShell
from pageserver.turns import Turns
from pageserver.validation import Validation

T = TypeVar("T")

REGISTER_RETRY_SECONDS = 2.0
LOOK_SECONDS = 3600.0
#: After an index was written: its cut lets WAL go, and what it dropped may be deleted.
VALIDATION_DELAY_SECONDS = 0.5
MODES = {AttachmentMode.SINGLE: Mode.SINGLE, AttachmentMode.MULTI: Mode.MULTI}

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ProcessConfig:
    """`attaches_all`: with a service of its own, every timeline of the archive is attached here.
    `grace_seconds`: how long readers may use an index after it was replaced."""

    node_id: int
    data_dir: Path
    ingest: IngestConfig
    attaches_all: bool = True
    history_seconds: int = 7 * 24 * 3600
    grace_seconds: float = 24 * 3600.0
    local_bytes_max: int = 16 << 30
    validation_seconds: float = 10.0
    attachments_seconds: float = 10.0
    round_seconds: float = 60.0
    collect_seconds: float = 300.0
    scrub_seconds: float = 24 * 3600.0
    compact_seconds: float = 3600.0


class PageserverProcess:
    """Its methods are called within turns, but where they say otherwise."""

    def __init__(
        self, config: ProcessConfig, turns: Turns, store: ObjectStore, service: GenerationService
    ) -> None:
        self.config = config
        self.incarnation = secrets.token_hex(16)
        self.node_generation = 0
        self.attached: dict[TimelineId, AttachedTimeline] = {}
        self.queue: QueueShell | None = None
        #: Why this process has ended itself: message and hint.
        self.end_reason: tuple[str, str] | None = None
        self.service_problem = "it was not asked yet"
        self.validated_at = 0.0
        self._turns = turns
        self._store = store
        self._service = service
        self._validation = Validation()
        self._starts = 0
        #: In the order in which they were asked for a compaction.
        self._compacted: list[AttachmentShell] = []

    # ---- its beginning and its end

    def start(self) -> None:
        self._ask_service(
            lambda: self._service.register_node(self.config.node_id, self.incarnation),
            self._registered,
            lambda: self._turns.call_later(REGISTER_RETRY_SECONDS, self.start),
        )

    def _registered(self, registration: NodeRegistration) -> None:
        self.node_generation = registration.node_generation
        log.info("registered", node_id=self.config.node_id, node_generation=self.node_generation)
        suffix = Suffix.pack(0, self.config.node_id, self.node_generation)
        core = DeletionQueue(suffix, self.incarnation, int(self.config.grace_seconds * 1000))
        self.queue = QueueShell(self._turns, core, self._store, self._hinted, self._end)
        self.queue.step(deleting.QueueBegun())
        self._attach(registration.attachments)
        config = self.config
        self._every(config.validation_seconds, self._validate)
        self._every(config.attachments_seconds, self._ask_attachments)
        self._every(config.round_seconds, lambda: self._step_queue(deleting.RoundDue()))
        self._every(LOOK_SECONDS, lambda: self._step_queue(deleting.LookDue()))
        self._every(config.collect_seconds, self._collect)
        self._every(config.scrub_seconds, self._scrub)
        self._every(config.compact_seconds, self._compact)
        self._ask_attachments()

    def _every(self, seconds: float, call: Callable[[], None]) -> None:
        def due() -> None:
            call()
            self._turns.call_later(seconds, due)

        self._turns.call_later(seconds, due)

    def _end(self, message: str, hint: str) -> None:
        log.critical("this process ends", reason=message, hint=hint)
        self.end_reason = message, hint
        self._turns.end()

    def _replaced(self) -> None:
        self._end(
            f"node {self.config.node_id} has a newer process than this one",
            "Give each pageserver a node id of its own: --node-id.",
        )

    def close(self) -> None:
        """After the last turn, on the same thread: waits for all ingest."""
        for each in self.attached.values():
            each.close()

    # ---- the generation service

    def _ask_service(
        self, ask: Callable[[], T], answered: Callable[[T], None], failed: Callable[[], None]
    ) -> None:
        def heard(answer: T) -> None:
            self.service_problem = ""
            answered(answer)

        def unheard(error: Exception) -> None:
            if isinstance(error, GenerationRefused):
                self._end(str(error), error.hint)
                return
            words = " ".join(str(error).split())
            if words != self.service_problem:
                log.warning("the generation service does not answer", reason=words)
            self.service_problem = words
            failed()

        self._turns.work(ask, heard, unheard)

    def _ask_attachments(self) -> None:
        def ask() -> NodeAttachments:
            if self.config.attaches_all:
                self._attach_all()
            return self._service.attached(self.config.node_id, self.node_generation)

        def answered(found: NodeAttachments) -> None:
            if not found.is_node_valid:
                self._replaced()
                return
            self._attach(found.attachments)

        self._ask_service(ask, answered, lambda: None)

    def _attach_all(self) -> None:
        """Not within a turn: what is in the archive and attached nowhere, also after an advance."""
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
                if at is not None and at.mode in MODES:
                    self._attach_one(timeline, at)
            for timeline in [*self.attached]:
                if timeline.tenant_id.hex() not in by_tenant:
                    self._detach(timeline)

        def failed(error: Exception) -> None:
            log.warning("the store does not answer", reason=str(error))

        self._turns.work(lambda: find_timelines(self._store), answered, failed)

    def _attach_one(self, timeline: TimelineId, at: TenantAttachment) -> None:
        suffix = Suffix.pack(at.attachment_generation, at.node_id, self.node_generation)
        there = self.attached.get(timeline)
        match decide_attach(there.shell.core.suffix if there else None, suffix):
            case AttachDecision.BEGIN:
                self._begin(timeline, suffix, MODES[at.mode])
            case AttachDecision.KEEP:
                assert there is not None
                if there.shell.core.is_validated:
                    there.shell.step(attaching.ModeSet(MODES[at.mode]))
            case AttachDecision.REFUSE:
                log.warning("a late attach is passed over", suffix=str(suffix))

    def _begin(self, timeline: TimelineId, suffix: Suffix, mode: Mode) -> None:
        if timeline in self.attached:
            self._detach(timeline)
        self._starts += 1
        config = self.config
        core = Attachment(
            suffix, f"{self.incarnation}{self._starts:08x}", mode, config.history_seconds,
            config.local_bytes_max,
        )  # fmt: skip
        there = AttachedTimeline(self, timeline, core, self._turns, self._store)
        self.attached[timeline] = there
        there.begin(self._service)

    def _detach(self, timeline: TimelineId) -> None:
        there = self.attached.pop(timeline)
        there.shell.detach()
        log.info("detached", timeline=str(timeline))
        self._turns.work(there.close, lambda _: None, lambda _: None)
        self._step_queue(deleting.TimelineDetached(timeline))

    # ---- timers

    def _step_queue(self, event: deleting.QueueEvent) -> None:
        if self.queue is not None:
            self.queue.step(event)

    def condemned(self, condemned: deleting.Condemned) -> None:
        self._step_queue(condemned)

    def _hinted(self, hint: deleting.Hint) -> None:
        there = self.attached.get(hint.timeline)
        if there is None:
            self._step_queue(deleting.TimelineDetached(hint.timeline))
        else:
            there.shell.step(attaching.Hinted(hint.hint, hint.names))

    def _collect(self) -> None:
        for each in self.attached.values():
            each.shell.step(attaching.CollectDue(int(datetime.now(UTC).timestamp())))

    def _scrub(self) -> None:
        for each in self.attached.values():
            each.shell.begin_scrub()

    def _compact(self) -> None:
        """One timeline at a time; who was asked longest ago is asked first."""
        shells = {each.shell for each in self.attached.values()}
        self._compacted = [each for each in self._compacted if each in shells]
        waiting = [*(shells - set(self._compacted)), *self._compacted]
        for shell in waiting:
            if any(each.compaction is not None and each.compaction.is_busy for each in shells):
                return
            self._compacted = [*(each for each in self._compacted if each is not shell), shell]
            shell.begin_compaction()

    # ---- validation

    def _validate(self) -> None:
        if self.queue is None:
            return
        due = {each.shell.id for each in self.attached.values() if each.shell.core.is_validated}
        asked = frozenset(due) | self.queue.core.unvalidated
        self._step_validation(validating.ValidationDue(asked))

    def validate_soon(self) -> None:
        self._turns.call_later(VALIDATION_DELAY_SECONDS, self._validate)

    def _step_validation(self, event: validating.Event) -> None:
        for action in self._validation.step(event):
            self._execute_validation(action)

    def _execute_validation(self, action: validating.Action) -> None:
        match action:
            case validating.Begin(ticket):
                self._step_queue(deleting.QueueValidationBegun(ticket))
                for each in self.attached.values():
                    each.shell.step(attaching.ValidationBegun(ticket))
            case validating.AskService():
                self._ask_validity(action)
            case validating.ListClaims():
                self._list_claims(action)
            case validating.Announce(ticket, verdicts):
                self.validated_at = time.monotonic()
                self._step_queue(deleting.QueueValidated(ticket, verdicts))
                for each in self.attached.values():
                    if each.shell.id in verdicts:
                        verdict = verdicts[each.shell.id]
                        each.shell.step(attaching.Validated(ticket, verdict))
            case validating.EndProcess():
                self._replaced()

    def _ask_validity(self, action: validating.AskService) -> None:
        asked = [TenantGeneration(tenant.hex(), number) for tenant, number in action.tenants]

        def ask() -> validating.ServiceAnswered:
            answer = self._service.validate(self.config.node_id, self.node_generation, asked)
            tenants: Mapping[validating.TenantGeneration, bool] = {
                (bytes.fromhex(each.tenant), each.attachment_generation): each.is_valid
                for each in answer.tenants
            }
            return validating.ServiceAnswered(action.ticket, answer.is_node_valid, tenants)

        failed = partial(self._step_validation, validating.ValidationFailed(action))
        self._ask_service(ask, self._step_validation, failed)

    def _list_claims(self, action: validating.ListClaims) -> None:
        objects = PageObjects(self._store, action.attachment.timeline)

        def ask() -> validating.ClaimsListed:
            above = objects.claims_above(action.attachment.suffix)
            return validating.ClaimsListed(
                action.ticket, action.attachment, above, objects.is_deleted()
            )

        def failed(error: Exception) -> None:
            log.warning("the store is asked again", reason=str(error))
            again = partial(self._step_validation, validating.ValidationFailed(action))
            self._turns.call_later(REGISTER_RETRY_SECONDS, again)

        self._turns.work(ask, self._step_validation, failed)


class AttachedTimeline:
    """One timeline at this process: its attachment, and the thread that ingests it."""

    def __init__(
        self,
        process: PageserverProcess,
        timeline: TimelineId,
        core: Attachment,
        turns: Turns,
        store: ObjectStore,
    ) -> None:
        self.timeline = timeline
        self.ingest: Ingest | None = None
        self._process = process
        self._turns = turns
        self._store = store
        self._waiting: dict[int, Event] = {}
        grace_ms = int(process.config.grace_seconds * 1000)
        objects = PageObjects(store, timeline)
        attachment_id = AttachmentId(timeline, core.suffix)
        self.shell = AttachmentShell(turns, core, attachment_id, objects, self, grace_ms)

    def begin(self, service: GenerationService) -> None:
        """Created in the service first: an id that was deleted never returns."""
        tenant, timeline = self.timeline.tenant_id.hex(), self.timeline.timeline_id.hex()

        def answered(_: object) -> None:
            self.shell.begin()

        def failed(error: Exception) -> None:
            if isinstance(error, GenerationRefused):
                self.shell.refusal = str(error)
                log.error("the timeline is not attached", reason=str(error), hint=error.hint)
                return
            self._turns.call_later(REGISTER_RETRY_SECONDS, partial(self.begin, service))

        self._turns.work(lambda: service.create_timeline(tenant, timeline), answered, failed)

    def close(self) -> None:
        """Not within a turn: waits for the thread."""
        for waiting in list(self._waiting.values()):
            waiting.set()
        if self.shell.compaction is not None:
            self.shell.compaction.stop()
        if self.ingest is not None:
            self.ingest.stop()

    # ---- what the attachment says

    def activated(self, shell: AttachmentShell) -> None:
        def opened(archive: TimelineArchive) -> None:
            folder = self._process.config.data_dir / str(self.timeline)
            self.ingest = ingest = Ingest(
                archive,
                shell.objects,
                lambda: shell.core.index,
                folder,
                self._process.config.ingest,
                self._hand_over,
            )
            ingest.start()
            shell.compaction = CompactionShell(
                self._turns, shell.core, shell.objects, folder, lambda: ingest.base_forks,
                shell.step,
            )  # fmt: skip

        def failed(error: Exception) -> None:
            log.warning("the store does not answer", reason=str(error))
            self._turns.call_later(REGISTER_RETRY_SECONDS, lambda: self.activated(shell))

        self._turns.work(lambda: TimelineArchive.open(self._store, self.timeline), opened, failed)

    def ended(self, shell: AttachmentShell, message: str) -> None:
        for waiting in self._waiting.values():
            waiting.set()

    def condemned(self, condemned: deleting.Condemned) -> None:
        self._process.condemned(condemned)

    def published(self, shell: AttachmentShell, visible_lsn: int) -> None:
        if self.ingest is not None:
            self.ingest.publish(visible_lsn)

    def stored(self, shell: AttachmentShell, change: int) -> None:
        self._process.validate_soon()
        waiting = self._waiting.pop(change, None)
        if waiting is not None:
            waiting.set()

    # ---- what the ingest says, on its thread

    def _hand_over(
        self, cut: Cut, base_backup_id: str, output: EpochOutput
    ) -> Callable[[float], bool | None]:
        stored = Event()

        def change() -> None:
            number = self.shell.change(cut, base_backup_id, output.parts, output.frame.path)
            self._waiting[number] = stored

        self._turns.post(change)

        def wait(seconds: float) -> bool | None:
            if stored.wait(seconds):
                return self.shell.core.index.newest_end_lsn >= cut.end_lsn
            return False if not self.shell.core.may_write else None

        return wait
