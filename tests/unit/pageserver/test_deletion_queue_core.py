"""The core of the deletion queue, step by step."""

from __future__ import annotations

from quorum_wal.consensus.ids import TimelineId
from quorum_wal.generations.suffix import Suffix
from quorum_wal.objectstore.delete_requests import DELETE_KEYS_MAX
from quorum_wal.pageserver.attachments import deletion_queue
from quorum_wal.pageserver.attachments.deletion_events import (
    Condemned,
    CreateHeader,
    DeleteKeys,
    EndQueue,
    FullRoundDue,
    HeaderCreated,
    HeaderRead,
    Hint,
    KeysDeleted,
    ListDamaged,
    ListPersisted,
    ListQueue,
    ListRead,
    PersistList,
    QueueAction,
    QueueBegun,
    QueueFailed,
    QueueListed,
    QueueValidated,
    QueueValidationBegun,
    ReadHeader,
    ReadList,
    Removed,
    RemoveFromQueue,
    RoundDue,
    TimelineDetached,
)
from quorum_wal.pageserver.attachments.deletion_queue import DeletionQueue, QueuePhase
from quorum_wal.pageserver.objects.attachment_id import AttachmentId, Verdict
from quorum_wal.pageserver.objects.deletion_list import DeletionList, QueueHeader
from quorum_wal.pageserver.objects.page_keys import (
    HeaderName,
    IndexName,
    LayerName,
    ListName,
    PageKeys,
    QueueName,
)

BEFORE, OWN, LATER = (Suffix.pack(0, 1, generation) for generation in (1, 2, 3))
TIMELINE, OTHER = (TimelineId(bytes(16), letter * 16) for letter in (b"t", b"o"))
MINE = AttachmentId(TIMELINE, Suffix.pack(5, 1, 2))
THEIRS = AttachmentId(OTHER, Suffix.pack(6, 1, 2))
GRACE_MS = 1000
CLAIM = HeaderName(OWN, 0)


def layer(seq: int) -> LayerName:
    return LayerName(100, 0, MINE.suffix, seq)


def begun(listing: dict[QueueName, int] | None = None) -> tuple[DeletionQueue, list[QueueAction]]:
    """A queue that has claimed its suffix, and its actions for the listing."""
    core = DeletionQueue(OWN, "mine", GRACE_MS)
    assert core.step(QueueBegun()) == [CreateHeader(CLAIM, QueueHeader("mine"))]
    assert core.step(HeaderCreated(CLAIM, "mine")) == [ListQueue()]
    return core, core.step(QueueListed({CLAIM: 5000, **(listing or {})}))


def persisted(core: DeletionQueue) -> PersistList:
    (wanted, *creates) = core.step(RoundDue())
    assert isinstance(wanted, PersistList)
    for create in creates:
        assert isinstance(create, CreateHeader)
        core.step(HeaderCreated(create.name, "mine"))
    core.step(ListPersisted(wanted.name))
    return wanted


def validate(core: DeletionQueue, ticket: int, **others: Verdict) -> None:
    core.step(QueueValidationBegun(ticket))
    verdicts = {MINE: Verdict.VALID, THEIRS: others.get("theirs", Verdict.VALID)}
    core.step(QueueValidated(ticket, verdicts))


def look(core: DeletionQueue, listing: dict[QueueName, int]) -> list[QueueAction]:
    """Runs a round `GRACE_MS` after the last list was written. Returns its actions."""
    core.step(FullRoundDue())
    (create,) = (a for a in core.step(RoundDue()) if isinstance(a, CreateHeader))
    assert core.step(HeaderCreated(create.name, "mine")) == [ListQueue()]
    now_ms = max(listing.values()) + GRACE_MS
    return core.step(QueueListed({CLAIM: 5000, create.name: now_ms, **listing}))


def test_from_condemned_to_deleted() -> None:
    core, actions = begun()
    assert actions == []
    core.step(Condemned(MINE, (layer(1), IndexName(MINE.suffix, 2))))
    core.step(Condemned(THEIRS, (layer(3),)))
    wanted = persisted(core)
    assert wanted.name == ListName(OWN, 1)
    assert core.unvalidated == {MINE, THEIRS}
    assert look(core, {wanted.name: 6000}) == []  # not validated
    validate(core, 1, theirs=Verdict.OUTDATED)
    assert core.unvalidated == frozenset()
    assert ReadList(wanted.name) in look(core, {wanted.name: 6000})
    keys = tuple(PageKeys(TIMELINE).key(n) for n in (layer(1), IndexName(MINE.suffix, 2)))
    assert core.step(ListRead(wanted.name, wanted.deletions)) == [DeleteKeys(wanted.name, keys)]
    assert core.step(QueueFailed(DeleteKeys(wanted.name, keys))) == [DeleteKeys(wanted.name, keys)]
    assert core.step(KeysDeleted(wanted.name, keys)) == [RemoveFromQueue((wanted.name,))]
    assert core.step(Removed((wanted.name,))) == []


