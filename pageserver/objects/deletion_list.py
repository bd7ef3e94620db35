"""The contents of claims, and of the lists and headers of a deletion queue. Pure.

    all sealed (objectstore/sealed.py), JSON:
    claim   {"format": 1, "incarnation": "32 hex digits"}
    list    {"format": 1, "entries": [{"timeline": "TENANT/TIMELINE", "suffix": "000007000300001A",
                                       "names": ["layers/...", ...]}, ...]}
    header  {"format": 1, "incarnation": "32 hex digits", "validated_seq": 41,
             "invalid": [{"timeline": "TENANT/TIMELINE", "suffix": ...}, ...]}

Law. A list may name only layers, frames and indices. Claims and tombstones are never deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct

from quorum_wal.consensus.errors import MessageError
from quorum_wal.consensus.ids import TimelineId
from quorum_wal.generations.errors import GenerationError
from quorum_wal.generations.suffix import Suffix
from quorum_wal.objectstore.errors import ObjectDamaged
from quorum_wal.objectstore.sealed import seal, unseal
from quorum_wal.pageserver.objects.attachment_id import AttachmentId
from quorum_wal.pageserver.objects.page_keys import (
    SEQ_MAX,
    FrameName,
    IndexName,
    LayerName,
    parse_page_name,
)

FORMAT = 1
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DeletionList:
    """Names relative to the timeline's `pages/`, by the attachment that dropped them."""

    names: Mapping[AttachmentId, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class QueueHeader:
    """Lists of its suffix are valid up to `validated_seq`, except the names of `invalid`
    attachments."""

    incarnation: str
    validated_seq: int = 0
    invalid: frozenset[AttachmentId] = frozenset()


# ---- bytes


class _Format(Struct):
    format: int


class _Claim(Struct, forbid_unknown_fields=True):
    format: int
    incarnation: str


class _Attachment(Struct, forbid_unknown_fields=True):
    timeline: str
    suffix: str


class _Entry(Struct, forbid_unknown_fields=True):
    timeline: str
    suffix: str
    names: list[str]


class _List(Struct, forbid_unknown_fields=True):
    format: int
    entries: list[_Entry]


class _Header(Struct, forbid_unknown_fields=True):
    format: int
    incarnation: str
    validated_seq: Annotated[int, Meta(ge=0, le=SEQ_MAX)]
    invalid: list[_Attachment]


def encode_claim(incarnation: str) -> bytes:
    return seal(msgspec.json.encode(_Claim(FORMAT, incarnation)))


def decode_claim(data: bytes, key: str) -> str:
    """Returns the incarnation. Raises ObjectDamaged."""
    return _decode(data, key, _Claim).incarnation


def encode_list(deletions: DeletionList) -> bytes:
    entries = [
        _Entry(str(attachment.timeline), attachment.suffix.format(), list(names))
        for attachment, names in deletions.names.items()
    ]
    return seal(msgspec.json.encode(_List(FORMAT, entries)))


def decode_list(data: bytes, key: str) -> DeletionList:
    """Raises ObjectDamaged."""
    names = dict[AttachmentId, tuple[str, ...]]()
    for entry in _decode(data, key, _List).entries:
        for name in entry.names:
            if not isinstance(parse_page_name(name), LayerName | FrameName | IndexName):
                raise _damaged(key, f"it names {name[:80]!r}, which must not be deleted")
        names[_attachment(entry.timeline, entry.suffix, key)] = tuple(entry.names)
    return DeletionList(names)


def encode_header(header: QueueHeader) -> bytes:
    invalid = [_Attachment(str(a.timeline), a.suffix.format()) for a in sorted(header.invalid)]
    page = _Header(FORMAT, header.incarnation, header.validated_seq, invalid)
    return seal(msgspec.json.encode(page))


def decode_header(data: bytes, key: str) -> QueueHeader:
    """Raises ObjectDamaged."""
    page = _decode(data, key, _Header)
    invalid = frozenset(_attachment(each.timeline, each.suffix, key) for each in page.invalid)
    return QueueHeader(page.incarnation, page.validated_seq, invalid)


#: msgspec prepares a type when it is first used, which is not thread-safe.
_PREPARED = tuple(msgspec.json.Decoder(kind) for kind in (_Format, _Claim, _List, _Header))


def _decode(data: bytes, key: str, kind: type[T]) -> T:
    content = unseal(data, key)
    try:
        found = msgspec.json.decode(content, type=_Format).format
        if found > FORMAT:
            raise ObjectDamaged(
                f'object "{key}" has format {found}, expected {FORMAT}',
                hint="A newer version of sk has written it. Upgrade sk.",
            )
        if found < FORMAT:
            raise _damaged(key, f"expected format {FORMAT}, found {found}")
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _damaged(key, " ".join(str(error).split())) from error


def _attachment(timeline: str, suffix: str, key: str) -> AttachmentId:
    try:
        found = AttachmentId(TimelineId.parse(timeline), Suffix.parse(suffix))
    except (MessageError, GenerationError) as error:
        raise _damaged(key, str(error)) from error
    return found


def _damaged(key: str, why: str) -> ObjectDamaged:
    return ObjectDamaged(f'object "{key}" is damaged: {why}')
