"""What goes into the core of an attachment and what it orders: its table of contents. Pure values.

The shell executes a list of actions in its order. Every request to the store is asked again until
it has an answer: `Failed` gives it back to the core, which says whether it is still wanted.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from generations.suffix import Suffix
from pageserver.objects.attachment_id import Verdict
from pageserver.objects.page_index import Cut, FrameRef, LayerRef, PageIndex
from pageserver.objects.page_keys import IndexName, ListName, StoredName


class Mode(Enum):
    """What an attachment may do."""

    SINGLE = "single"
    MULTI = "multi"  # all but delete: the attachment before it is still read from
    EMERGENCY = "emergency"  # no service has given it its suffix: nothing validates it yet
    STALE = "stale"  # reads and ingest go on; no upload, no delete, no feedback


class AlarmKind(Enum):
    """What an administrator should hear of."""

    RIVALLED = "rivalled"  # the store has a suffix above, which the service may not know: advance
    STALE = "stale"  # the service has given the tenant to another one
    LOCAL_FULL = "local_full"  # a stale attachment has taken its share of the local disk
    DAMAGED = "damaged"
    DELETED = "deleted"  # the timeline's pages: there is a tombstone


# ---- events


@dataclass(frozen=True, slots=True)
class Begun:
    """The first event."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """The claim exists, and says `incarnation`: the own one when it was created just now, or by a
    request whose answer was lost."""

    incarnation: str


@dataclass(frozen=True, slots=True)
class IndicesListed:
    """All of `index/`, and whether there is a tombstone; listed after the claim was there."""

    names: tuple[IndexName, ...]
    is_deleted: bool


@dataclass(frozen=True, slots=True)
class IndexLoaded:
    """None: the store says that there is no such object (404), and nothing else."""

    name: IndexName
    index: PageIndex | None


@dataclass(frozen=True, slots=True)
class IndexDamaged:
    name: IndexName
    why: str


@dataclass(frozen=True, slots=True)
class NewLayer:
    """A part that lies on the local disk, and has no name in the store yet."""

    end_lsn: int
    part: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class NewFrame:
    end_lsn: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Changed:
    """An epoch was replayed. `number` is the shell's: it finds the files by it."""

    number: int
    cut: Cut
    layers: tuple[NewLayer, ...]
    frames: tuple[NewFrame, ...] = ()
    base_backup_id: str = ""


@dataclass(frozen=True, slots=True)
class CompactDue:
    """Time to look for old layers that may become one. `number` would be that of the merge."""

    number: int


@dataclass(frozen=True, slots=True)
class LayersSurveyed:
    """What SurveyLayers has found."""

    number: int
    live_pages: int
    all_pages: int


@dataclass(frozen=True, slots=True)
class PartMerged:
    """The next part of the new layer lies on the local disk."""

    number: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class LayersMerged:
    """There are no more parts."""

    number: int


@dataclass(frozen=True, slots=True)
class MergeFailed:
    """A survey or a merge was broken off. What it has made is not used."""

    number: int


@dataclass(frozen=True, slots=True)
class Uploaded:
    """The object has this content, by this request or one before."""

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
    """A scrub is about to begin."""


@dataclass(frozen=True, slots=True)
class OrphansFound:
    """By a scrub: objects that no kept index names, and indices that are not kept."""

    names: tuple[StoredName | IndexName, ...]


@dataclass(frozen=True, slots=True)
class Hinted:
    """A list of a process before, of which it is not known whether it was valid."""

    hint: ListName
    names: tuple[StoredName | IndexName, ...]


@dataclass(frozen=True, slots=True)
class ValidationBegun:
    """Nothing was asked yet."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Validated:
    ticket: int
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class ModeSet:
    """By the generation service: SINGLE or MULTI."""

    mode: Mode


@dataclass(frozen=True, slots=True)
class LocalGrown:
    """What lies on the local disk and not in the store."""

    local_bytes: int


# ---- actions


@dataclass(frozen=True, slots=True)
class CreateClaim:
    """Create the claim, and read it if it exists."""

    suffix: Suffix
    incarnation: str


@dataclass(frozen=True, slots=True)
class ListIndices:
    """And look for the tombstone."""


@dataclass(frozen=True, slots=True)
class LoadIndex:
    name: IndexName


@dataclass(frozen=True, slots=True)
class Upload:
    """`position` counts the layers of the change, then its frames; or the parts of a merge."""

    change: int
    position: int
    ref: LayerRef | FrameRef


@dataclass(frozen=True, slots=True)
class UploadIndex:
    name: IndexName
    index: PageIndex


@dataclass(frozen=True, slots=True)
class Condemn:
    """For the deletion queue: an index in the store names them no more. `hint`: all that this
    attachment will say of that list."""

    names: tuple[StoredName | IndexName, ...]
    hint: ListName | None = None


@dataclass(frozen=True, slots=True)
class Publish:
    """WAL below is not needed: the `apply` of a standby's status update."""

    visible_lsn: int


@dataclass(frozen=True, slots=True)
class Stored:
    """All of a change, or of a merge, is in an index that is in the store."""

    change: int


@dataclass(frozen=True, slots=True)
class SurveyLayers:
    """Count the pages of these, and those that a merge as of that cut would leave."""

    number: int
    cut: Cut
    layers: tuple[LayerRef, ...]


@dataclass(frozen=True, slots=True)
class MergeLayers:
    """Make one of these, as of that cut."""

    number: int
    cut: Cut
    layers: tuple[LayerRef, ...]


@dataclass(frozen=True, slots=True)
class FreshIndex:
    """For the scrub that wanted one."""

    name: IndexName


@dataclass(frozen=True, slots=True)
class Refuse:
    """The attachment ends before it has begun."""

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
    """It was not done, or it is not known whether it was."""

    request: Request


Event: TypeAlias = (
    Begun | Claimed | IndicesListed | IndexLoaded | IndexDamaged | Changed | Uploaded
    | IndexUploaded | CollectDue | CompactDue | LayersSurveyed | PartMerged | LayersMerged
    | MergeFailed | FreshIndexWanted | OrphansFound | Hinted | ValidationBegun
    | Validated | ModeSet | LocalGrown | Failed
)  # fmt: skip
