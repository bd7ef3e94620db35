"""The core of a process's deletion queue: deletes objects that its indices no longer name. Pure.

    condemned -> list in the store -> validated -> header in the store -> grace over -> deleted
                                                   (the horizon)                     -> list removed

`step(event) -> list[Action]` is the only mutator. Laws.

1. Incoming names are named by no valid index (`attachment.py`, law 3). Two conditions must hold
   before a list is executed: a validation that began after the list was in the store returned
   VALID for its attachments, and a header that records this is in the store. A validated list
   stays valid, because each later attachment began with an index that does not name its objects.
   The names of an attachment that is not VALID are skipped; the rest of the list is executed.
2. A header validates lists of its own suffix only: another process of this node may use the same
   sequence numbers at the same time.
3. A list is executed `grace_ms` after it was written, by the store's clock, so that readers can
   finish. A round begins by writing a header; the header's time in the listing is the current time.
4. Lists of earlier processes are executed if a header of their suffix validates them. All others
   are hints, which the attachment checks. Names that it confirms are queued as new ones (law 1).
5. The first header claims the suffix, as an attachment's claim does. If the listing has a name
   with a greater suffix, this process is not the newest, and it ends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import assert_never

from quorum_wal.consensus.ids import TimelineId
from quorum_wal.generations.suffix import Suffix
from quorum_wal.objectstore.delete_requests import delete_requests
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
    QueueEvent,
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
from quorum_wal.pageserver.objects.attachment_id import AttachmentId, Verdict
from quorum_wal.pageserver.objects.deletion_list import DeletionList, QueueHeader
from quorum_wal.pageserver.objects.page_keys import (
    FrameName,
    HeaderName,
    IndexName,
    LayerName,
    ListName,
    PageKeys,
    QueueName,
    parse_page_name,
)

#: Total size of the names in one list.
LIST_BYTES_MAX = 1 << 20


class QueuePhase(Enum):
    CLAIMING = "claiming"
    ACTIVE = "active"
    ENDED = "ended"


class _ReadPurpose(Enum):
    """The purpose of reading a list."""

    EXECUTE = "execute"
    HINT = "hint"


@dataclass(frozen=True, slots=True)
class _Round:
    """The result of a listing, as of the header that began the round."""

    #: Age of each list, in ms.
    lists: Mapping[ListName, int]
    #: The newest header of each suffix that has lists.
    headers: Mapping[Suffix, HeaderName]
    #: Headers no longer needed. The first of a suffix is its claim and is never removed.
    spent: tuple[HeaderName, ...]

    @classmethod
    def of(cls, listing: QueueListed, now: HeaderName) -> _Round:
        modified_ms = listing.modified_ms
        lists = {
            name: modified_ms[now] - at_ms
            for name, at_ms in sorted(modified_ms.items(), key=_order)
            if isinstance(name, ListName)
        }
        all_headers = sorted(name for name in modified_ms if isinstance(name, HeaderName))
        newest = {name.suffix: name for name in all_headers}
        suffixes = {name.suffix for name in lists}
        needed = {newest[now.suffix], *(newest[s] for s in suffixes if s in newest)}
        spent = tuple(name for name in all_headers if name.seq and name not in needed)
        return cls(lists, {s: newest[s] for s in suffixes if s in newest}, spent)


class DeletionQueue:
    """One object per process. `suffix` is the node's: its attachment generation is 0."""

    def __init__(self, suffix: Suffix, incarnation: str, grace_ms: int) -> None:
        assert suffix.attachment_generation == 0, suffix
        self.suffix = suffix
        self.incarnation = incarnation
        self.grace_ms = grace_ms
        self.phase = QueuePhase.CLAIMING
        self.header = QueueHeader(incarnation)
        self._creating = (HeaderName(suffix, 0), self.header)
        self._list_seq = 0
        #: Names in memory, not in a list yet; and their total length.
        self._buffer: defaultdict[AttachmentId, list[str]] = defaultdict(list)
        self._buffer_bytes = 0
        #: This process's lists that are not removed yet, and the attachments of their names.
        self._lists: dict[int, frozenset[AttachmentId]] = {}
        self._unpersisted: set[int] = set()
        self._ticket = -1
        self._asked_seq = 0
        #: The newest header read of each suffix.
        self._headers: dict[HeaderName, QueueHeader] = {}
        self._round: _Round | None = None
        self._used: dict[ListName, _ReadPurpose] = {}
        self._requests: dict[ListName, set[tuple[str, ...]]] = {}
        #: For each hint, the timelines that have not checked it yet.
        self._hinted: dict[ListName, set[TimelineId]] = {}
        #: Hints to remove as soon as the list with their confirmed names is in the store.
        self._answered: list[ListName] = []
        self._replaced: dict[ListName, tuple[ListName, ...]] = {}
        self._is_round_due = True
        self._actions: list[QueueAction] = []

    @property
    def unvalidated(self) -> frozenset[AttachmentId]:
        """The attachments that the next validation should ask about."""
        lists = self._lists.items()
        return frozenset().union(*(a for seq, a in lists if seq > self.header.validated_seq))

    @property
    def list_count(self) -> int:
        """Lists of this process that are not removed yet."""
        return len(self._lists)

    @property
    def unvalidated_count(self) -> int:
        """Those of them that no validation has covered yet."""
        return sum(seq > self.header.validated_seq for seq in list(self._lists))

    # ---- the step

    def step(self, event: QueueEvent) -> list[QueueAction]:
        self._actions = []
        match event:
            case QueueBegun():
                self._actions.append(CreateHeader(*self._creating))
            case HeaderCreated(name, incarnation):
                self._header_created(name, incarnation)
            case QueueFailed(action):
                if self.phase is not QueuePhase.ENDED:
                    self._actions.append(action)
            case _:
                if self.phase is QueuePhase.ACTIVE:
                    self._active(event)
        return self._actions

    def _active(
        self,
        event: QueueListed | HeaderRead | ListRead | ListDamaged | Condemned | RoundDue
        | FullRoundDue | ListPersisted | QueueValidationBegun | QueueValidated | KeysDeleted
        | Removed | TimelineDetached,
    ) -> None:  # fmt: skip
        match event:
            case QueueListed():
                self._listed(event)
            case HeaderRead(name, header):
                self._headers[name] = header or QueueHeader("")
                self._handle_lists()
            case ListRead(name, deletions):
                self._list_read(name, deletions)
            case ListDamaged():
                pass  # it stays marked as used, so it is not read again
            case Condemned():
                self._condemned(event)
            case RoundDue():
                self._flush()
                self._begin_round()
            case FullRoundDue():
                self._is_round_due = True
            case ListPersisted(name):
                self._persisted(name)
            case QueueValidationBegun(ticket):
                first = min(self._unpersisted, default=self._list_seq + 1)
                self._ticket, self._asked_seq = ticket, first - 1
            case QueueValidated(ticket, verdicts):
                self._validated(ticket, verdicts)
            case KeysDeleted(name, keys):
                self._keys_deleted(name, keys)
            case Removed(names):
                self._removed(names)
            case TimelineDetached(timeline):
                for hint in self._hinted:
                    self._hint_checked(hint, timeline)
            case _:
                assert_never(event)

    # ---- headers: laws 2 and 5

    def _header_created(self, name: HeaderName, incarnation: str) -> None:
        created, header = self._creating
        if self.phase is QueuePhase.ENDED or name != created or name in self._headers:
            return
        if incarnation != self.incarnation:
            self._end(f"node generation {self.suffix} is already claimed by {incarnation}")
            return
        self.phase = QueuePhase.ACTIVE
        self._headers[name] = header
        self._actions.append(ListQueue())

    def _end(self, message: str) -> None:
        self.phase = QueuePhase.ENDED
        hint = (
            "Give each pageserver a different --node-id. If the generation service was restored "
            "from an old copy, run sk generations advance."
        )
        self._actions.append(EndQueue(message, hint))

    # ---- incoming names

    def _condemned(self, condemned: Condemned) -> None:
        for name in condemned.names:
            text = name.format()
            self._buffer[condemned.attachment].append(text)
            self._buffer_bytes += len(text)
            if self._buffer_bytes >= LIST_BYTES_MAX:
                self._flush()
        if condemned.hint is not None:
            self._hint_checked(condemned.hint, condemned.attachment.timeline)

    def _flush(self) -> None:
        answered, self._answered = tuple(self._answered), []
        if not self._buffer:
            self._remove(answered)
            return
        self._list_seq += 1
        name = ListName(self.suffix, self._list_seq)
        self._lists[name.seq] = frozenset(self._buffer)
        self._unpersisted.add(name.seq)
        self._replaced[name] = answered
        names = {attachment: tuple(texts) for attachment, texts in self._buffer.items()}
        self._buffer.clear()
        self._buffer_bytes = 0
        self._actions.append(PersistList(name, DeletionList(names)))

    def _persisted(self, name: ListName) -> None:
        self._unpersisted.discard(name.seq)
        self._is_round_due = True
        self._remove(self._replaced.pop(name, ()))

    # ---- validation: law 1

    def _validated(self, ticket: int, verdicts: Mapping[AttachmentId, Verdict]) -> None:
        stale = {each for each, verdict in verdicts.items() if verdict is not Verdict.VALID}
        for attachment in stale & self._buffer.keys():
            del self._buffer[attachment]
        if ticket != self._ticket:
            return
        seqs = range(self.header.validated_seq + 1, self._asked_seq + 1)
        asked = frozenset().union(*(self._lists.get(seq, ()) for seq in seqs))
        # Kept permanently: a late request may create a removed list again.
        invalid = self.header.invalid | {
            each for each in asked if verdicts.get(each) is not Verdict.VALID
        }
        validated_seq = max(self.header.validated_seq, self._asked_seq)
        self.header = QueueHeader(self.incarnation, validated_seq, invalid)

    # ---- a round: laws 2, 3 and 4

    def _begin_round(self) -> None:
        """Writes a header with the present validations, if a round is due and none is running."""
        name = self._creating[0]
        if self._is_round_due and name in self._headers:
            self._creating = (HeaderName(self.suffix, name.seq + 1), self.header)
            self._actions.append(CreateHeader(*self._creating))

    def _listed(self, listing: QueueListed) -> None:
        header = self._creating[0]
        if header not in listing.modified_ms:
            return  # the listing belongs to an earlier round
        newest = max(name.suffix for name in listing.modified_ms)
        if newest > self.suffix:
            self._end(f"node generation {self.suffix} was replaced by {newest}")
            return
        self._round = _Round.of(listing, header)
        self._actions += (
            ReadHeader(name) for name in self._round.headers.values() if name not in self._headers
        )
        self._handle_lists()

    def _handle_lists(self) -> None:
        """Handles all lists of the listing once every header that covers them is read."""
        found = self._round
        if found is None or any(name not in self._headers for name in found.headers.values()):
            return
        self._round = None
        self._is_round_due = bool(found.lists) or bool(self._buffer)
        for name, age_ms in found.lists.items():
            if name in self._used:
                continue
            header = found.headers.get(name.suffix)
            if header is not None and name.seq <= self._headers[header].validated_seq:
                if age_ms >= self.grace_ms:
                    self._read(name, _ReadPurpose.EXECUTE)
            elif name.suffix < self.suffix:
                self._read(name, _ReadPurpose.HINT)
        self._remove(found.spent)

    def _read(self, name: ListName, use: _ReadPurpose) -> None:
        self._used[name] = use
        self._actions.append(ReadList(name))

    def _list_read(self, name: ListName, deletions: DeletionList | None) -> None:
        use = self._used.get(name)
        if deletions is None:
            self._forget(name)
        elif use is _ReadPurpose.EXECUTE and name not in self._requests:
            self._execute(name, deletions)
        elif use is _ReadPurpose.HINT and name not in self._hinted:
            self._send_hints(name, deletions)

    # ---- deleting

    def _execute(self, name: ListName, deletions: DeletionList) -> None:
        header = max(each for each in self._headers if each.suffix == name.suffix)
        invalid = self._headers[header].invalid
        keys = [
            PageKeys(attachment.timeline).prefix + text
            for attachment, texts in deletions.names.items()
            for text in texts
            if attachment not in invalid
        ]
        requests = [*delete_requests(keys)]
        self._requests[name] = set(requests)
        self._actions += (DeleteKeys(name, request) for request in requests)
        if not requests:
            self._remove([name])

    def _keys_deleted(self, name: ListName, keys: tuple[str, ...]) -> None:
        missing = self._requests.get(name, set())
        if keys in missing:
            missing.discard(keys)
            if not missing:
                self._remove([name])

    def _remove(self, names: Iterable[QueueName]) -> None:
        if removed := tuple(names):
            self._actions.append(RemoveFromQueue(removed))

    def _removed(self, names: Iterable[QueueName]) -> None:
        for name in names:
            if isinstance(name, ListName):
                self._forget(name)
            else:
                self._headers.pop(name, None)

    def _forget(self, name: ListName) -> None:
        self._requests.pop(name, None)
        self._hinted.pop(name, None)
        self._used.pop(name, None)
        if name.suffix == self.suffix:
            self._lists.pop(name.seq, None)

    # ---- hints: law 4

    def _send_hints(self, name: ListName, deletions: DeletionList) -> None:
        texts = defaultdict[TimelineId, list[str]](list)
        for attachment, found in deletions.names.items():
            texts[attachment.timeline] += found
        self._hinted[name] = set(texts)
        for timeline, of_it in texts.items():
            self._actions.append(Hint(timeline, name, tuple(map(_named, of_it))))
        if not texts:
            self._answered.append(name)

    def _hint_checked(self, name: ListName, timeline: TimelineId) -> None:
        waiting = self._hinted.get(name)
        if waiting and timeline in waiting:
            waiting.discard(timeline)
            if not waiting:
                self._answered.append(name)


def _order(item: tuple[QueueName, int]) -> tuple[Suffix, int]:
    return item[0].suffix, item[0].seq


def _named(text: str) -> LayerName | FrameName | IndexName:
    """The name was validated when its list was decoded."""
    name = parse_page_name(text)
    assert isinstance(name, LayerName | FrameName | IndexName), text
    return name
