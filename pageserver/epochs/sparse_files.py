"""The relation files of a directory in which an epoch is replayed: of full length, with holes.

    base/5/16384     |.........[B]......|      . a hole   [B] a page that redo reads first

Stock Postgres finds files of the expected length, so replaying a full-page image of page 10,000,000
costs one page of disk.
Laws. Every fork that the epoch mentions has its file, as long as at the previous cut. Every page
that redo reads before the WAL replaces it exists. Afterwards each page with content must be a page
that the survey named; otherwise the survey is wrong, and the epoch's output is rejected.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from quorum_wal.pageserver.epochs.file_set import FileSet
from quorum_wal.pageserver.epochs.page_files import READ_BLOCKS, Give, PageFiles
from quorum_wal.pageserver.errors import RedoError
from quorum_wal.pageserver.layers.fork import (
    PAGE_BYTES,
    SEGMENT_BLOCKS,
    Fork,
    ForkKind,
    database_path,
)
from quorum_wal.pageserver.layers.fork_table import (
    ForkTable,
    fork_blocks,
    relation_files,
    relation_folders,
)
from quorum_wal.pageserver.layers.page_run import PageRun
from quorum_wal.pageserver.layers.page_stack import PageBase
from quorum_wal.pageserver.layers.touches import Database, ForkPages, Numbers, Touches


class SparseFiles:
    """Files in `data_dir`, whose other files are those of the previous cut."""

    def __init__(self, data_dir: Path, version_folder: str, give: Give) -> None:
        self._data_dir = data_dir
        self._version_folder = version_folder
        self._files = PageFiles(data_dir, version_folder, give)

    def build(self, forks: ForkTable, touches: Touches, source: PageBase) -> None:
        """Before the epoch. `source` has the pages of the previous cut. Raises PageserverError."""
        for fork in touches.forks():
            if fork in forks:
                self._files.make(fork, forks[fork])
        for pages in touches.pages:
            length = forks.get(pages.fork, 0)
            needed = pages.blocks[pages.needs_base & (pages.blocks < length)]
            self._files.fill(pages.fork, needed, source)
        for copied, _ in touches.copied_databases:
            for fork in forks.of_database(copied):
                self._build_whole(fork, forks[fork], source)

    def build_set(self, files: FileSet, touches: Touches, source: PageBase) -> None:
        """For a server that reads only these files and ignores invalid pages of all others.
        `source` has the pages of the cut. Raises PageserverError."""
        for fork in touches.forks():
            if fork in files.forks:
                self._files.make(fork, files.forks[fork])
        for fork in files.members():
            self._build_whole(fork, files.forks[fork], source)

    def build_pages(
        self,
        forks: ForkTable,
        touches: Touches,
        source: PageBase,
        wanted: Mapping[Fork, Numbers],
    ) -> None:
        """For a server from which these pages are wanted, and which ignores all other missing
        pages. Raises PageserverError."""
        for each in touches.forks():
            if each in forks:
                self._files.make(each, forks[each])
        for fork, blocks in wanted.items():
            self._files.fill(fork, blocks[blocks < forks.get(fork, 0)], source)

    def _build_whole(self, fork: Fork, length: int, source: PageBase) -> None:
        self._files.make(fork, length)
        for first in range(0, length, READ_BLOCKS):
            last = min(first + READ_BLOCKS, length)
            self._files.fill(fork, np.arange(first, last, dtype=np.uint32), source)

    def pages(self, touches: Touches) -> Iterator[PageRun]:
        """After the epoch: all pages that it may have changed, in order. Raises RedoError."""
        copies = {target for _, target in touches.copied_databases}
        self._check_named(touches, copies)
        forks = {fork for fork in touches.forks() if _database(fork) not in copies}
        for database in copies:
            forks |= self._forks_of(database)
        for fork in sorted(forks):
            length = fork_blocks(self._data_dir, fork, self._version_folder) or 0
            if _database(fork) in copies:
                blocks = np.arange(length, dtype=np.uint32)
            else:
                named = touches.by_fork.get(fork)
                blocks = named.blocks[named.blocks < length] if named else np.empty(0, np.uint32)
            for found, data in self._files.read(fork, blocks):
                yield PageRun(fork, found, data)

    def _forks_of(self, database: Database) -> set[Fork]:
        folder = self._data_dir / database_path(
            database.tablespace, database.database, self._version_folder
        )
        return {
            fork
            for fork, _, _ in relation_files(self._data_dir, folder)
            if fork.kind is not ForkKind.FSM
        }

    # ---- verification

    def _check_named(self, touches: Touches, copies: set[Database]) -> None:
        """Checks that every page with content was named by the survey."""
        read = {source for source, _ in touches.copied_databases}
        for folder in relation_folders(self._data_dir):
            for fork, segment, path in relation_files(self._data_dir, folder):
                if fork.kind is ForkKind.FSM or _database(fork) in copies | read:
                    continue
                self._check_file(touches.by_fork.get(fork), fork, segment, path)

    def _check_file(self, named: ForkPages | None, fork: Fork, segment: int, path: Path) -> None:
        has_content = np.zeros(SEGMENT_BLOCKS + 1, np.bool_)
        first = segment * SEGMENT_BLOCKS
        with path.open("rb") as file:
            for begin, end in _extents(file.fileno()):
                has_content[begin // PAGE_BYTES : -(-end // PAGE_BYTES)] = True
            if named is not None:
                begin, end = np.searchsorted(named.blocks, [first, first + SEGMENT_BLOCKS])
                has_content[named.blocks[begin:end] - first] = False
            for block in np.flatnonzero(has_content).tolist():
                if os.pread(file.fileno(), PAGE_BYTES, block * PAGE_BYTES).strip(b"\0"):
                    raise RedoError(
                        f"replaying the epoch changed block {first + block} of {fork}, which the "
                        "survey of its WAL does not name",
                        hint="This is a bug in the survey, or WAL of an unknown kind. The output "
                        "of the epoch is rejected; the WAL is kept.",
                    )


def _database(fork: Fork) -> Database:
    return Database(fork.tablespace, fork.database)


def _extents(fd: int) -> Iterator[tuple[int, int]]:
    """[begin, end) of each range that is not a hole, as reported by the file system."""
    at, size = 0, os.fstat(fd).st_size
    while at < size:
        try:
            begin = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return  # only a hole follows
            raise
        at = os.lseek(fd, begin, os.SEEK_HOLE)
        yield begin, at
