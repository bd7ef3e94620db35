"""`FileSet`: the files of which a sparse server has all pages; the others are empty and too long.

Law: what the server reads is in the set, or was made by the WAL that it has replayed. A table that
is in neither is silently short: Postgres takes pages of zeros for pages without rows. `is_whole`
is asked for every file before anything is handed out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pageserver.layers.fork import GLOBAL_TABLESPACE, Fork, ForkKind
from pageserver.layers.fork_table import ForkTable
from pageserver.layers.touches import Database, Touches


@dataclass(frozen=True, slots=True)
class FileSet:
    """Of `forks`, the table of the cut: all of the cluster's own catalogs; the `numbers` as
    (database, file number), in any tablespace; the `databases` as a whole."""

    forks: ForkTable
    numbers: frozenset[tuple[int, int]] = frozenset()
    databases: frozenset[Database] = frozenset()

    def members(self) -> Iterator[Fork]:
        """Those that are there at the cut, in order."""
        return (fork for fork in sorted(self.forks) if self._has(fork))

    def page_count(self) -> int:
        return sum(self.forks[fork] for fork in self.members())

    def more(
        self, numbers: Iterable[tuple[int, int]], databases: Iterable[Database] = ()
    ) -> FileSet:
        """With these, too."""
        return FileSet(
            self.forks, self.numbers | set(numbers), self.databases | frozenset(databases)
        )

    def is_whole(self, relation: Fork, touches: Touches) -> bool:
        """Whether all pages of its main fork are here, once `touches` have been replayed.

        An unlogged relation is made anew when recovery ends, out of its init fork.
        """
        assert relation.kind is ForkKind.MAIN
        init = Fork(relation.tablespace, relation.database, relation.number, ForkKind.INIT)
        return any(self._is_whole_fork(fork, touches) for fork in (relation, init))

    def _is_whole_fork(self, fork: Fork, touches: Touches) -> bool:
        if touches.limits.get(fork) == 0:
            return True  # at some moment of the WAL it was empty: all it has came behind that
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
    """What the WAL copies these databases from, file by file; and that from, and so on."""
    found: set[Database] = set()
    wanted = {copy for _, copy in touches.copied_databases if copy.database in set(databases)}
    while wanted:
        wanted = {source for source, copy in touches.copied_databases if copy in wanted} - found
        found |= wanted
    return frozenset(found)
