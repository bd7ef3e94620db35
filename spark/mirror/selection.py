"""Which tables a mirror has: patterns of names to include and to exclude.

    --table 'shop.*' --table audit.log --exclude 'shop.tmp_*'

A pattern is a name with its schema, with `*`, `?` and `[...]` as in a shell. Without patterns to
include, all tables are included. A partition is also included if a pattern matches a table of which
it is a partition. Exclusion wins.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from quorum_wal.spark.errors import OptionError


@dataclass(frozen=True, slots=True)
class Selection:
    """The patterns. Names are `schema.table`."""

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for pattern in (*self.include, *self.exclude):
            if "." not in pattern:
                raise OptionError(
                    f'the pattern "{pattern}" has no schema',
                    hint=f"Name tables with their schema, for example public.{pattern}.",
                )

    def selects(self, name: str, parents: Iterable[str] = ()) -> bool:
        """`parents` are the partitioned tables above it."""
        names = (name, *parents)
        if any(_matches(each, self.exclude) for each in names):
            return False
        return not self.include or any(_matches(each, self.include) for each in names)

    def unmatched(self, names: Iterable[str]) -> list[str]:
        """The patterns to include that match none of the names."""
        known = list(names)
        return [
            pattern
            for pattern in self.include
            if not any(fnmatchcase(name, pattern) for name in known)
        ]


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
