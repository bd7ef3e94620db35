"""What goes into the core of the deletion queue and what it orders. Pure values.

The shell executes a list of actions in its order; what fails it gives back as QueueFailed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from consensus.ids import TimelineId
from pageserver.objects.attachment_id import AttachmentId, Verdict
from pageserver.objects.deletion_list import DeletionList, QueueHeader
from pageserver.objects.page_keys import (
    FrameName,
    HeaderName,
    IndexName,
    LayerName,
    ListName,
    QueueName,
)

# ---- events


@dataclass(frozen=True, slots=True)
class QueueBegun:
    """The first event."""


@dataclass(frozen=True, slots=True)
class HeaderCreated:
    """It exists, and says `incarnation`: the own one, or that of another process."""

    name: HeaderName
    incarnation: str


@dataclass(frozen=True, slots=True)
class QueueListed:
    """All of `deletion/NODE/`, with the times of the store's clock."""

    modified_ms: Mapping[QueueName, int]


@dataclass(frozen=True, slots=True)
class HeaderRead:
    """None: 404, or damaged, which the shell has said in its log: nothing is validated by it."""

    name: HeaderName
    header: QueueHeader | None


@dataclass(frozen=True, slots=True)
class ListRead:
    """None: 404."""

    name: ListName
    deletions: DeletionList | None


@dataclass(frozen=True, slots=True)
class ListDamaged:
    """It stays as it is, and nothing that it says is done. What it named is scrubbed."""

    name: ListName


@dataclass(frozen=True, slots=True)
class Condemned:
    """An index of `attachment` is in the store that does not name them. `hint`: that list was
    looked at by this attachment, and these are all of its names that may go."""

    attachment: AttachmentId
    names: tuple[LayerName | FrameName | IndexName, ...]
    hint: ListName | None = None


@dataclass(frozen=True, slots=True)
class RoundDue:
    """Time to look: what is in memory becomes a list, whatever its size; and what may be executed
    is, if there are lists."""


@dataclass(frozen=True, slots=True)
class LookDue:
    """The next round begins although no list is known: a late request may have brought one back.
    Once an hour is enough."""


@dataclass(frozen=True, slots=True)
class ListPersisted:
    name: ListName


@dataclass(frozen=True, slots=True)
class QueueValidationBegun:
    ticket: int


@dataclass(frozen=True, slots=True)
class QueueValidated:
    ticket: int
    verdicts: Mapping[AttachmentId, Verdict]


@dataclass(frozen=True, slots=True)
class KeysDeleted:
    """A request of a list was done; what did not exist was deleted already."""

    name: ListName
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Removed:
    names: tuple[QueueName, ...]


@dataclass(frozen=True, slots=True)
class TimelineDetached:
    """The attachment that has hints ends, or there is none: what they name is left to a scrub."""

    timeline: TimelineId


# ---- actions


@dataclass(frozen=True, slots=True)
class CreateHeader:
    """Create it, and read it if it exists."""

    name: HeaderName
    header: QueueHeader


@dataclass(frozen=True, slots=True)
class ListQueue:
    pass


@dataclass(frozen=True, slots=True)
class ReadHeader:
    name: HeaderName


@dataclass(frozen=True, slots=True)
class ReadList:
    name: ListName


@dataclass(frozen=True, slots=True)
class PersistList:
    name: ListName
    deletions: DeletionList


@dataclass(frozen=True, slots=True)
class DeleteKeys:
    """One request; keys relative to the store."""

    name: ListName
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RemoveFromQueue:
    names: tuple[QueueName, ...]


@dataclass(frozen=True, slots=True)
class Hint:
    """For the attachment of that timeline; without one the answer is TimelineDetached."""

    timeline: TimelineId
    hint: ListName
    names: tuple[LayerName | FrameName | IndexName, ...]


@dataclass(frozen=True, slots=True)
class EndQueue:
    """The node has another process, or had one under this generation: this one must end."""

    message: str
    hint: str


StoreAction: TypeAlias = (
    CreateHeader | ListQueue | ReadHeader | ReadList | PersistList | DeleteKeys | RemoveFromQueue
)
QueueAction: TypeAlias = StoreAction | Hint | EndQueue


@dataclass(frozen=True, slots=True)
class QueueFailed:
    """It was not done, or it is not known whether it was."""

    action: StoreAction


QueueEvent: TypeAlias = (
    QueueBegun | HeaderCreated | QueueListed | HeaderRead | ListRead | ListDamaged | Condemned
    | RoundDue | LookDue | ListPersisted | QueueValidationBegun | QueueValidated | KeysDeleted
    | Removed | TimelineDetached | QueueFailed
)  # fmt: skip
