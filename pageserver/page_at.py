"""One page as of a moment: out of the layers, or replayed over an otherwise empty directory.

    cut C_i                    X
    [page]--- WAL -------------|     not in that WAL: it is as at the cut
                                     else a server replays it, with this page alone, is promoted,
                                     and its file is read

Law: what is read is the page after all records that begin before X. All other pages that the WAL
changes are passed over; a record changes each of its pages by itself.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from pageserver.errors import PageNotFound
from pageserver.fork import PAGE_BYTES, SEGMENT_BLOCKS, Fork
from pageserver.page_stack import read_one
from pageserver.promoted_server import StopPoint
from pageserver.redo import RedoServer
from pageserver.sparse_restore import RestorePoint, promoted_at, survey_up_to
from pageserver.touches import Database, Touches


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
        touches, stop = survey_up_to(point)
        database = Database(fork.tablespace, fork.database)
        if any(copy == database for _, copy in touches.copied_databases):
            raise PageNotFound(
                f"database {fork.database} was copied file by file between the cut and "
                f"{point.moment}",
                hint="Name a moment behind the next cut, or read it from the database it is of.",
            )
        if is_touched(touches, fork, block):
            return FoundPage(self._replayed(point, touches, stop, fork, block), PageOrigin.REPLAYED)
        limit = touches.limits.get(fork)
        is_gone = database in touches.fresh_databases or (limit is not None and limit <= block)
        if is_gone or block >= point.frame.forks.get(fork, 0):
            raise _not_there(fork, block, point)
        return FoundPage(read_one(point.source, fork, block), PageOrigin.LAYERS)

    def _replayed(
        self, point: RestorePoint, touches: Touches, stop: StopPoint, fork: Fork, block: int
    ) -> bytes:
        control, forks, source = point.frame.control_file(), point.frame.forks, point.source
        folder = control.version_folder(point.wal.server.pg_major)
        with promoted_at(
            point, touches, stop, self._work_dir / "data", self._server, 0,
            lambda sparse: sparse.build_page(forks, touches, source, fork, block),
        ) as server:  # fmt: skip
            content = _read(server.data_dir / fork.file(folder, block // SEGMENT_BLOCKS), block)
        if len(content) != PAGE_BYTES:
            raise _not_there(fork, block, point)
        return content


def is_touched(touches: Touches, fork: Fork, block: int) -> bool:
    """By a record of that WAL."""
    named = touches.by_fork.get(fork)
    return named is not None and block in named.blocks


def _read(path: Path, block: int) -> bytes:
    """Fewer bytes where the file ends; none where there is none."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return b""
    try:
        return os.pread(fd, PAGE_BYTES, block % SEGMENT_BLOCKS * PAGE_BYTES)
    finally:
        os.close(fd)


def _not_there(fork: Fork, block: int, point: RestorePoint) -> PageNotFound:
    length = point.frame.forks.get(fork)
    return PageNotFound(
        f"there is no block {block} of {fork} at {point.moment}",
        hint="At the cut before it had "
        + (f"{length} blocks." if length is not None else "no file. Is it the right number?"),
    )
