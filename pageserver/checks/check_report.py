"""What a check of pages found: damage, named, and how many pages it can say nothing of. Values."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum

from pageserver.layers.fork import Fork


class Skip(Enum):
    """Why a page is not checkable; its value goes behind a number of pages."""

    UNLOGGED = "of unlogged relations, of which there is no WAL"
    FREE_SPACE = "of free-space maps, which are not stored"
    COPIED = "of databases that were copied file by file behind the newest cut"
    NEWER = "changed behind the position that they were to be held against"
    MOVING = "changed each time that they were read"
    LOCKED = "of relations that are locked"
    GONE = "gone, or rewritten, before they were read"
    UNKNOWN = "of files that neither a cut nor the WAL behind it knows"


@dataclass(frozen=True, slots=True)
class DamagedPage:
    """`path`: as pg_relation_filepath() says it. `relation`: schema.table, `database`: its name;
    "" when only a server could tell them. `at_lsn`: as of which it should be another."""

    fork: Fork
    path: str
    block: int
    database: str
    relation: str
    reason: str
    at_lsn: int

    def __str__(self) -> str:
        named = f" ({self.relation} in database {self.database})" if self.relation else ""
        return f"block {self.block} of {self.path}{named}: {self.reason}"


@dataclass(slots=True)
class CheckReport:
    """Grows while a check runs. `unjudged`: pages that were asked for, are there, and could not be
    checked; `again`: those of an earlier check that were read once more."""

    checked: int = 0
    damaged: list[DamagedPage] = field(default_factory=list)
    skipped: Counter[Skip] = field(default_factory=Counter)
    unjudged: set[tuple[Fork, int]] = field(default_factory=set)
    again: set[tuple[Fork, int]] = field(default_factory=set)

    def skip(self, why: Skip, fork: Fork, block: int) -> None:
        """One page."""
        self.skipped[why] += 1
        if why is not Skip.GONE:
            self.unjudged.add((fork, block))

    @property
    def is_sound(self) -> bool:
        """Something was checked, and nothing is damaged."""
        return self.checked > 0 and not self.damaged

    def skips(self) -> list[str]:
        """In words, the most frequent first."""
        return [f"{count} {why.value}" for why, count in self.skipped.most_common() if count]
