"""The events and actions of the attachment core. Pure values.

The shell executes the actions of a list in their order. It repeats each request to the store until
the store answers: `Failed` returns the request to the core, which decides whether to repeat it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from quorum_wal.generations.suffix import Suffix
from quorum_wal.pageserver.objects.attachment_id import Verdict
from quorum_wal.pageserver.objects.page_index import Cut, FrameRef, LayerRef, PageIndex
from quorum_wal.pageserver.objects.page_keys import IndexName, ListName, StoredName


class Mode(Enum):
    """What an attachment may do."""

    SINGLE = "single"
    MULTI = "multi"  # everything but deletes: another attachment still serves reads
    EMERGENCY = "emergency"  # no service assigned the suffix, so nothing validates it yet
    STALE = "stale"  # reads and ingest continue; no upload, no delete, no feedback


class AlarmKind(Enum):
    """Problems that are reported to the administrator."""

    RIVALLED = "rivalled"  # the store has a greater suffix, perhaps unknown to the service: advance
    STALE = "stale"  # the service attached the tenant to another pageserver
    LOCAL_FULL = "local_full"  # a stale attachment reached its limit on the local disk
    DAMAGED = "damaged"
    DELETED = "deleted"  # a tombstone exists: the timeline's pages were deleted


# ---- events


@dataclass(frozen=True, slots=True)
class Begun:
    """The first event."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """The claim exists and names `incarnation`. It is this attachment's if this request, or an
    earlier one whose answer was lost, created the claim."""

    incarnation: str


@dataclass(frozen=True, slots=True)
class IndicesListed:
    """All names in `index/`, and whether a tombstone exists. Listed after the claim existed."""

    names: tuple[IndexName, ...]
    is_deleted: bool


@dataclass(frozen=True, slots=True)
class IndexLoaded:
    """`index` is None only if the store reports that the object does not exist (404)."""

    name: IndexName
    index: PageIndex | None


@dataclass(frozen=True, slots=True)
class IndexDamaged:
    name: IndexName
    why: str


@dataclass(frozen=True, slots=True)
class NewLayer:
    """A layer part on the local disk that has no name in the store yet."""

    end_lsn: int
    part: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class NewFrame:
    end_lsn: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Changed:
    """An epoch was replayed. `number` is assigned by the shell, which finds the files by it."""

    number: int
    cut: Cut
    layers: tuple[NewLayer, ...]
    frames: tuple[NewFrame, ...] = ()
    base_backup_id: str = ""


@dataclass(frozen=True, slots=True)
class CompactDue:
    """Time to look for old layers to merge. `number` is the number that the merge would get."""

    number: int


@dataclass(frozen=True, slots=True)
class LayersSurveyed:
    """The result of SurveyLayers."""

    number: int
    live_pages: int
    all_pages: int


@dataclass(frozen=True, slots=True)
class PartMerged:
    """The next part of the new layer is on the local disk."""

    number: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class LayersMerged:
    """The new layer has no more parts."""

    number: int


@dataclass(frozen=True, slots=True)
class MergeFailed:
    """A survey or a merge was cancelled. Its parts are not used."""

    number: int


@dataclass(frozen=True, slots=True)
class Uploaded:
    """The object has this content, written by this request or an earlier one."""

    name: StoredName


@dataclass(frozen=True, slots=True)
class IndexUploaded:
    name: IndexName


@dataclass(frozen=True, slots=True)
class CollectDue:
    """Time to move the horizon."""

    now_unix_s: int


@dataclass(frozen=True, slots=True)
class FreshIndexWanted:
    """A scrub needs a new index before it begins."""


@dataclass(frozen=True, slots=True)
class OrphansFound:
    """Objects that no kept index names, and indices that are not kept, found by a scrub."""

    names: tuple[StoredName | IndexName, ...]


@dataclass(frozen=True, slots=True)
class Hinted:
    """A deletion list of an earlier process. It is not known whether that process was valid."""

    hint: ListName
    names: tuple[StoredName | IndexName, ...]


@dataclass(frozen=True, slots=True)
class ValidationBegun:
    """A validation begins; no question has been sent yet."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Validated:
    ticket: int
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class ModeSet:
    """The generation service set the mode: SINGLE or MULTI."""

    mode: Mode


@dataclass(frozen=True, slots=True)
class LocalGrown:
    """The size of the files that are on the local disk and not in the store."""

    local_bytes: int


# ---- actions


@dataclass(frozen=True, slots=True)
class CreateClaim:
    """Create the claim, or read it if it exists."""

    suffix: Suffix
    incarnation: str


@dataclass(frozen=True, slots=True)
class ListIndices:
    """List the indices, and check for a tombstone."""


@dataclass(frozen=True, slots=True)
class LoadIndex:
    name: IndexName


@dataclass(frozen=True, slots=True)
class Upload:
    """`position` counts the layers of the change, then its frames, or else the parts of a merge."""

    change: int
    position: int
    ref: LayerRef | FrameRef


@dataclass(frozen=True, slots=True)
class UploadIndex:
    name: IndexName
    index: PageIndex


@dataclass(frozen=True, slots=True)
class Condemn:
    """Queue these names for deletion: an index in the store no longer names them. If `hint` is
    set, this is the complete answer of this attachment about that list."""

    names: tuple[StoredName | IndexName, ...]
    hint: ListName | None = None


@dataclass(frozen=True, slots=True)
class Publish:
    """WAL below this position is not needed: the `apply` field of a standby status update."""

    visible_lsn: int


@dataclass(frozen=True, slots=True)
class Stored:
    """An index in the store names all objects of a change or of a merge."""

    change: int


@dataclass(frozen=True, slots=True)
class SurveyLayers:
    """Count the pages of these layers, and the pages that a merge as of this cut would keep."""

    number: int
    cut: Cut
    layers: tuple[LayerRef, ...]


@dataclass(frozen=True, slots=True)
class MergeLayers:
    """Merge these layers into one, as of this cut."""

    number: int
    cut: Cut
    layers: tuple[LayerRef, ...]


@dataclass(frozen=True, slots=True)
class FreshIndex:
    """The new index that a scrub requested."""

    name: IndexName


@dataclass(frozen=True, slots=True)
class Refuse:
    """The attachment is refused before it begins."""

    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class Alarm:
    kind: AlarmKind
    message: str


Request: TypeAlias = CreateClaim | ListIndices | LoadIndex | Upload | UploadIndex
Action: TypeAlias = (
    Request | Condemn | Publish | Stored | SurveyLayers | MergeLayers | FreshIndex | Refuse | Alarm
)


@dataclass(frozen=True, slots=True)
class Failed:
    """The request failed, or its outcome is unknown."""

    request: Request


Event: TypeAlias = (
    Begun | Claimed | IndicesListed | IndexLoaded | IndexDamaged | Changed | Uploaded
    | IndexUploaded | CollectDue | CompactDue | LayersSurveyed | PartMerged | LayersMerged
    | MergeFailed | FreshIndexWanted | OrphansFound | Hinted | ValidationBegun
    | Validated | ModeSet | LocalGrown | Failed
)  # fmt: skip
