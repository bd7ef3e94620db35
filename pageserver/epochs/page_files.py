"""`PageFiles`: the files of forks in a data directory that no server runs on, page by page."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from pageserver.errors import PageserverError
from pageserver.layers.fork import PAGE_BYTES, SEGMENT_BLOCKS, Fork
from pageserver.layers.page_run import RUN_BLOCKS_MAX, Run, consecutive
from pageserver.layers.page_stack import PageBase
from pageserver.layers.touches import Numbers

Give = Callable[[Path], None]
#: of pages that are asked of a source at once
READ_BLOCKS = 4096
ZEROS = memoryview(bytes(RUN_BLOCKS_MAX * PAGE_BYTES))


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
        """With these pages of `source`; holes stay where it has none, or only zeros."""
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
        """These pages, which the files have. Raises PageserverError."""
        with _Descriptors(lambda segment: os.open(self.path(fork, segment), os.O_RDONLY)) as fds:
            for at, first, count in consecutive(blocks):
                segment, offset = divmod(first, SEGMENT_BLOCKS)
                data = os.pread(fds[segment], count * PAGE_BYTES, offset * PAGE_BYTES)
                if len(data) != count * PAGE_BYTES:
                    raise PageserverError(
                        f"the file of {fork} ends inside or before block {first + count - 1}"
                    )
                yield blocks[at : at + count], memoryview(data)


class _Descriptors(dict[int, int]):
    """A context manager: of the GiBs of a fork, opened when they are asked for."""

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
