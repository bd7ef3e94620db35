"""The core that deletes a timeline's pages. Pure.

    tombstone -> list -> delete all but the tombstone -> list ... -> the list is empty: removed

Laws. The generation service records the intent before this begins. Any process may then run it,
stale or not, any number of times. The tombstone is created first and kept permanently: each later
attachment finds it. The next run removes objects that late requests create below it. The answer
carries the suffix of the process that ran it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from quorum_wal.generations.suffix import Suffix
from quorum_wal.objectstore.delete_requests import delete_requests
from quorum_wal.pageserver.objects.page_keys import TOMBSTONE

# ---- events


@dataclass(frozen=True, slots=True)
class RemovalBegun:
    """May be sent again."""


@dataclass(frozen=True, slots=True)
class TombstoneCreated:
    """The tombstone exists, created by this request or an earlier one."""


@dataclass(frozen=True, slots=True)
class AllListed:
    """All names relative to `pages/`, including unknown objects."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BatchDeleted:
    """A `DeleteBatch` succeeded."""

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
    """Only the tombstone is left."""

    suffix: Suffix


Action: TypeAlias = CreateTombstone | ListAll | DeleteBatch | TimelineRemoved


@dataclass(frozen=True, slots=True)
class RemovalFailed:
    """The action failed, or its outcome is unknown."""

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
