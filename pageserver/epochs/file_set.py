"""`FileSet`: the files of which a sparse server has all pages. All other files contain only holes.

Law: all files that the server reads are in the set, or were created by the WAL that it replayed. A
missing table would silently have too few rows: Postgres reads pages of zeros as pages without rows.
So `is_complete` is called for every file before any result is returned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from quorum_wal.pageserver.layers.fork import GLOBAL_TABLESPACE, Fork, ForkKind
from quorum_wal.pageserver.layers.fork_table import ForkTable
from quorum_wal.pageserver.layers.touches import Database, Touches


@dataclass(frozen=True, slots=True)
class FileSet:
    """A subset of `forks`, those of the cut: all shared catalogs, the `numbers` as (database, file
    number) in any tablespace, and all files of `databases`."""

    forks: ForkTable
    numbers: frozenset[tuple[int, int]] = frozenset()
    databases: frozenset[Database] = frozenset()

    def members(self) -> Iterator[Fork]:
        """The members that exist at the cut, in order."""
        return (fork for fork in sorted(self.forks) if self._has(fork))

    def page_count(self) -> int:
        return sum(self.forks[fork] for fork in self.members())

    def more(
        self, numbers: Iterable[tuple[int, int]], databases: Iterable[Database] = ()
    ) -> FileSet:
        """The union with these files."""
        return FileSet(
            self.forks, self.numbers | set(numbers), self.databases | frozenset(databases)
        )

    def is_complete(self, relation: Fork, touches: Touches) -> bool:
        """Whether all pages of the main fork exist after `touches` were replayed.

        The end of recovery creates an unlogged relation again from its init fork.
        """
        assert relation.kind is ForkKind.MAIN
        init = Fork(relation.tablespace, relation.database, relation.number, ForkKind.INIT)
        return any(self._is_complete_fork(fork, touches) for fork in (relation, init))

    def _is_complete_fork(self, fork: Fork, touches: Touches) -> bool:
        if touches.limits.get(fork) == 0:
            return True  # it was empty at some point in the WAL, which has all later pages
        database = Database(fork.tablespace, fork.database)
        if database in touches.fresh_databases:
            sources = [source for source, copy in touches.copied_databases if copy == database]
            return all(source in self.databases for source in sources)
        return fork in self.forks and self._has(fork)

    def _has(self, fork: Fork) -> bool:
        return (
            fork.tablespace == GLOBAL_TABLESPACE
            or (fork.database, fork.number) in self.numbers
            or Database(fork.tablespace, fork.database) in self.databases
        )


def copied_from(touches: Touches, databases: Iterable[int]) -> frozenset[Database]:
    """The databases that the WAL copies file by file to create these ones, also indirectly."""
    found: set[Database] = set()
    wanted = {copy for _, copy in touches.copied_databases if copy.database in set(databases)}
    while wanted:
        wanted = {source for source, copy in touches.copied_databases if copy in wanted} - found
        found |= wanted
    return frozenset(found)
