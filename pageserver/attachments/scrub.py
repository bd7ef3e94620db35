"""The core of one scrub of a timeline: finds objects that no index names, and objects that the
index names and the store has lost. Pure.

    new index written     -> list all of pages/ -> read all kept indices -> orphans, missing

Laws. Objects are listed first and indices are read afterwards, so that an object named after the
listing counts as named. Any error ends the run without a result; an object counts as missing only
if the store answers 404. The index `fresh` must be in the listing. Its time there is the current
time: the age of objects is measured by the store's clock, never by the local one. The scrub does
not judge objects above its own suffix, or unknown objects. It passes its result to the attachment,
which knows the uploads in progress. The deletion queue then deletes the objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from quorum_wal.generations.suffix import Suffix
from quorum_wal.pageserver.attachments.garbage import kept_indices
from quorum_wal.pageserver.objects.page_index import PageIndex
from quorum_wal.pageserver.objects.page_keys import (
    ClaimName,
    IndexName,
    PageName,
    StoredName,
    TombstoneName,
)

# ---- events


@dataclass(frozen=True, slots=True)
class ScrubBegun:
    """The new index is in the store."""


@dataclass(frozen=True, slots=True)
class PagesListed:
    """All of `pages/` but unknown objects, with modification times by the store's clock."""

    modified_ms: Mapping[PageName, int]


@dataclass(frozen=True, slots=True)
class IndexRead:
    """`index` is None if it does not exist (404)."""

    name: IndexName
    index: PageIndex | None


@dataclass(frozen=True, slots=True)
class ScrubFailed:
    """A request failed, or an index is damaged."""

    why: str


Event: TypeAlias = ScrubBegun | PagesListed | IndexRead | ScrubFailed

# ---- actions


@dataclass(frozen=True, slots=True)
class ListPages:
    pass


@dataclass(frozen=True, slots=True)
class ReadIndex:
    name: IndexName


@dataclass(frozen=True, slots=True)
class Orphans:
    """Names for the attachment to condemn."""

    names: tuple[StoredName | IndexName, ...]


@dataclass(frozen=True, slots=True)
class Missing:
    """All objects that the index `fresh` names and that are not in the listing; it may be empty.
    They were stored before that index was written, so another program has deleted them."""

    names: tuple[StoredName, ...]


@dataclass(frozen=True, slots=True)
class ScrubEnded:
    """`problem` is "" if the scrub completed."""

    problem: str


Action: TypeAlias = ListPages | ReadIndex | Orphans | Missing | ScrubEnded


class Scrub:
    """One run. `fresh` is the index that the attachment wrote for it (FreshIndexWanted)."""

    def __init__(self, suffix: Suffix, fresh: IndexName, grace_ms: int) -> None:
        assert fresh.suffix == suffix
        self.suffix = suffix
        self.fresh = fresh
        self.grace_ms = grace_ms
        self.is_ended = False
        self._candidates: set[StoredName | IndexName] = set()
        self._listed_names: frozenset[PageName] = frozenset()
        self._missing: tuple[StoredName, ...] = ()
        self._unread: set[IndexName] = set()

    def step(self, event: Event) -> list[Action]:
        if self.is_ended:
            return []
        match event:
            case ScrubBegun():
                return [ListPages()]
            case PagesListed(modified_ms):
                return self._listed(modified_ms)
            case IndexRead(name, index):
                return self._read(name, index)
            case ScrubFailed(why):
                return self._end(why)

    def _end(self, problem: str) -> list[Action]:
        self.is_ended = True
        return [ScrubEnded(problem)]

    def _listed(self, modified_ms: Mapping[PageName, int]) -> list[Action]:
        if self.fresh not in modified_ms:
            return self._end(f"expected index {self.fresh.format()} in the listing, found none")
        if TombstoneName() in modified_ms:
            return self._end("the timeline was deleted")
        if any(suffix_of(name) > self.suffix for name in modified_ms):
            return self._end(f"found a suffix greater than {self.suffix}")
        now_ms = modified_ms[self.fresh]
        indices = {n: at_ms for n, at_ms in modified_ms.items() if isinstance(n, IndexName)}
        kept = kept_indices(indices, self.suffix, now_ms, self.grace_ms)
        self._candidates = {
            name
            for name, at_ms in modified_ms.items()
            if not isinstance(name, ClaimName | TombstoneName)
            and name not in kept
            and now_ms - at_ms >= self.grace_ms
        }
        self._listed_names = frozenset(modified_ms)
        self._unread = set(kept)
        return [ReadIndex(name) for name in sorted(kept)]

    def _read(self, name: IndexName, index: PageIndex | None) -> list[Action]:
        if name not in self._unread:
            return []
        if index is None:
            return self._end(f"index {name.format()} was deleted after it was listed")
        self._unread.discard(name)
        self._candidates -= index.names
        if name == self.fresh:
            self._missing = tuple(sorted(index.names - self._listed_names, key=_text))
        if self._unread:
            return []
        orphans = tuple(sorted(self._candidates, key=_text))
        return [Orphans(orphans), Missing(self._missing), *self._end("")]


def suffix_of(name: PageName) -> Suffix:
    return Suffix(0) if isinstance(name, TombstoneName) else name.suffix


def _text(name: StoredName | IndexName) -> str:
    return name.format()
