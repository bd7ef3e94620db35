"""The core that deletes a timeline's pages. Pure.

    tombstone -> list -> delete all but the tombstone -> list ... -> nothing is left: removed

Laws. The intent is in the generation service before this begins, so any process may do it, stale or
not, as often as it likes. The tombstone is created first and stays for ever: who attaches finds it.
What comes late below it is removed by the next run. The answer carries the suffix of who did it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from generations.suffix import Suffix
from objectstore.delete_requests import delete_requests
from pageserver.objects.page_keys import TOMBSTONE

# ---- events


@dataclass(frozen=True, slots=True)
class RemovalBegun:
    """It may be begun again."""


@dataclass(frozen=True, slots=True)
class TombstoneCreated:
    """Or it was there."""


@dataclass(frozen=True, slots=True)
class AllListed:
    """Names relative to `pages/`, also those of strangers: all of it."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BatchDeleted:
    """`DeleteBatch` was done."""

    names: tuple[str, ...]


# ---- actions


@dataclass(frozen=True, slots=True)
class CreateTombstone:
    pass


@dataclass(frozen=True, slots=True)
class ListAll:
    pass


@dataclass(frozen=True, slots=True)
class DeleteBatch:
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TimelineRemoved:
    """Nothing but the tombstone is left."""

    suffix: Suffix


Action: TypeAlias = CreateTombstone | ListAll | DeleteBatch | TimelineRemoved


@dataclass(frozen=True, slots=True)
class RemovalFailed:
    """An action that was not done, or of which it is not known."""

    action: Action


Event: TypeAlias = RemovalBegun | TombstoneCreated | AllListed | BatchDeleted | RemovalFailed


class TimelineRemoval:
    """One run, by the process with `suffix`."""

    def __init__(self, suffix: Suffix) -> None:
        self.suffix = suffix
        self._missing: set[tuple[str, ...]] = set()

    def step(self, event: Event) -> list[Action]:
        match event:
            case RemovalBegun():
                return [CreateTombstone()]
            case TombstoneCreated():
                return [ListAll()]
            case AllListed(names):
                batches = [*delete_requests(name for name in names if name != TOMBSTONE)]
                self._missing = set(batches)
                return [*map(DeleteBatch, batches)] or [TimelineRemoved(self.suffix)]
            case BatchDeleted(names):
                is_last = self._missing == {names}
                self._missing.discard(names)
                return [ListAll()] if is_last else []
            case RemovalFailed(action):
                return [action]