def test_the_grace_period_uses_the_clock_of_the_store() -> None:
    core, _ = begun()
    core.step(Condemned(MINE, (layer(1),)))
    old = persisted(core)
    core.step(Condemned(MINE, (layer(2),)))
    young = persisted(core)
    validate(core, 1)
    (create,) = core.step(RoundDue())
    assert isinstance(create, CreateHeader)
    assert create.header.validated_seq == 2
    core.step(HeaderCreated(create.name, "mine"))
    now_ms = 6000 + GRACE_MS
    listing = {CLAIM: 5000, create.name: now_ms, old.name: 6000, young.name: 6001}
    reads = [a for a in core.step(QueueListed(listing)) if isinstance(a, ReadList)]
    assert reads == [ReadList(old.name)]


def test_only_lists_stored_before_the_validation_are_validated() -> None:
    core, _ = begun()
    core.step(Condemned(MINE, (layer(1),)))
    (wanted,) = core.step(RoundDue())
    assert isinstance(wanted, PersistList)
    core.step(QueueValidationBegun(1))
    core.step(ListPersisted(wanted.name))
    core.step(QueueValidated(1, {MINE: Verdict.VALID}))
    assert core.header.validated_seq == 0
    validate(core, 2)
    assert core.header.validated_seq == 1


def test_many_names_become_several_lists_and_requests() -> None:
    core, _ = begun()
    count = 2 * deletion_queue.LIST_BYTES_MAX // len(layer(1).format())
    actions = core.step(Condemned(MINE, tuple(map(layer, range(count)))))
    lists = [action for action in actions if isinstance(action, PersistList)]
    assert len(lists) == 1  # the rest is smaller than one list
    (rest, *_) = core.step(RoundDue())
    assert isinstance(rest, PersistList)
    lists.append(rest)
    for wanted in lists:
        core.step(ListPersisted(wanted.name))
    validate(core, 1)
    look(core, {wanted.name: 6000 for wanted in lists})
    requests = core.step(ListRead(lists[0].name, lists[0].deletions))
    sizes = [len(request.keys) for request in requests if isinstance(request, DeleteKeys)]
    assert sum(sizes) == len(lists[0].deletions.names[MINE])
    assert set(sizes[:-1]) == {DELETE_KEYS_MAX}


def test_lists_of_an_earlier_process() -> None:
    """Lists that its header validates are executed; others are hints."""
    header, valid, hint = HeaderName(BEFORE, 3), ListName(BEFORE, 1), ListName(BEFORE, 2)
    core, actions = begun({HeaderName(BEFORE, 0): 1, header: 2, valid: 3, hint: 4})
    assert actions == [ReadHeader(header)]
    deletions = DeletionList({MINE: (layer(1).format(),), THEIRS: (layer(2).format(),)})
    actions = core.step(HeaderRead(header, QueueHeader("old", 1, frozenset({THEIRS}))))
    assert actions == [ReadList(valid), ReadList(hint)]
    key = PageKeys(TIMELINE).key(layer(1))
    assert core.step(ListRead(valid, deletions)) == [DeleteKeys(valid, (key,))]
    hints = core.step(ListRead(hint, deletions))
    assert hints == [Hint(TIMELINE, hint, (layer(1),)), Hint(OTHER, hint, (layer(2),))]
    assert core.step(Condemned(MINE, (layer(1),), hint)) == []
    assert core.step(TimelineDetached(OTHER)) == []
    (wanted, _) = core.step(RoundDue())
    assert isinstance(wanted, PersistList)
    assert wanted.deletions == DeletionList({MINE: (layer(1).format(),)})
    assert core.step(ListPersisted(wanted.name)) == [RemoveFromQueue((hint,))]


def test_lists_without_a_header_are_hints() -> None:
    hint = ListName(BEFORE, 2)
    core, actions = begun({hint: 3})
    assert actions == [ReadList(hint)]
    assert core.step(ListRead(hint, None)) == []  # another process has removed it
    core, _ = begun({hint: 3})
    assert core.step(ListDamaged(hint)) == []
    assert not any(isinstance(action, ReadList) for action in look(core, {hint: 3}))


def test_a_header_validates_lists_of_its_own_suffix_only() -> None:
    """An earlier process that still runs uses the same sequence numbers at the same time."""
    core, _ = begun()
    core.step(Condemned(MINE, (layer(1),)))
    assert persisted(core).name.seq == 1
    validate(core, 1)
    late = ListName(BEFORE, 1)
    assert ReadList(late) in look(core, {late: 6000})
    hints = core.step(ListRead(late, DeletionList({MINE: (layer(2).format(),)})))
    assert hints == [Hint(TIMELINE, late, (layer(2),))]


def test_a_missing_header_validates_nothing() -> None:
    header, hint = HeaderName(BEFORE, 3), ListName(BEFORE, 2)
    core, _ = begun({header: 2, hint: 3})
    assert core.step(HeaderRead(header, None)) == [ReadList(hint)]
    assert core.step(ListRead(hint, DeletionList({MINE: (layer(1).format(),)}))) == [
        Hint(TIMELINE, hint, (layer(1),))
    ]


def test_another_process() -> None:
    """With the same generation or a later one: this process ends."""
    core = DeletionQueue(OWN, "mine", GRACE_MS)
    core.step(QueueBegun())
    (end,) = core.step(HeaderCreated(CLAIM, "another"))
    assert isinstance(end, EndQueue)
    core, (end,) = begun({HeaderName(LATER, 0): 1})
    assert isinstance(end, EndQueue)
    assert core.phase is QueuePhase.ENDED
    assert core.step(RoundDue()) == core.step(QueueFailed(ListQueue())) == []
