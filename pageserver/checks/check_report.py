"""The result of a page check: the damaged pages, and the number of unchecked pages. Values."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum

from quorum_wal.pageserver.layers.fork import Fork


class Skip(Enum):
    """Why a page cannot be checked. The value follows a number of pages in the output."""

    UNLOGGED = "of unlogged relations, which have no WAL"
    FREE_SPACE = "of free space maps, which are not stored"
    COPIED = "of databases that were copied file by file after the newest cut"
    NEWER = "changed after the position of the comparison"
    MOVING = "changed during each attempt to read them"
    LOCKED = "of relations that are locked"
    GONE = "dropped, truncated or rewritten before they were read"
    UNKNOWN = "of files that are neither in a cut nor in the WAL after it"


@dataclass(frozen=True, slots=True)
class DamagedPage:
    """`path`: as returned by pg_relation_filepath(). `relation` (schema.table) and `database` are
    "" if no server was available to find their names. `at_lsn`: position of the expected page."""

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
    """Filled in while a check runs. `unchecked`: pages that were requested and exist, but could not
    be checked. `again`: pages of an earlier check that were read once more."""

    checked: int = 0
    damaged: list[DamagedPage] = field(default_factory=list)
    skipped: Counter[Skip] = field(default_factory=Counter)
    unchecked: set[tuple[Fork, int]] = field(default_factory=set)
    again: set[tuple[Fork, int]] = field(default_factory=set)

    def skip(self, why: Skip, fork: Fork, block: int) -> None:
        """Counts one page that was not checked."""
        self.skipped[why] += 1
        if why is not Skip.GONE:
            self.unchecked.add((fork, block))

    @property
    def is_sound(self) -> bool:
        """Whether at least one page was checked, and none is damaged."""
        return self.checked > 0 and not self.damaged

    def skips(self) -> list[str]:
        """One phrase for each reason, the most frequent first."""
        return [f"{count} {why.value}" for why, count in self.skipped.most_common() if count]
