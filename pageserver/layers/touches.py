"""`Touches`: the changes of a WAL range to relation files. Values only.

Law: it contains every page that replaying the range can change. Each page that redo reads before
the WAL replaces it is marked. A page missing here is silently missing in the layer.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeAlias

import numpy as np

from quorum_wal.pageserver.errors import SurveyError
from quorum_wal.pageserver.layers.fork import Fork, ForkKind
from quorum_wal.pgwal.lsn import format_lsn

Numbers: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"


_CHECKPOINT = struct.Struct("<QI")
_CHECKPOINT_TIME = struct.Struct("<q")
_CHECKPOINT_TIME_AT = 64


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint record [start_lsn, end_lsn), after which a cut can be made."""

    start_lsn: int
    end_lsn: int
    redo_lsn: int
    tli: int
    at: datetime

    @classmethod
    def parse(cls, main: bytes, start_lsn: int, end_lsn: int) -> Checkpoint:
        """Parses the record's main data (CheckPoint in `catalog/pg_control.h`, the same in versions
        13 to 18 up to its time). Raises SurveyError if it is too short or its time is invalid."""
        try:
            redo_lsn, tli = _CHECKPOINT.unpack_from(main)
            (seconds,) = _CHECKPOINT_TIME.unpack_from(main, _CHECKPOINT_TIME_AT)
            at = datetime.fromtimestamp(seconds, UTC)
        except (struct.error, OverflowError, ValueError, OSError) as error:
            raise SurveyError(
                f"the checkpoint record at {format_lsn(start_lsn)} is not valid: {error}"
            ) from error
        return cls(start_lsn, end_lsn, redo_lsn, tli, at)


@dataclass(frozen=True, slots=True)
class NewTablespace:
    """Created by a record at `lsn`, whose main data has `main_bytes`."""

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
    """Touched pages of a fork: `blocks`, sorted, and for each whether redo reads it first."""

    fork: Fork
    blocks: Numbers  # uint32
    needs_base: Numbers  # bool


@dataclass(frozen=True, slots=True)
class Touches:
    """The changes by records that begin in [begin_lsn, end_lsn).

    `limits`: the smallest length of a fork within the range, 0 if it was created or dropped.
    Earlier contents of pages at or above the limit are removed. `fresh_databases` were created or
    dropped: the limit of all their forks is 0. `copied_databases`: (source, target) of databases
    created by copying files.
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
        """All forks whose files redo may access, each once, in order, without free space maps."""
        found = {each.fork for each in self.pages} | set(self.limits)
        yield from sorted(fork for fork in found if fork.kind is not ForkKind.FSM)
