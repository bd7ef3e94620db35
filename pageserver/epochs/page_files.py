"""`PageFiles`: reads and writes pages of a data directory while no server uses it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from quorum_wal.pageserver.errors import PageserverError
from quorum_wal.pageserver.layers.fork import PAGE_BYTES, SEGMENT_BLOCKS, Fork
from quorum_wal.pageserver.layers.page_run import RUN_BLOCKS_MAX, Run, consecutive
from quorum_wal.pageserver.layers.page_stack import PageBase
from quorum_wal.pageserver.layers.touches import Numbers

Give = Callable[[Path], None]
#: number of pages read from a source at once
READ_BLOCKS = 4096
ZEROS = memoryview(bytes(RUN_BLOCKS_MAX * PAGE_BYTES))


class PageFiles:
    """`give` changes the owner of each new file to the server's account."""

    def __init__(self, data_dir: Path, version_folder: str, give: Give) -> None:
        self._data_dir = data_dir
        self._version_folder = version_folder
        self._give = give

    def path(self, fork: Fork, segment: int) -> Path:
        return self._data_dir / fork.file(self._version_folder, segment)

    def make(self, fork: Fork, length: int) -> None:
        """Does not change files that exist."""
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
        """Writes these pages of `source`. Pages that are missing or all zeros stay holes."""
        if not len(blocks):
            return
        with _Descriptors(lambda segment: os.open(self.path(fork, segment), os.O_WRONLY)) as fds:
            for found, data in source.read(fork, blocks):
                for at, first, count in consecutive(found):
                    piece = data[at * PAGE_BYTES : (at + count) * PAGE_BYTES]
                    if piece != ZEROS[: len(piece)]:
                        segment, offset = divmod(first, SEGMENT_BLOCKS)
                        os.pwrite(fds[segment], piece, offset * PAGE_BYTES)

    def read(self, fork: Fork, blocks: Numbers) -> Iterator[Run]:
        """Reads these pages, which must exist. Raises PageserverError."""
        with _Descriptors(lambda segment: os.open(self.path(fork, segment), os.O_RDONLY)) as fds:
            for at, first, count in consecutive(blocks):
                segment, offset = divmod(first, SEGMENT_BLOCKS)
                data = os.pread(fds[segment], count * PAGE_BYTES, offset * PAGE_BYTES)
                if len(data) != count * PAGE_BYTES:
                    raise PageserverError(
                        f"expected block {first + count - 1} in the file of {fork}, but the file "
                        "is shorter"
                    )
                yield blocks[at : at + count], memoryview(data)


class _Descriptors(dict[int, int]):
    """A context manager: file descriptors of the segments of a fork, opened on demand."""

    def __init__(self, opened: Callable[[int], int]) -> None:
        super().__init__()
        self._opened = opened

    def __missing__(self, segment: int) -> int:
        self[segment] = self._opened(segment)
        return self[segment]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for fd in self.values():
            os.close(fd)
