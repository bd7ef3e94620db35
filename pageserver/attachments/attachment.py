"""The core of one timeline's attachment: which objects it writes, deletes, and which WAL it frees.

`step(event) -> list[Action]` is the only mutator. Pure.

    claim -> list indices -> load the newest -> own index -> | upload objects -> index that names
                                                             | them -> index without dropped objects
                                                             | -> condemn them -> validate -> delete
    compaction: survey old layers -> merge -> upload its parts -> index with it, and without those

Laws.

1. A suffix belongs to one attachment: the claim is created once. If the claim names another
   incarnation, the service has assigned the number twice, and the attachment writes nothing.
2. The attachment begins with the greatest index up to its own suffix, as listed in the store after
   the claim. It adopts nothing from the local disk. An index with a greater suffix makes it stale
   at once, permanently.
3. An index names only objects that are in the store. Objects that an index drops are condemned
   (queued for deletion) only when that index is in the store. Condemned objects are deleted only
   when a validation that began later returns VALID.
4. WAL is released (`visible_lsn`) only up to the cut of an index of its own (`projected_lsn`).
   That index must have been in the store before a validation began that returns VALID. The index
   that the attachment began with does not count: an index between it and its own suffix may arrive
   late and name fewer cuts.
5. Each verdict but VALID makes the attachment stale: it uploads, deletes and releases nothing any
   more. It serves reads and ingests until it uses `local_bytes_max` of the local disk.
6. In MULTI nothing is condemned until the mode is SINGLE. In EMERGENCY nothing is validated either.
7. Names contain a sequence number, and no name is used twice.
8. One merge runs at a time, of layers that the next index would name and that end at or below its
   horizon (`compaction.py`). New cuts do not wait for it. Once all parts are in the store, one
   index names the new layer and no longer names the merged ones.

Why law 3 is sufficient: a later attachment first claims, then lists indices. A validation lists
claims after the index was written. So either the validation sees the claim, or the later attachment
begins with that index or a newer one (`validation.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from enum import Enum
from typing import assert_never

from quorum_wal.generations.suffix import Suffix
from quorum_wal.pageserver.attachments.attachment_events import (
    Action,
    Alarm,
    AlarmKind,
    Begun,
    Changed,
    Claimed,
    CollectDue,
    CompactDue,
    Condemn,
    CreateClaim,
    Event,
    Failed,
    FreshIndex,
    FreshIndexWanted,
    Hinted,
    IndexDamaged,
    IndexLoaded,
    IndexUploaded,
    IndicesListed,
    LayersMerged,
    LayersSurveyed,
    ListIndices,
    LoadIndex,
    LocalGrown,
    MergeFailed,
    Mode,
    ModeSet,
    OrphansFound,
    PartMerged,
    Publish,
    Refuse,
    Request,
    Stored,
    Upload,
    Uploaded,
    UploadIndex,
    Validated,
    ValidationBegun,
)
from quorum_wal.pageserver.attachments.attachment_writes import Batch, Pending, Writing
from quorum_wal.pageserver.attachments.compaction import Compaction, CompactionEvent
from quorum_wal.pageserver.attachments.garbage import next_horizon_lsn, without_garbage
from quorum_wal.pageserver.objects.attachment_id import Verdict
from quorum_wal.pageserver.objects.page_index import FrameRef, LayerRef, PageIndex
from quorum_wal.pageserver.objects.page_keys import IndexName, ListName, StoredName

#: Alarms for the verdicts that end an attachment.
_ALARMS = {
    Verdict.OUTDATED: AlarmKind.STALE,
    Verdict.RIVALLED: AlarmKind.RIVALLED,
    Verdict.DELETED: AlarmKind.DELETED,
}
_HINT_ADVANCE = "The generation service was restored from an old copy. Run sk generations advance."


class Phase(Enum):
    CLAIMING = "claiming"
    LISTING = "listing"
    LOADING = "loading"
    ACTIVE = "active"
    REFUSED = "refused"  # it ended before it began
    BROKEN = "broken"  # it no longer serves


class Attachment:
    """One object for each claim. `incarnation` is random and belongs to this object only."""

    def __init__(
        self, suffix: Suffix, incarnation: str, mode: Mode, history_seconds: int,
        local_bytes_max: int,
    ) -> None:  # fmt: skip
        self.suffix = suffix
        self.incarnation = incarnation
        self.mode = mode
        self.phase = Phase.CLAIMING
        #: A tombstone was seen: only the removal of remaining objects is left to do.
        self.is_deleted = False
        self.history_seconds = history_seconds
        self.local_bytes_max = local_bytes_max
        #: The newest known index in the store: its own, or the one that it began with.
        self.index = PageIndex()
        self.index_name: IndexName | None = None
        #: The contents of the next index.
        self.desired = PageIndex()
        self.projected_lsn = 0
        self.visible_lsn = 0
        self._seq = 0
        self._ticket = -1
        self._asked_lsn = 0
        self._pending: deque[Pending] = deque()
        self._next = Batch()
        self._writing: Writing | None = None
        self.compaction = Compaction()
        #: Condemned names that are held back: before its own first index, and in MULTI.
        self._held: list[Condemn] = []
        self._actions: list[Action] = []

    @property
    def has_own_index(self) -> bool:
        return self.index_name is not None and self.index_name.suffix == self.suffix

    @property
    def may_write(self) -> bool:
        return self.phase is Phase.ACTIVE and self.mode is not Mode.STALE

    @property
    def is_validated(self) -> bool:
        """Whether the next validation should ask about this attachment."""
        return self.may_write and self.mode is not Mode.EMERGENCY

    # ---- the step

    def step(self, event: Event) -> list[Action]:
        self._actions = []
        match event:
            case Begun() | Claimed() | IndicesListed() | IndexLoaded() | IndexDamaged():
                self._begin(event)
            case LocalGrown(local_bytes):
                self._grown(local_bytes)
            case Hinted(hint, names):
                self._hinted(hint, names)
            case Validated(ticket, verdict):
                self._validated(ticket, verdict)
            case Failed(request):
                self._failed(request)
            case _:
                if self.may_write:
                    self._active(event)
        return self._actions

    def _active(
        self,
        event: Changed | Uploaded | IndexUploaded | CollectDue | CompactionEvent | FreshIndexWanted
        | OrphansFound | ValidationBegun | ModeSet,
    ) -> None:  # fmt: skip
        match event:
            case Changed():
                self._changed(event)
            case Uploaded(name):
                self._uploaded(name)
            case IndexUploaded(name):
                self._index_uploaded(name)
            case CollectDue(now_unix_s):
                self._collect(now_unix_s)
            case CompactDue() | LayersSurveyed() | PartMerged() | LayersMerged() | MergeFailed():
                self._compact(event)
            case FreshIndexWanted():
                self._next.is_fresh = True
                self._write_index()
            case OrphansFound(names):
                self._condemn(names)
            case ValidationBegun(ticket):
                self._ticket, self._asked_lsn = ticket, self.projected_lsn
            case ModeSet(mode):
                self.mode = mode
                self._release()
            case _:
                assert_never(event)

    # ---- beginning: laws 1 and 2

    def _begin(self, event: Begun | Claimed | IndicesListed | IndexLoaded | IndexDamaged) -> None:
        """An event that arrives late or twice finds another phase and is ignored."""
        match event:
            case Begun():
                self._actions.append(CreateClaim(self.suffix, self.incarnation))
            case Claimed(incarnation):
                self._claimed(incarnation)
            case IndicesListed(names, is_deleted):
                self._listed(names, is_deleted)
            case IndexLoaded(name, index):
                if self._is_loading(name):
                    self._loaded(index)
            case IndexDamaged(name, why):
                if self._is_loading(name):
                    self._break(AlarmKind.DAMAGED, why)

    def _claimed(self, incarnation: str) -> None:
        if self.phase is not Phase.CLAIMING:
            return
        if incarnation == self.incarnation:
            self._list()
        else:
            self._refuse(f"generation {self.suffix} is already claimed by {incarnation}")

    def _refuse(self, message: str, hint: str = _HINT_ADVANCE) -> None:
        self.phase = Phase.REFUSED
        self._drop_held()
        self._actions.append(Refuse(message, hint))

    def _list(self) -> None:
        self.phase = Phase.LISTING
        self._actions.append(ListIndices())

    def _listed(self, names: Iterable[IndexName], is_deleted: bool) -> None:
        if self.phase is not Phase.LISTING:
            return
        if is_deleted:
            self.is_deleted = True
            self._refuse("the timeline was deleted", "Create a timeline with a new id.")
            return
        newest = max(names, default=None)
        if newest is not None and newest.suffix > self.suffix:
            self._become_stale(AlarmKind.RIVALLED, f"found an index of generation {newest.suffix}")
        self.index_name = self._choose(names)
        if self.index_name is None:
            self._activate(PageIndex())
        elif self.index_name.suffix == self.suffix:
            self._refuse(f"generation {self.suffix} has an index that this process did not write")
        else:
            self.phase = Phase.LOADING
            self._actions.append(LoadIndex(self.index_name))

    def _choose(self, names: Iterable[IndexName]) -> IndexName | None:
        return max((name for name in names if name.suffix <= self.suffix), default=None)

    def _is_loading(self, name: IndexName) -> bool:
        return self.phase is Phase.LOADING and name == self.index_name

    def _loaded(self, index: PageIndex | None) -> None:
        if index is None:
            self._list()  # a newer index was written, and this one was deleted
        else:
            self._activate(index)

    def _activate(self, index: PageIndex) -> None:
        self.phase = Phase.ACTIVE
        self.index = self.desired = index
        self._write_index()

    # ---- writing: law 3

    def _changed(self, change: Changed) -> None:
        layers = [
            LayerRef(new.end_lsn, new.part, self.suffix, self._next_seq(), new.size_bytes)
            for new in change.layers
        ]
        frames = [
            FrameRef(new.end_lsn, self.suffix, self._next_seq(), new.size_bytes)
            for new in change.frames
        ]
        refs: list[LayerRef | FrameRef] = [*layers, *frames]
        missing: set[StoredName] = {ref.name for ref in refs}
        self._pending.append(Pending(change, layers, frames, missing))
        for position, ref in enumerate(refs):
            self._actions.append(Upload(change.number, position, ref))
        self._apply()

    def _next_seq(self) -> int:
        """Law 7."""
        self._seq += 1
        return self._seq

    def _uploaded(self, name: StoredName) -> None:
        for pending in self._pending:
            pending.missing.discard(name)
        self.compaction.uploaded(name)
        self._apply_merge()
        self._apply()

    def _apply(self) -> None:
        """Puts all complete changes, in their order, into the next index."""
        while self._pending and not self._pending[0].missing:
            pending = self._pending.popleft()
            change = pending.change
            self.desired = self.desired.with_cut(
                change.cut, pending.layers, pending.frames, change.base_backup_id
            )
            self._next.changes.append(change.number)
        self._write_index()

    def _collect(self, now_unix_s: int) -> None:
        horizon_lsn = next_horizon_lsn(self.desired, now_unix_s, self.history_seconds)
        if horizon_lsn > self.desired.horizon_lsn:
            self.desired, frames = without_garbage(self.desired, horizon_lsn)
            self._next.dropped += [frame.name for frame in frames]
            self._write_index()

    def _write_index(self) -> None:
        """Writes one index at a time, and only if its contents changed. Its first index is
        always written."""
        is_wanted = self._next.is_fresh or not self.has_own_index
        is_new = self.desired is not self.index
        if self._writing is None and self.may_write and (is_wanted or is_new):
            name = IndexName(self.suffix, self._next_seq())
            self._writing = Writing(name, self.desired, self._next)
            self._next = Batch()
            self._actions.append(UploadIndex(name, self.desired))

    def _index_uploaded(self, name: IndexName) -> None:
        written = self._writing
        if written is None or written.name != name:
            return  # a repeated event
        self._writing = None
        self.index, self.index_name = written.index, name
        self.projected_lsn = self.index.newest_redo_lsn
        self._actions += map(Stored, written.batch.changes)
        self._condemn(written.batch.dropped)
        if written.batch.is_fresh:
            self._actions.append(FreshIndex(name))
        self._write_index()

    # ---- compaction: law 8

    def _compact(self, event: CompactionEvent) -> None:
        if isinstance(event, CompactDue) and self.mode is not Mode.SINGLE:
            return
        before = self.compaction.names
        self._actions += self.compaction.step(event, self.desired, self._name_part)
        if gone := before - self.compaction.names:
            self._condemn(sorted(gone))
        self._apply_merge()

    def _name_part(self, end_lsn: int, part: int, size_bytes: int) -> LayerRef:
        return LayerRef(end_lsn, part, self.suffix, self._next_seq(), size_bytes)

    def _apply_merge(self) -> None:
        """The merged layers are still in the index: no other operation drops layers."""
        merge = self.compaction.take_complete()
        if merge is not None:
            self.desired = self.desired.with_merged(merge.parts, merge.layers)
            self._next.dropped += [layer.name for layer in merge.layers]
            self._next.changes.append(merge.number)
            self._write_index()

    # ---- dropping: laws 3 and 6

    def _condemn(
        self, names: Iterable[StoredName | IndexName], hint: ListName | None = None
    ) -> None:
        """Queues names that no index needs. Such a name never returns into an index."""
        self._held.append(Condemn(tuple(names), hint))
        self._release()

    def _release(self) -> None:
        if self.mode is not Mode.SINGLE or not self.has_own_index:
            return
        held, self._held = self._held, []
        for condemned in held:
            names = tuple(name for name in condemned.names if not self.is_needed(name))
            if names or condemned.hint is not None:
                self._actions.append(Condemn(names, condemned.hint))

    def _hinted(self, hint: ListName, names: Iterable[StoredName | IndexName]) -> None:
        """Held until its first index is written. An attachment that may not judge the names
        confirms none of them."""
        self._condemn(names, hint)
        if self.mode is Mode.STALE or self.phase in (Phase.REFUSED, Phase.BROKEN):
            self._drop_held()

    def _drop_held(self) -> None:
        held, self._held = self._held, []
        hints = [condemned.hint for condemned in held if condemned.hint is not None]
        self._actions += (Condemn((), hint) for hint in hints)

    def is_needed(self, name: StoredName | IndexName) -> bool:
        """Whether an index in the store, being written or planned names it. A name with a greater
        suffix counts as needed, because this attachment may not judge it."""
        if name.suffix > self.suffix:
            return True
        if isinstance(name, IndexName):
            return self.index_name is None or name >= self.index_name
        return (
            name in self.index.names
            or name in self.desired.names
            or (self._writing is not None and name in self._writing.index.names)
            or any(name in pending.names for pending in self._pending)
            or name in self.compaction.names
        )

    # ---- validation: laws 4 and 5

    def _validated(self, ticket: int, verdict: Verdict) -> None:
        if verdict is not Verdict.VALID:
            self.is_deleted |= verdict is Verdict.DELETED
            self._become_stale(_ALARMS[verdict], f"the validation returned {verdict.value}")
        elif ticket == self._ticket and self.is_validated and self._asked_lsn > self.visible_lsn:
            self.visible_lsn = self._asked_lsn
            self._actions.append(Publish(self.visible_lsn))

    def _become_stale(self, kind: AlarmKind, message: str) -> None:
        if self.mode is not Mode.STALE:
            self.mode = Mode.STALE
            self._writing = None
            self._pending.clear()
            self.compaction = Compaction()
            self._drop_held()
            self._actions.append(Alarm(kind, f"generation {self.suffix} is stale: {message}"))

    def _grown(self, local_bytes: int) -> None:
        is_stale = self.mode is Mode.STALE and self.phase is Phase.ACTIVE
        if is_stale and local_bytes > self.local_bytes_max:
            message = (
                f"the attachment uses {local_bytes} bytes of the local disk, "
                f"the limit is {self.local_bytes_max} bytes"
            )
            self._break(AlarmKind.LOCAL_FULL, message)

    def _break(self, kind: AlarmKind, message: str) -> None:
        self.phase = Phase.BROKEN
        self._drop_held()
        self._actions.append(Alarm(kind, message))

    # ---- failures

    def _failed(self, request: Request) -> None:
        """With or without an error, the state of the store is unknown: the request is repeated."""
        match request:
            case CreateClaim():
                is_wanted = self.phase is Phase.CLAIMING
            case ListIndices():
                is_wanted = self.phase is Phase.LISTING
            case LoadIndex():
                is_wanted = self.phase is Phase.LOADING
            case Upload():
                is_wanted = self.may_write and self._is_missing(request.ref.name)
            case UploadIndex():
                is_wanted = self.may_write
        if is_wanted:
            self._actions.append(request)

    def _is_missing(self, name: StoredName) -> bool:
        """Whether an index shall name it and it is not uploaded yet."""
        is_pending = any(name in pending.missing for pending in self._pending)
        return is_pending or self.compaction.is_missing(name)


class AttachDecision(Enum):
    """How a process answers a request to attach a timeline that may already be attached."""

    BEGIN = "begin"  # begin a new attachment, and end the present one
    KEEP = "keep"  # it is already attached; set its mode
    REFUSE = "refuse"  # the request is outdated; if it repeats, the service needs an advance


def decide_attach(attached: Suffix | None, wanted: Suffix) -> AttachDecision:
    """The generation of a timeline never decreases at a node."""
    if attached is None or wanted > attached:
        return AttachDecision.BEGIN
    return AttachDecision.KEEP if wanted == attached else AttachDecision.REFUSE
