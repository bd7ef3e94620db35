"""Names of the objects of a timeline's pages, and of a node's deletion queue. Pure.

    TENANT/TIMELINE/pages/
        attachments/000007000300001A                             claimed, with a random incarnation
        deleted                                                  tombstone: the pages are deleted
        frames/0000000005000028-000007000300001A-0000002A        end LSN, suffix, sequence
        index/000007000300001A-0000002A                          suffix, sequence
        layers/0000000005000028-0001-000007000300001A-0000002A   end LSN, part, suffix, sequence
    deletion/0003/
        0000002A-000000000300001A.list                           sequence, suffix
        header-000000000300001A-0000002A                         suffix, sequence

Laws. A name is never used twice: a suffix belongs to one attachment (its claim is created once),
and the attachment numbers its objects consecutively. An object keeps the suffix of its creator; no
function has a default for the suffix. Numbers are hex digits in upper case, so that names sort as
their numbers do. `parse` and `format` are inverse to each other. Unknown names parse to None.

A name is relative to `pages/` or to `deletion/NODE/`; a key is the full path. A suffix of the
deletion queue is the node's: its attachment generation is 0.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

from quorum_wal.consensus.ids import TimelineId
from quorum_wal.generations.suffix import Suffix
from quorum_wal.objectstore.keys import timeline_prefix

CLAIMS = "attachments/"
FRAMES = "frames/"
INDICES = "index/"
LAYERS = "layers/"
TOMBSTONE = "deleted"
DELETION = "deletion/"

SEQ_MAX = (1 << 32) - 1
PART_MAX = (1 << 16) - 1
LSN_MAX = (1 << 64) - 1

_SUFFIX = "([0-9A-F]{16})"
_SEQ = "([0-9A-F]{8})"
_LSN = "([0-9A-F]{16})"
_CLAIM = re.compile(rf"{CLAIMS}{_SUFFIX}\Z")
_INDEX = re.compile(rf"{INDICES}{_SUFFIX}-{_SEQ}\Z")
_LAYER = re.compile(rf"{LAYERS}{_LSN}-([0-9A-F]{{4}})-{_SUFFIX}-{_SEQ}\Z")
_FRAME = re.compile(rf"{FRAMES}{_LSN}-{_SUFFIX}-{_SEQ}\Z")
_LIST = re.compile(rf"{_SEQ}-{_SUFFIX}\.list\Z")
_HEADER = re.compile(rf"header-{_SUFFIX}-{_SEQ}\Z")


@dataclass(frozen=True, slots=True, order=True)
class ClaimName:
    """The claim of an attachment. It is never deleted."""

    suffix: Suffix

    def format(self) -> str:
        return f"{CLAIMS}{self.suffix}"


@dataclass(frozen=True, slots=True, order=True)
class IndexName:
    """The greatest name is the newest index."""

    suffix: Suffix
    seq: int

    def format(self) -> str:
        return f"{INDICES}{self.suffix}-{self.seq:08X}"


@dataclass(frozen=True, slots=True, order=True)
class LayerName:
    """A part of the pages changed up to `end_lsn`."""

    end_lsn: int
    part: int
    suffix: Suffix
    seq: int

    def format(self) -> str:
        return f"{LAYERS}{self.end_lsn:016X}-{self.part:04X}-{self.suffix}-{self.seq:08X}"


@dataclass(frozen=True, slots=True, order=True)
class FrameName:
    """All files at `end_lsn` that do not belong to a relation."""

    end_lsn: int
    suffix: Suffix
    seq: int

    def format(self) -> str:
        return f"{FRAMES}{self.end_lsn:016X}-{self.suffix}-{self.seq:08X}"


@dataclass(frozen=True, slots=True)
class TombstoneName:
    def format(self) -> str:
        return TOMBSTONE


#: The objects below `pages/`.
PageName: TypeAlias = ClaimName | IndexName | LayerName | FrameName | TombstoneName
#: The objects that an index names. All others of these types are garbage.
StoredName: TypeAlias = LayerName | FrameName


def parse_page_name(name: str) -> PageName | None:
    """`name` is relative to `pages/`. Returns None for an unknown name."""
    if match := _LAYER.match(name):
        end_lsn, part, suffix, seq = match.groups()
        return LayerName(int(end_lsn, 16), int(part, 16), Suffix(int(suffix, 16)), int(seq, 16))
    if match := _FRAME.match(name):
        end_lsn, suffix, seq = match.groups()
        return FrameName(int(end_lsn, 16), Suffix(int(suffix, 16)), int(seq, 16))
    if match := _INDEX.match(name):
        return IndexName(Suffix(int(match[1], 16)), int(match[2], 16))
    if match := _CLAIM.match(name):
        return ClaimName(Suffix(int(match[1], 16)))
    return TombstoneName() if name == TOMBSTONE else None


@dataclass(frozen=True, slots=True)
class PageKeys:
    """The keys of one timeline."""

    timeline: TimelineId

    @property
    def prefix(self) -> str:
        return f"{timeline_prefix(self.timeline)}pages/"

    def key(self, name: PageName) -> str:
        return self.prefix + name.format()

    def parse(self, key: str) -> PageName | None:
        """Returns None for a key outside `pages/`, and for an unknown name."""
        name = key.removeprefix(self.prefix)
        return parse_page_name(name) if len(name) < len(key) else None


# ---- the deletion queue


@dataclass(frozen=True, slots=True, order=True)
class ListName:
    """A list of names to be deleted. Sequence numbers of different suffixes are independent."""

    suffix: Suffix
    seq: int

    def format(self) -> str:
        return f"{self.seq:08X}-{self.suffix}.list"


@dataclass(frozen=True, slots=True, order=True)
class HeaderName:
    """Records up to which list a suffix is validated. The greatest of a suffix is the newest."""

    suffix: Suffix
    seq: int

    def format(self) -> str:
        return f"header-{self.suffix}-{self.seq:08X}"


QueueName: TypeAlias = ListName | HeaderName


def parse_queue_name(name: str) -> QueueName | None:
    """`name` is relative to `deletion/NODE/`. Returns None for an unknown name."""
    if match := _LIST.match(name):
        return ListName(Suffix(int(match[2], 16)), int(match[1], 16))
    if match := _HEADER.match(name):
        return HeaderName(Suffix(int(match[1], 16)), int(match[2], 16))
    return None


@dataclass(frozen=True, slots=True)
class QueueKeys:
    """The keys of one node id, for all its processes."""

    node_id: int

    @property
    def prefix(self) -> str:
        return f"{DELETION}{self.node_id:04X}/"

    def key(self, name: QueueName) -> str:
        return self.prefix + name.format()

    def parse(self, key: str) -> QueueName | None:
        name = key.removeprefix(self.prefix)
        return parse_queue_name(name) if len(name) < len(key) else None
