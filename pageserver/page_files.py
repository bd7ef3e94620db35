"""`PageFiles`: the files of forks in a data directory that no server runs on, page by page."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from pageserver.errors import PageserverError
from pageserver.fork import PAGE_BYTES, SEGMENT_BLOCKS, Fork
from pageserver.page_stack import ZERO_PAGE, PageBase
from pageserver.touches import Numbers

Give = Callable[[Path], None]
#: of pages that are read together
READ_BLOCKS = 4096


class PageFiles:
    """`give` hands each new file to the account of the server."""

    def __init__(self, data_dir: Path, version_folder: str, give: Give) -> None:
        self._data_dir = data_dir
        self._version_folder = version_folder
        self._give = give

    def path(self, fork: Fork, segment: int) -> Path:
        return self._data_dir / fork.file(self._version_folder, segment)

    def make(self, fork: Fork, length: int) -> None:
        """Legal when it is there: then it stays as it is."""
        for segment in range(length // SEGMENT_BLOCKS + 1):
            path = self.path(fork, segment)
            if path.exists():
                continue
            blocks = min(length - segment * SEGMENT_BLOCKS, SEGMENT_BLOCKS)
            with path.open("wb") as file:
                file.truncate(blocks * PAGE_BYTES)
            path.chmod(0o600)
            self._give(path)

    def fill(self, fork: Fork, blocks: Numbers, source: PageBase) -> None:
        if not len(blocks):
            return
        fds: dict[int, int] = {}
        try:
            for block, page in source.read(fork, blocks):
                segment, offset = divmod(block, SEGMENT_BLOCKS)
                if segment not in fds:
                    fds[segment] = os.open(self.path(fork, segment), os.O_WRONLY)
                if page != ZERO_PAGE:
                    os.pwrite(fds[segment], page, offset * PAGE_BYTES)
        finally:
            for fd in fds.values():
                os.close(fd)

    def read(self, fork: Fork, blocks: Numbers) -> Iterator[tuple[int, bytes]]:
        number, fd = -1, -1
        try:
            for block in blocks.tolist():
                segment, offset = divmod(block, SEGMENT_BLOCKS)
                if segment != number:
                    if fd >= 0:
                        os.close(fd)
                    number, fd = segment, os.open(self.path(fork, segment), os.O_RDONLY)
                page = os.pread(fd, PAGE_BYTES, offset * PAGE_BYTES)
                if len(page) != PAGE_BYTES:
                    raise PageserverError(f"file of {fork} ends inside block {block}")
                yield block, page
        finally:
            if fd >= 0:
                os.close(fd)
