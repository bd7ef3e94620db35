"""`Process`: a pageserver's process: the real cores, and actions that a simulated world executes.

It may end or pause between any two actions. Messages that arrive meanwhile wait, as for a machine
that was suspended.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from quorum_wal.consensus.ids import TimelineId
from quorum_wal.generations.suffix import Suffix
from quorum_wal.pageserver.attachments import attachment_events as attaching
from quorum_wal.pageserver.attachments import deletion_events as deleting
from quorum_wal.pageserver.attachments import scrub as scrubbing
from quorum_wal.pageserver.attachments import validation as validating
from quorum_wal.pageserver.attachments.attachment import (
    AttachDecision,
    Attachment,
    Phase,
    decide_attach,
)
from quorum_wal.pageserver.attachments.attachment_events import Mode
from quorum_wal.pageserver.attachments.deletion_queue import DeletionQueue, QueuePhase
from quorum_wal.pageserver.attachments.scrub import Scrub
from quorum_wal.pageserver.attachments.validation import Validation
from quorum_wal.pageserver.objects.attachment_id import AttachmentId, Verdict
from quorum_wal.pageserver.objects.page_index import Cut
from quorum_wal.pageserver.objects.page_keys import (
    ClaimName,
    HeaderName,
    IndexName,
    ListName,
    TombstoneName,
)

from .pageserver_merges import execute_order
from .pageserver_store import StoredObject

if TYPE_CHECKING:
    from .pageserver_service import Tenant
    from .pageserver_world import PageserverWorld

LOCAL_BYTES_MAX = 5_000
PARTS = (0, 1)


@dataclass(slots=True)
class Attached:
    """One timeline at one process, and the content of its local disk."""

    core: Attachment
    id: AttachmentId
    end_lsn: int = 0
    local_bytes: int = 0
    listed_us: int = 0
    told_stale: bool = False
    scrub: Scrub | None = None
    #: The contents of each change or merge in progress.
    changes: dict[int, list[Any]] = field(default_factory=dict)
    merges: set[int] = field(default_factory=set)


class Process:
    """`serial` numbers its incarnations, and is not part of any name."""

    def __init__(self, world: PageserverWorld, node_id: int, serial: int) -> None:
        self.world = world
        self.node_id = node_id
        self.name = f"{node_id}.{serial}"
        self.is_alive = True
        self.is_frozen = False
        self.is_emergency = False
        #: Actions until it dies or pauses.
        self.actions_left: int | None = None
        self.freeze_us = 0
        #: The delay of its claims.
        self.claim_us = 0
        self.node_generation = 0
        self.attached: dict[TimelineId, Attached] = {}
        self.queue: DeletionQueue | None = None
        self.validation = Validation()
        self.skew_s = world.random.choice((0, 0, 5, -20))
        self._changes = self._starts = 0
        self._backlog: list[Any] = []

    # ---- its life

    def start(self) -> None:
        ask = partial(self.world.service.register, self.node_id)
        self.world.service.ask(ask, self.later(self._registered), self.later(self._register_again))

    def _register_again(self) -> None:
        self.world.clock.call_later(3000, self.later(self.start))

    def _registered(self, answer: tuple[int, dict[bytes, Tenant]]) -> None:
        self.node_generation, tenants = answer
        self.begin_queue()
        self.attach(tenants)

    def attach(self, tenants: dict[bytes, Tenant]) -> None:
        """The attachments from the service, and the modes of existing ones."""
        for timeline in self.world.timelines:
            at = tenants.get(timeline.tenant_id)
            if at is None or self.queue is None or timeline in self.world.service.state.deleted:
                self._detach(timeline)
                continue
            suffix = Suffix.pack(at.generation, self.node_id, self.node_generation)
            there = self.attached.get(timeline)
            match decide_attach(there.core.suffix if there else None, suffix):
                case AttachDecision.BEGIN:
                    self.begin(timeline, suffix, at.mode)
                case AttachDecision.KEEP:
                    assert there is not None
                    if there.core.mode is not at.mode and there.core.is_validated:
                        self.step_attached(there, attaching.ModeSet(at.mode))
                case AttachDecision.REFUSE:
                    # A late answer; or the service was restored from an old copy, and repeats it.
                    self.world.count("late attaches refused")
                    self.world.clock.call_later(5000, self.world.operator_advances)

    def _detach(self, timeline: TimelineId) -> None:
        """Only an attachment that knows that it is stale: until then it may serve reads."""
        there = self.attached.get(timeline)
        if there is not None and (there.core.mode is Mode.STALE or self.world.is_calm):
            del self.attached[timeline]
            self.step_queue(deleting.TimelineDetached(timeline))

    def begin(self, timeline: TimelineId, suffix: Suffix, mode: Mode) -> None:
        self._starts += 1
        incarnation = f"{self.name}/{self._starts}"
        world = self.world
        core = Attachment(suffix, incarnation, mode, world.history_s, LOCAL_BYTES_MAX)
        if timeline in self.attached:
            self.step_queue(deleting.TimelineDetached(timeline))
        there = self.attached[timeline] = Attached(core, AttachmentId(timeline, suffix))
        self.step_attached(there, attaching.Begun())

    def begin_queue(self) -> None:
        """The queue of this process's number."""
        suffix = Suffix.pack(0, self.node_id, self.node_generation)
        self.queue = DeletionQueue(suffix, self.name, self.world.grace_ms)
        self.step_queue(deleting.QueueBegun())

    def kill(self) -> None:
        self.is_alive = False
        self.world.ended(self)

    def freeze(self, time_us: int) -> None:
        self.is_frozen = True
        self.world.clock.call_later(time_us, self.wake)

    def wake(self) -> None:
        self.is_frozen = False
        backlog, self._backlog = self._backlog, []
        for number, call in enumerate(backlog):
            if self.is_frozen:
                self._backlog = backlog[number:] + self._backlog
                return
            self._run(call)

    def _run(self, call: Any) -> None:
        if self.is_frozen:
            self._backlog.append(call)
        elif self.is_alive:
            call()

    def later(self, call: Any) -> Any:
        """A callback for the world, which calls this process in its state at that time."""

        def arrived(*args: Any) -> None:
            self._run(partial(call, *args))

        return arrived

    def _execute(self, execute: Any, actions: list[Any]) -> None:
        for number, action in enumerate(actions):
            if self.actions_left is not None:
                self.actions_left -= 1
                if self.actions_left < 0:
                    self.actions_left = None
                    if self.freeze_us:
                        self.world.count("frozen between actions")
                        self._backlog.append(partial(self._execute, execute, actions[number:]))
                        self.freeze(self.freeze_us)
                    else:
                        self.world.count("killed between actions")
                        self.kill()
                    return
            if not self.is_alive:
                return
            execute(action)

    # ---- the attachments

    def step_attached(self, there: Attached, event: attaching.Event) -> None:
        if not self.is_alive or self.attached.get(there.id.timeline) is not there:
            return
        was_active = there.core.phase is Phase.ACTIVE
        actions = there.core.step(event)
        self.world.stepped(f"{self.name} {there.core.suffix}", event, actions)
        if there.core.phase is Phase.ACTIVE and not was_active:
            self.world.laws.became_active(there.id.timeline, there.core, there.listed_us)
            there.end_lsn = there.core.index.newest_end_lsn
        is_bad = isinstance(event, attaching.Validated) and event.verdict is not Verdict.VALID
        self._execute(partial(self._attached_action, there), actions)
        there.told_stale |= is_bad

    def _attached_request(self, there: Attached, action: attaching.Request) -> None:
        timeline, world = there.id.timeline, self.world
        step = partial(self.step_attached, there)
        match action:
            case attaching.CreateClaim(suffix, incarnation):
                claim = partial(
                    self._write, there, action, ClaimName(suffix), incarnation,
                    lambda found: step(attaching.Claimed(found.content)),
                )  # fmt: skip
                world.clock.call_later(self.claim_us, claim)
            case attaching.ListIndices():
                self._list_indices(there, action)
            case attaching.LoadIndex(name):
                self._get(timeline, name, lambda c: step(attaching.IndexLoaded(name, c)),
                          lambda: step(attaching.Failed(action)))  # fmt: skip
            case attaching.Upload(change, position, ref):
                if change in there.changes:
                    content = there.changes[change][position]
                    self._write(there, action, ref.name, content,
                                lambda _: step(attaching.Uploaded(ref.name)))  # fmt: skip
            case attaching.UploadIndex(name, index):
                self._write(there, action, name, index,
                            lambda _: step(attaching.IndexUploaded(name)))  # fmt: skip

    def _attached_action(self, there: Attached, action: attaching.Action) -> None:
        timeline, world, core = there.id.timeline, self.world, there.core
        match action:
            case attaching.Condemn(names, hint):
                if names:
                    world.laws.writes(self, there.told_stale, "deletes")
                self.step_queue(deleting.Condemned(there.id, names, hint))
            case attaching.Publish(visible_lsn):
                delay_us = world.random.choice((100, 2000, 30_000))
                world.clock.call_later(delay_us, world.laws.trimmed, timeline, visible_lsn)
            case attaching.Stored(change):
                there.changes.pop(change, None)
                world.count("merges" if change in there.merges else "changes stored")
            case attaching.SurveyLayers() | attaching.MergeLayers():
                execute_order(self, there, action)
            case attaching.FreshIndex(name):
                there.scrub = Scrub(core.suffix, name, world.grace_ms)
                self._step_scrub(there, there.scrub, scrubbing.ScrubBegun())
            case attaching.Refuse(message, _):
                world.count(f"refused: {message.split(' ', 1)[0]}")
                world.clock.call_later(5000, world.operator_reads_refusal, self, timeline)
            case attaching.Alarm(kind, _):
                world.count(f"alarm: {kind.value}")
                if kind is attaching.AlarmKind.RIVALLED:
                    world.clock.call_later(5000, world.operator_advances)
            case _:
                self._attached_request(there, action)

    def _list_indices(self, there: Attached, action: attaching.ListIndices) -> None:
        """In two requests: the tombstone is checked after the list, as it comes before all."""
        world, timeline = self.world, there.id.timeline
        asked_us = world.clock.now_us
        step = partial(self.step_attached, there)
        fail = self.later(lambda: step(attaching.Failed(action)))

        def listed(found: list[StoredObject]) -> None:
            names = tuple(each.name for each in found if isinstance(each.name, IndexName))
            looked = lambda tomb: answer(names, tomb)  # noqa: E731
            self._get(timeline, TombstoneName(), looked, lambda: step(attaching.Failed(action)))

        def answer(names: tuple[IndexName, ...], tombstone: Any) -> None:
            there.listed_us = asked_us
            step(attaching.IndicesListed(names, tombstone is not None))

        world.store.ask_list(timeline, self.later(listed), fail, "index/")

    def _write(self, there: Attached, action: Any, name: Any, content: Any, answered: Any) -> None:
        self.world.laws.writes(self, there.told_stale, name.format())
        timeline, writer = there.id.timeline, there.core.incarnation
        land = partial(self.world.store.create, timeline, name, content, writer)
        failed = lambda: self.step_attached(there, attaching.Failed(action))  # noqa: E731
        self.world.store.ask(land, self.later(answered), self.later(failed), is_write=True)

    def _get(self, folder: Any, name: Any, answered: Any, failed: Any) -> None:
        land = partial(self.world.store.get, folder, name)
        self.world.store.ask(land, self.later(answered), self.later(failed), is_write=False)

    # ---- its work, by timers

    def ingest(self, there: Attached) -> None:
        """An epoch was replayed; a stale process keeps it on the local disk."""
        core, world = there.core, self.world
        wal_lsn = world.wal_lsn()
        if core.phase is not Phase.ACTIVE or wal_lsn < there.end_lsn + 100:
            return
        if core.mode is Mode.STALE:
            there.local_bytes += 500
            there.end_lsn = wal_lsn
            self.step_attached(there, attaching.LocalGrown(there.local_bytes))
            return
        if len(there.changes) > 4:
            return
        self._changes += 1
        begin_lsn, there.end_lsn = there.end_lsn, wal_lsn
        there.changes[self._changes] = [*world.history.epoch(begin_lsn, wal_lsn), None]
        cut = Cut(wal_lsn - 20, wal_lsn - 10, wal_lsn, 1, world.now_s)
        layers = tuple(attaching.NewLayer(wal_lsn, part, 100) for part in PARTS)
        frames = (attaching.NewFrame(wal_lsn, 50),)
        self.step_attached(there, attaching.Changed(self._changes, cut, layers, frames))

    def compact(self, there: Attached) -> None:
        self._changes += 1
        self.step_attached(there, attaching.CompactDue(self._changes))

    def collect(self, there: Attached) -> None:
        self.step_attached(there, attaching.CollectDue(self.world.now_s + self.skew_s))

    def scrub(self, there: Attached) -> None:
        if there.scrub is None or there.scrub.is_ended:
            self.step_attached(there, attaching.FreshIndexWanted())

    def _step_scrub(self, there: Attached, scrub: Scrub, event: scrubbing.Event) -> None:
        if self.attached.get(there.id.timeline) is not there or there.scrub is not scrub:
            return
        actions = scrub.step(event)
        self.world.stepped(f"{self.name} scrub", event, actions)
        self._execute(partial(self._scrub_action, there, scrub), actions)

    def _scrub_action(self, there: Attached, scrub: Scrub, action: scrubbing.Action) -> None:
        step, timeline = partial(self._step_scrub, there, scrub), there.id.timeline
        fail = lambda: step(scrubbing.ScrubFailed("could not be read"))  # noqa: E731
        match action:
            case scrubbing.ListPages():
                self.world.store.ask_list(
                    timeline,
                    self.later(lambda found: step(
                        scrubbing.PagesListed({each.name: each.modified_ms for each in found}))),
                    self.later(fail),
                )  # fmt: skip
            case scrubbing.ReadIndex(name):
                self._get(timeline, name, lambda c: step(scrubbing.IndexRead(name, c)), fail)
            case scrubbing.Orphans(names):
                self.world.count("orphans", len(names))
                self.step_attached(there, attaching.OrphansFound(names))
            case scrubbing.Missing(names):
                lost = set(names) & there.core.index.names
                assert not lost, f"the index names {lost}, which the store does not have"
            case scrubbing.ScrubEnded(problem):
                self.world.count("scrubs broken off" if problem else "scrubs")

    # ---- the deletion queue

    def step_queue(self, event: deleting.QueueEvent) -> None:
        if self.queue is None or not self.is_alive:
            return
        actions = self.queue.step(event)
        self.world.stepped(f"{self.name} queue", event, actions)
        self._execute(self._queue_action, actions)

    def _queue_action(self, action: deleting.QueueAction) -> None:
        node, store, step = self.node_id, self.world.store, self.step_queue
        failed = self.later(lambda: step(deleting.QueueFailed(action)))  # type: ignore[arg-type]

        def write(land: Any, answered: Any) -> None:
            store.ask(land, self.later(answered), failed, is_write=True)

        match action:
            case deleting.CreateHeader(name, header):
                created = lambda found: step(  # noqa: E731
                    deleting.HeaderCreated(name, found.content.incarnation)
                )
                write(partial(store.create, node, name, header, self.name), created)
            case deleting.ListQueue():
                store.ask_list(node, self.later(lambda found: step(deleting.QueueListed(
                    {each.name: each.modified_ms for each in found}))), failed)  # fmt: skip
            case deleting.ReadHeader(name):
                self._get(node, name, lambda c: step(deleting.HeaderRead(name, c)), failed)
            case deleting.ReadList(name):
                self._get(node, name, lambda c: step(deleting.ListRead(name, c)), failed)
            case deleting.PersistList(name, deletions):
                write(partial(store.create, node, name, deletions, self.name),
                      lambda _: step(deleting.ListPersisted(name)))  # fmt: skip
            case deleting.DeleteKeys(name, keys):
                self.world.count("keys deleted", len(keys))
                write(lambda: [*map(store.delete_key, keys)],
                      lambda _: step(deleting.KeysDeleted(name, keys)))  # fmt: skip
            case deleting.RemoveFromQueue(names):
                self._count_removed(names)
                write(lambda: [store.delete(node, name.format()) for name in names],
                      lambda _: step(deleting.Removed(names)))  # fmt: skip
            case deleting.Hint(timeline, hint, names):
                self.world.count("hints", len(names))
                if timeline in self.attached:
                    self.step_attached(self.attached[timeline], attaching.Hinted(hint, names))
                else:
                    self.step_queue(deleting.TimelineDetached(timeline))
            case deleting.EndQueue():
                self.world.count("processes that found a successor")
                self.kill()
                self.world.clock.call_later(5000, self.world.operator_advances)

    def _count_removed(self, names: tuple[ListName | HeaderName, ...]) -> None:
        for name in names:
            if isinstance(name, ListName):
                is_own = self.queue is not None and name.suffix == self.queue.suffix
                self.world.count("lists removed" if is_own else "lists of before removed")

    def flush(self) -> None:
        if self.queue is not None and self.queue.phase is QueuePhase.ACTIVE:
            if self.world.random.random() < 0.1:
                self.step_queue(deleting.FullRoundDue())
            self.step_queue(deleting.RoundDue())

    # ---- validation

    def validate(self) -> None:
        if self.queue is None:
            return
        due = {there.id for there in self.attached.values() if there.core.is_validated}
        self._step_validation(validating.ValidationDue(frozenset(due) | self.queue.unvalidated))

    def _step_validation(self, event: validating.Event) -> None:
        if not self.is_alive:
            return
        actions = self.validation.step(event)
        self.world.stepped(f"{self.name} validation", event, actions)
        self._execute(self._validation_action, actions)

    def _validation_action(self, action: validating.Action) -> None:
        world, step = self.world, self._step_validation
        match action:
            case validating.Begin(ticket):
                self.step_queue(deleting.QueueValidationBegun(ticket))
                for there in list(self.attached.values()):
                    self.step_attached(there, attaching.ValidationBegun(ticket))
            case validating.AskService(ticket, tenants):
                world.service.ask(
                    partial(world.service.validate, self.node_id, self.node_generation, tenants),
                    self.later(lambda got: step(validating.ServiceAnswered(ticket, *got))),
                    self.later(lambda: step(validating.ValidationFailed(action))),
                )
            case validating.ListClaims(ticket, attachment):

                def listed(found: list[StoredObject]) -> None:
                    above = [o.name.suffix for o in found if isinstance(o.name, ClaimName)]
                    is_deleted = any(isinstance(o.name, TombstoneName) for o in found)
                    step(validating.ClaimsListed(ticket, attachment, tuple(above), is_deleted))

                heard, late_us = self.later(listed), world.claims_unheard_us
                world.store.ask_list(
                    attachment.timeline,
                    lambda found: world.clock.call_later(late_us, heard, found),
                    self.later(lambda: step(validating.ValidationFailed(action))),
                    ClaimName(attachment.suffix).format(),
                )  # fmt: skip
            case validating.Announce(ticket, verdicts):
                self._announce(ticket, verdicts)
            case validating.EndProcess():
                world.count("processes that were replaced")
                self.kill()

    def _announce(self, ticket: int, verdicts: Any) -> None:
        self.world.count("validations")
        self.step_queue(deleting.QueueValidated(ticket, verdicts))
        for there in list(self.attached.values()):
            if there.id in verdicts:
                verdict = verdicts[there.id]
                self.world.count(f"verdict: {verdict.value}")
                self.step_attached(there, attaching.Validated(ticket, verdict))
