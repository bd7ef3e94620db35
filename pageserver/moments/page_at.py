"""Pages as of a moment: out of the layers, or replayed over an otherwise empty directory.

    cut C_i                    X
    [page]--- WAL -------------|     not in that WAL: it is as at the cut
                                     else a server replays it, with the wanted pages alone, is
                                     promoted, and its files are read

Law: what is read is the page after all records that begin before X. All other pages that the WAL
changes are passed over; a record changes each of its pages by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import numpy as np

from pageserver.epochs.page_files import PageFiles
from pageserver.epochs.redo import RedoServer
from pageserver.errors import PageNotFound
from pageserver.layers.fork import PAGE_BYTES, Fork
from pageserver.layers.fork_table import fork_blocks
from pageserver.layers.page_stack import ZERO_PAGE
from pageserver.layers.touches import Database, Numbers, Touches
from pageserver.moments.sparse_restore import RestorePoint, promoted_at, survey_up_to


class PageOrigin(Enum):
    """Where a page was found."""

    LAYERS = "layers"
    REPLAYED = "replayed"


@dataclass(frozen=True, slots=True)
class FoundPage:
    """Its bytes, and how they were found."""

    content: bytes
    origin: PageOrigin


class PageReader:
    """Works in `work_dir`, which is empty, and empty again behind it."""

    def __init__(self, work_dir: Path, server: RedoServer) -> None:
        self._work_dir = work_dir
        self._server = server

    def read(self, point: RestorePoint, fork: Fork, block: int) -> FoundPage:
        """Raises PageserverError: PageNotFound when there is no such page at that moment."""
        wanted = np.array([block], np.uint32)
        with self.open(point, {fork: wanted}) as pages:
            if pages.is_copied(fork):
                raise PageNotFound(
                    f"database {fork.database} was copied file by file between the cut and "
                    f"{point.moment}",
                    hint="Name a moment behind the next cut, or read it from the database it is "
                    "of.",
                )
            content = pages.read(fork, wanted).get(block)
            if content is None:
                raise _not_there(fork, block, point)
            is_replayed = len(pages.touched(fork, wanted)) > 0
        return FoundPage(content, PageOrigin.REPLAYED if is_replayed else PageOrigin.LAYERS)

    @contextmanager
    def open(self, point: RestorePoint, wanted: Mapping[Fork, Numbers]) -> Iterator[PagesAt]:
        """For these pages only, their blocks ascending. Replays once, if any of them needs it.
        Raises PageserverError."""
        touches, stop = survey_up_to(point)
        pages = PagesAt(point, touches, None)
        replayed = {
            fork: blocks
            for fork, of_fork in wanted.items()
            if not pages.is_copied(fork) and len(blocks := pages.touched(fork, of_fork))
        }
        if not replayed:
            yield pages
            return
        forks, source = point.frame.forks, point.source
        with promoted_at(
            point, touches, stop, self._work_dir / "data", self._server, 0,
            lambda sparse: sparse.build_pages(forks, touches, source, replayed),
        ) as server:  # fmt: skip
            yield PagesAt(point, touches, server.data_dir)


class PagesAt:
    """While what has replayed them is there."""

    def __init__(self, point: RestorePoint, touches: Touches, data_dir: Path | None) -> None:
        self.point = point
        self.touches = touches
        self._data_dir = data_dir
        self.version_folder = point.frame.control_file().version_folder(point.wal.server.pg_major)

    def is_copied(self, fork: Fork) -> bool:
        """Its database was made file by file: what is in it is not known until the next cut."""
        database = Database(fork.tablespace, fork.database)
        return any(copy == database for _, copy in self.touches.copied_databases)

    def is_known(self, fork: Fork) -> bool:
        """The cut has it, or the WAL behind it."""
        return fork in self.point.frame.forks or fork in self.touches.by_fork

    def touched(self, fork: Fork, blocks: Numbers) -> Numbers:
        """Those of these that the WAL behind the cut has changed."""
        named = self.touches.by_fork.get(fork)
        return blocks[np.isin(blocks, named.blocks)] if named else blocks[:0]

    def read(self, fork: Fork, blocks: Numbers) -> dict[int, bytes]:
        """By block; one that is not there at that moment is left out. Raises PageserverError."""
        assert not self.is_copied(fork), "of such a database no page is known"
        touched = self.touched(fork, blocks)
        found = self._replayed(fork, touched)
        untouched = np.setdiff1d(blocks, touched, assume_unique=True)
        untouched = untouched[untouched < self._untouched_limit(fork)]
        found |= dict.fromkeys(untouched.tolist(), ZERO_PAGE)
        for part, data in self.point.source.read(fork, untouched):
            for at, block in enumerate(part.tolist()):
                found[block] = bytes(data[at * PAGE_BYTES : (at + 1) * PAGE_BYTES])
        return found

    def _untouched_limit(self, fork: Fork) -> int:
        """Pages below it are as at the cut, if the WAL has not touched them."""
        if Database(fork.tablespace, fork.database) in self.touches.fresh_databases:
            return 0
        length = self.point.frame.forks.get(fork, 0)
        return min(length, self.touches.limits.get(fork, length))

    def _replayed(self, fork: Fork, blocks: Numbers) -> dict[int, bytes]:
        if not len(blocks):
            return {}
        assert self._data_dir is not None, "these pages were not among the wanted ones"
        length = fork_blocks(self._data_dir, fork, self.version_folder) or 0
        files = PageFiles(self._data_dir, self.version_folder, lambda _: None)
        found = {}
        for part, data in files.read(fork, blocks[blocks < length]):
            for at, block in enumerate(part.tolist()):
                found[block] = bytes(data[at * PAGE_BYTES : (at + 1) * PAGE_BYTES])
        return found


def _not_there(fork: Fork, block: int, point: RestorePoint) -> PageNotFound:
    length = point.frame.forks.get(fork)
    return PageNotFound(
        f"there is no block {block} of {fork} at {point.moment}",
        hint="At the cut before it had "
        + (f"{length} blocks." if length is not None else "no file. Is it the right number?"),
    )
