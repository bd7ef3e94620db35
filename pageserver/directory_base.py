"""`DirectoryBase`: the pages of a data directory that no server runs on, as the base of a stack."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from pageserver.fork import PAGE_BYTES, SEGMENT_BLOCKS, Fork
from pageserver.touches import Numbers


class DirectoryBase:
    """`version_folder` is of its tablespaces."""

    def __init__(self, data_dir: Path, version_folder: str) -> None:
        self._data_dir = data_dir
        self._version_folder = version_folder

    def read(self, fork: Fork, blocks: Numbers) -> Iterator[tuple[int, bytes]]:
        """Those that it has, whole."""
        number, fd = -1, -1
        try:
            for block in blocks.tolist():
                segment, offset = divmod(block, SEGMENT_BLOCKS)
                if segment != number:
                    if fd >= 0:
                        os.close(fd)
                    number, fd = segment, self._open(fork, segment)
                if fd < 0:
                    continue
                page = os.pread(fd, PAGE_BYTES, offset * PAGE_BYTES)
                if len(page) == PAGE_BYTES:
                    yield block, page
        finally:
            if fd >= 0:
                os.close(fd)

    def _open(self, fork: Fork, segment: int) -> int:
        try:
            return os.open(self._data_dir / fork.file(self._version_folder, segment), os.O_RDONLY)
        except FileNotFoundError:
            return -1
