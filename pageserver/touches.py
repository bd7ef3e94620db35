"""`Touches`: what a range of WAL does to the files of relations. Values only.

Law: all pages that replaying the range can change are in it, and every page that it reads before
it has written it is marked. A page that is missing here is silently missing in every layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeAlias

import numpy as np

from pageserver.fork import Fork, ForkKind

Numbers: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint record [start_lsn, end_lsn), behind which a cut may be."""

    start_lsn: int
    end_lsn: int
    redo_lsn: int
    tli: int
    at: datetime


@dataclass(frozen=True, slots=True)
class NewTablespace:
    """By a record at `lsn`, whose main data has `main_bytes`."""

    oid: int
    location: str
    lsn: int
    main_bytes: int


@dataclass(frozen=True, slots=True, order=True)
class Database:
    """The files of one database in one tablespace."""

    tablespace: int
    database: int


@dataclass(frozen=True, slots=True)
class ForkPages:
    """Touched pages of a fork: `blocks`, sorted; of each, whether redo reads it first."""

    fork: Fork
    blocks: Numbers  # uint32
    needs_base: Numbers  # bool


@dataclass(frozen=True, slots=True)
class Touches:
    """Of the records that begin in [begin_lsn, end_lsn).

    `limits` say how short a fork has been within the range, 0 where it was created or dropped: of
    what a page at or above it was before, nothing is left. `fresh_databases` were created or
    dropped: for their forks that is so from 0 on. `copied_databases` are read file by file
    (source, target).
    """

    begin_lsn: int
    end_lsn: int
    pages: tuple[ForkPages, ...]
    limits: Mapping[Fork, int]
    dropped: frozenset[tuple[int, int, int]]
    fresh_databases: frozenset[Database]
    copied_databases: tuple[tuple[Database, Database], ...]
    tablespaces_created: tuple[NewTablespace, ...]
    tablespaces_dropped: tuple[int, ...]
    prepared_max: int
    checkpoints: tuple[Checkpoint, ...]
    by_fork: Mapping[Fork, ForkPages] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_fork", {each.fork: each for each in self.pages})

    @property
    def page_count(self) -> int:
        return sum(len(each.blocks) for each in self.pages)

    def forks(self) -> Iterator[Fork]:
        """All whose files redo may look at, each once, in their order; no free-space maps."""
        found = {each.fork for each in self.pages} | set(self.limits)
        yield from sorted(fork for fork in found if fork.kind is not ForkKind.FSM)
