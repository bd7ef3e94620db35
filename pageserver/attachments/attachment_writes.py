"""The writes of an attachment that are not complete: changes and the next index. Values."""

from __future__ import annotations

from dataclasses import dataclass, field

from quorum_wal.pageserver.attachments.attachment_events import Changed
from quorum_wal.pageserver.objects.page_index import FrameRef, LayerRef, PageIndex
from quorum_wal.pageserver.objects.page_keys import IndexName, StoredName


@dataclass(slots=True)
class Pending:
    """A change whose objects are being uploaded."""

    change: Changed
    layers: list[LayerRef]
    frames: list[FrameRef]
    missing: set[StoredName]

    @property
    def names(self) -> set[StoredName]:
        return {*(ref.name for ref in self.layers), *(ref.name for ref in self.frames)}


@dataclass(slots=True)
class Batch:
    """Follow-up work once the next index is in the store: names to condemn, changes to report as
    stored, a waiting scrub."""

    dropped: list[StoredName] = field(default_factory=list)
    changes: list[int] = field(default_factory=list)
    is_fresh: bool = False


@dataclass(frozen=True, slots=True)
class Writing:
    """An index that is being uploaded."""

    name: IndexName
    index: PageIndex
    batch: Batch
