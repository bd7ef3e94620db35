"""Pages as of a position: read from the layers, or replayed over an otherwise empty directory.

    cut C_i                    X
    [page]--- WAL -------------|     if no record of that WAL touches the page: as at the cut;
                                     else a server replays the WAL over the wanted pages only, is
                                     promoted, and its files are read

Law: the result is the page after all records that begin before X. Replay ignores all other pages
that the WAL changes, because a record changes each of its pages independently. For a single page,
it needs only the records of this page (`page_wal.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path

import numpy as np

from quorum_wal.pageserver.epochs.page_files import Give, PageFiles
from quorum_wal.pageserver.epochs.redo import RedoServer
from quorum_wal.pageserver.errors import PageNotFound
from quorum_wal.pageserver.layers.fork import PAGE_BYTES, Fork
from quorum_wal.pageserver.layers.fork_table import fork_blocks
from quorum_wal.pageserver.layers.page_stack import ZERO_PAGE
from quorum_wal.pageserver.layers.touches import Database, Numbers
from quorum_wal.pageserver.pitr.promoted_server import StopPoint
from quorum_wal.pageserver.pitr.restore_point import RestorePoint
from quorum_wal.pageserver.pitr.sparse_restore import promoted_at


class PageOrigin(Enum):
    """The source of a page."""

    LAYERS = "layers"
    REPLAYED = "replayed"


@dataclass(frozen=True, slots=True)
class FoundPage:
    """The bytes of a page, and their source."""

    content: bytes
    origin: PageOrigin


class PageReader:
    """Works in `work_dir`, which is empty before and after each call."""

    def __init__(self, work_dir: Path, server: RedoServer) -> None:
        self._work_dir = work_dir
        self._server = server

    def read(self, point: RestorePoint, fork: Fork, block: int) -> FoundPage:
        """Raises PageserverError: PageNotFound if the page does not exist at that position."""
        wanted = np.array([block], np.uint32)
        with self.open(point, {fork: wanted}) as pages:
            if pages.is_copied(fork):
                raise PageNotFound(
                    f"database {fork.database} was copied file by file between the cut and "
                    f"{point.target}",
                    hint="Specify a position after the next cut, or read the page from the source "
                    "database.",
                )
            content = pages.read(fork, wanted).get(block)
            if content is None:
                raise _missing_page(fork, block, point)
            is_replayed = len(pages.touched(fork, wanted)) > 0
        return FoundPage(content, PageOrigin.REPLAYED if is_replayed else PageOrigin.LAYERS)

    @contextmanager
    def open(self, point: RestorePoint, wanted: Mapping[Fork, Numbers]) -> Iterator[PagesAt]:
        """For these pages only, with ascending blocks. Replays the WAL once, if any page needs it.
        Raises PageserverError."""
        pages = PagesAt(point, None)
        replayed = {
            fork: blocks
            for fork, of_fork in wanted.items()
            if not pages.is_copied(fork) and len(blocks := pages.touched(fork, of_fork))
        }
        if not replayed:
            yield pages
            return
        forks, touches, source = point.frame.forks, point.touches, point.source
        with promoted_at(
            point, self._work_dir / "data", self._server, 0,
            lambda sparse: sparse.build_pages(forks, touches, source, replayed),
            _link_wal(point, replayed),
        ) as server:  # fmt: skip
            yield PagesAt(point, server.data_dir)


class PagesAt:
    """Usable until the context of PageReader.open() ends."""

    def __init__(self, point: RestorePoint, data_dir: Path | None) -> None:
        self.point = point
        self.touches = point.touches
        self._data_dir = data_dir
        self.version_folder = point.frame.control_file().version_folder(point.wal.server.pg_major)

    def is_copied(self, fork: Fork) -> bool:
        """Whether its database was created by copying files: its pages are unknown until the next
        cut."""
        database = Database(fork.tablespace, fork.database)
        return any(copy == database for _, copy in self.touches.copied_databases)

    def is_known(self, fork: Fork) -> bool:
        """Whether the cut, or the WAL after it, contains the fork."""
        return fork in self.point.frame.forks or fork in self.touches.by_fork

    def touched(self, fork: Fork, blocks: Numbers) -> Numbers:
        """Those of these blocks that the WAL after the cut touches."""
        named = self.touches.by_fork.get(fork)
        return blocks[np.isin(blocks, named.blocks)] if named else blocks[:0]

    def read(self, fork: Fork, blocks: Numbers) -> dict[int, bytes]:
        """Pages by block, without those that do not exist at that position. Raises
        PageserverError."""
        assert not self.is_copied(fork), "pages of a copied database are unknown"
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
        """Blocks below the limit are as at the cut, unless the WAL touches them."""
        if Database(fork.tablespace, fork.database) in self.touches.fresh_databases:
            return 0
        length = self.point.frame.forks.get(fork, 0)
        return min(length, self.touches.limits.get(fork, length))

    def _replayed(self, fork: Fork, blocks: Numbers) -> dict[int, bytes]:
        if not len(blocks):
            return {}
        assert self._data_dir is not None, "these pages were not passed to open()"
        length = fork_blocks(self._data_dir, fork, self.version_folder) or 0
        files = PageFiles(self._data_dir, self.version_folder, lambda _: None)
        found = {}
        for part, data in files.read(fork, blocks[blocks < length]):
            for at, block in enumerate(part.tolist()):
                found[block] = bytes(data[at * PAGE_BYTES : (at + 1) * PAGE_BYTES])
        return found


def _link_wal(
    point: RestorePoint, replayed: Mapping[Fork, Numbers]
) -> Callable[[Path, Give], StopPoint]:
    """Links the WAL that these pages need."""
    each = [(fork, int(block)) for fork, blocks in replayed.items() for block in blocks]
    return partial(point.link_wal_of_page, *each[0]) if len(each) == 1 else point.link_wal


def _missing_page(fork: Fork, block: int, point: RestorePoint) -> PageNotFound:
    length = point.frame.forks.get(fork)
    return PageNotFound(
        f"block {block} of {fork} does not exist at {point.target}",
        hint="At the previous cut the fork has "
        + (f"{length} blocks." if length is not None else "no file. Check its number."),
    )
