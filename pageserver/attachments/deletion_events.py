"""The events and actions of the deletion queue's core. Pure values.

The shell executes the actions of a list in their order. It returns a failed action as QueueFailed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from quorum_wal.consensus.ids import TimelineId
from quorum_wal.pageserver.objects.attachment_id import AttachmentId, Verdict
from quorum_wal.pageserver.objects.deletion_list import DeletionList, QueueHeader
from quorum_wal.pageserver.objects.page_keys import (
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
    """The header exists and names `incarnation`: that of this process, or of another one."""

    name: HeaderName
    incarnation: str


@dataclass(frozen=True, slots=True)
class QueueListed:
    """All names in `deletion/NODE/`, with modification times by the store's clock."""

    modified_ms: Mapping[QueueName, int]


@dataclass(frozen=True, slots=True)
class HeaderRead:
    """`header` is None if it does not exist (404), or if it is damaged, which the shell has logged.
    Such a header validates nothing."""

    name: HeaderName
    header: QueueHeader | None


@dataclass(frozen=True, slots=True)
class ListRead:
    """`deletions` is None if the list does not exist (404)."""

    name: ListName
    deletions: DeletionList | None


@dataclass(frozen=True, slots=True)
class ListDamaged:
    """The list is kept and not executed. A scrub deletes the objects that it named."""

    name: ListName


@dataclass(frozen=True, slots=True)
class Condemned:
    """An index of `attachment` that does not name these objects is in the store. If `hint` is set,
    this attachment has checked that list, and `names` are all of its names that may be deleted."""

    attachment: AttachmentId
    names: tuple[LayerName | FrameName | IndexName, ...]
    hint: ListName | None = None


@dataclass(frozen=True, slots=True)
class RoundDue:
    """Time for a round: the names in memory become a list, whatever their size. If there are lists,
    those that are due are executed."""


@dataclass(frozen=True, slots=True)
class FullRoundDue:
    """The next round begins even if no list is known, because a late request may have created a
    list again. Once an hour is sufficient."""


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
    """A delete request of a list succeeded. Objects that did not exist count as deleted."""

    name: ListName
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Removed:
    names: tuple[QueueName, ...]


@dataclass(frozen=True, slots=True)
class TimelineDetached:
    """The attachment that has hints ended or is missing. A scrub deletes the hinted objects."""

    timeline: TimelineId


# ---- actions


@dataclass(frozen=True, slots=True)
class CreateHeader:
    """Create the header, or read it if it exists."""

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
    """One delete request. Keys are relative to the store."""

    name: ListName
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RemoveFromQueue:
    names: tuple[QueueName, ...]


@dataclass(frozen=True, slots=True)
class Hint:
    """For the attachment of `timeline`. Without one, the shell answers TimelineDetached."""

    timeline: TimelineId
    hint: ListName
    names: tuple[LayerName | FrameName | IndexName, ...]


@dataclass(frozen=True, slots=True)
class EndQueue:
    """The node has a newer process, or this generation was used before: the process must end."""

    message: str
    hint: str


StoreAction: TypeAlias = (
    CreateHeader | ListQueue | ReadHeader | ReadList | PersistList | DeleteKeys | RemoveFromQueue
)
QueueAction: TypeAlias = StoreAction | Hint | EndQueue


@dataclass(frozen=True, slots=True)
class QueueFailed:
    """The action failed, or its outcome is unknown."""

    action: StoreAction


QueueEvent: TypeAlias = (
    QueueBegun | HeaderCreated | QueueListed | HeaderRead | ListRead | ListDamaged | Condemned
    | RoundDue | FullRoundDue | ListPersisted | QueueValidationBegun | QueueValidated | KeysDeleted
    | Removed | TimelineDetached | QueueFailed
)  # fmt: skip
