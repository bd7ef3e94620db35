"""The changes of a few relations in the WAL of pageserver worlds, and layers of them.

A page is a number: the position of its last change in the WAL. A page that is in no map is all
zeros.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np

from quorum_wal.pageserver.layers.fork import Fork, ForkKind
from quorum_wal.pageserver.layers.layer_file import Limits
from quorum_wal.pageserver.layers.layer_merge import live_pages, merged_limits
from quorum_wal.pageserver.layers.page_stack import Layer
from quorum_wal.pageserver.layers.touches import Database, Numbers

DATABASES = (5, 6)
FORKS = tuple(
    Fork(1663, database, number, ForkKind.MAIN) for database in DATABASES for number in (10, 11)
)
#: In the base backup.
BASE_LENGTHS = {FORKS[0]: 5, FORKS[1]: 3, FORKS[2]: 4}
BLOCKS = 8
#: From one statement to the next.
STATEMENT_BYTES = 60
MERGED_PART_PAGES = 3

Pages = dict[tuple[Fork, int], int]


@dataclass(frozen=True, slots=True)
class PartContent:
    """A part of a layer of the WAL [begin_lsn, end_lsn): the part that a core sees and a merge
    reads."""

    begin_lsn: int
    end_lsn: int
    limits: Limits
    pages: Mapping[tuple[Fork, int], int]

    @property
    def page_count(self) -> int:
        return len(self.pages)

    @property
    def forks(self) -> list[Fork]:
        return sorted({fork for fork, _ in self.pages})

    def blocks(self, fork: Fork) -> Numbers:
        return np.array(sorted(block for own, block in self.pages if own == fork), np.uint32)


@dataclass(frozen=True, slots=True)
class State:
    """The complete state at a moment."""

    pages: Pages
    lengths: Mapping[Fork, int]


@dataclass(frozen=True, slots=True)
class _Gone:
    """Removed at `lsn`: a fork from a block on, or a whole database."""

    lsn: int
    of: Fork | Database
    limit: int


@dataclass(slots=True)
class PageHistory:
    """Called for moments in ascending order."""

    random: Random
    #: By the ends of epochs.
    states: dict[int, State] = field(default_factory=dict)
    _lsn: int = 0
    _pages: Pages = field(default_factory=dict)
    _lengths: dict[Fork, int] = field(default_factory=lambda: dict(BASE_LENGTHS))
    _gone: list[_Gone] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._pages = base_pages()

    def epoch(self, begin_lsn: int, end_lsn: int) -> tuple[PartContent, PartContent]:
        """Its layer, in two parts."""
        while self._lsn + STATEMENT_BYTES <= end_lsn:
            self._lsn += STATEMENT_BYTES
            self._execute()
        self.states[end_lsn] = State(dict(self._pages), dict(self._lengths))
        changed = [(key, lsn) for key, lsn in sorted(self._pages.items()) if lsn > begin_lsn]
        middle = len(changed) // 2
        first = PartContent(begin_lsn, end_lsn, self._limits(begin_lsn), dict(changed[:middle]))
        return first, PartContent(begin_lsn, end_lsn, NO_LIMITS, dict(changed[middle:]))

    def _limits(self, begin_lsn: int) -> Limits:
        blocks: dict[Fork, int] = {}
        databases = set()
        for gone in self._gone:
            if gone.lsn > begin_lsn and isinstance(gone.of, Fork):
                blocks[gone.of] = min(gone.limit, blocks.get(gone.of, gone.limit))
            elif gone.lsn > begin_lsn and isinstance(gone.of, Database):
                databases.add(gone.of)
        return Limits(blocks, frozenset(databases))

    def _execute(self) -> None:
        """Mostly a page is written, also beyond the end; otherwise something is truncated, dropped
        or created again."""
        fork, chance = self.random.choice(FORKS), self.random.random()
        if chance < 0.8:
            if fork not in self._lengths:
                self._cut_off(fork, 0)
            block = self.random.randrange(BLOCKS)
            self._pages[fork, block] = self._lsn
            self._lengths[fork] = max(self._lengths.get(fork, 0), block + 1)
        elif chance < 0.9:
            limit = self.random.randrange(BLOCKS)
            if limit < self._lengths.get(fork, 0):
                self._cut_off(fork, limit)
                self._lengths[fork] = limit
        elif chance < 0.97:
            self._cut_off(fork, 0)
            self._lengths.pop(fork, None)
        else:
            self._drop_database(self.random.choice(DATABASES))

    def _cut_off(self, fork: Fork, limit: int) -> None:
        self._gone.append(_Gone(self._lsn, fork, limit))
        for block in range(limit, BLOCKS):
            self._pages.pop((fork, block), None)

    def _drop_database(self, database: int) -> None:
        self._gone.append(_Gone(self._lsn, Database(1663, database), 0))
        for fork in FORKS:
            if fork.database == database:
                self._lengths.pop(fork, None)
                for block in range(BLOCKS):
                    self._pages.pop((fork, block), None)

    # ---- merging, by the real rules

    def survey(self, parts: Sequence[PartContent], end_lsn: int) -> tuple[int, int]:
        """The number of live pages, and of all pages."""
        live = live_pages(layers_of(parts), self.states[end_lsn].lengths)
        return sum(len(each.blocks) for each in live), sum(part.page_count for part in parts)

    def merge(self, parts: Sequence[PartContent], end_lsn: int) -> list[PartContent]:
        layers = layers_of(parts)
        pages: Pages = {}
        for live in live_pages(layers, self.states[end_lsn].lengths):
            for block, number in zip(live.blocks.tolist(), live.layers.tolist(), strict=True):
                key = live.fork, block
                pages[key] = next(p.pages[key] for p in layers[number].parts if key in p.pages)
        begin_lsn = min(part.begin_lsn for part in parts)
        limits = merged_limits(layers, BASE_LENGTHS)
        keys = list(pages)
        chunks = [
            {key: pages[key] for key in keys[at : at + MERGED_PART_PAGES]}
            for at in range(0, max(len(keys), 1), MERGED_PART_PAGES)
        ]
        return [
            PartContent(begin_lsn, end_lsn, NO_LIMITS if number else limits, chunk)
            for number, chunk in enumerate(chunks)
        ]


NO_LIMITS = Limits({}, frozenset())


def base_pages() -> Pages:
    """All of them were written before the WAL begins."""
    return {(fork, block): 0 for fork, length in BASE_LENGTHS.items() for block in range(length)}


def layers_of(parts: Iterable[PartContent]) -> list[Layer]:
    """Oldest first."""
    by_end: dict[int, list[PartContent]] = {}
    for part in parts:
        by_end.setdefault(part.end_lsn, []).append(part)
    return [Layer(by_end[end_lsn]) for end_lsn in sorted(by_end)]  # type: ignore[arg-type]
