"""A stream of bytes as numbered, sealed objects. Several threads write or read them.

    content:  | PART_BYTES | PART_BYTES | rest |
    objects:   .../000001   .../000002   .../000003

Law: at most PARTS_IN_FLIGHT_MAX parts are in memory, however slow the store is. A writer waits for
the oldest part, and a reader fetches no further ahead.
"""

from __future__ import annotations

import io
import sys
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from types import TracebackType
from typing import Self

from quorum_wal.backup.backup_record import BackupArchive
from quorum_wal.backup.errors import BackupError
from quorum_wal.backup.retry import create_with_retries, with_retries
from quorum_wal.objectstore.sealed import ZSTD_LEVEL, seal, unseal
from quorum_wal.objectstore.store import ObjectStore

PART_BYTES = 16 << 20
THREADS = 3
PARTS_IN_FLIGHT_MAX = 4

#: (archive name, part number) -> key
PartKey = Callable[[str, int], str]


class PartWriter:
    """A context manager. Call `begin`, `write`, ..., `begin`, `write`, ..., `finish`.

    Every method raises ObjectStoreError, also for a part written earlier.
    """

    def __init__(self, store: ObjectStore, part_key: PartKey, level: int | None = ZSTD_LEVEL):
        self._store = store
        self._part_key = part_key
        self._level = level
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="part")
        self._stopping = Event()
        self._pending: deque[Future[int]] = deque()
        self._buffer = bytearray()
        self._name = self._path = ""
        self._parts = self._content_bytes = self._stored_bytes = 0
        self._archives: list[BackupArchive] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc_type is not None:
            self._stopping.set()
        self._pool.shutdown(cancel_futures=True)

    def begin(self, name: str, path: str) -> None:
        """The data written from now on belongs to this archive."""
        self._end_archive()
        self._name, self._path = name, path

    def write(self, data: bytes | memoryview) -> None:
        if not self._name:
            raise BackupError("the base backup does not begin with an archive")
        self._buffer += data
        while len(self._buffer) >= PART_BYTES:
            self._submit(bytes(memoryview(self._buffer)[:PART_BYTES]))
            del self._buffer[:PART_BYTES]

    def finish(self) -> tuple[BackupArchive, ...]:
        """All archives. Returns when all parts are in the store."""
        self._end_archive()
        return tuple(self._archives)

    def _end_archive(self) -> None:
        if self._name:
            if self._buffer or not self._parts:
                self._submit(bytes(self._buffer))
            while self._pending:
                self._wait_oldest()
            archive = BackupArchive(
                name=self._name,
                path=self._path,
                parts=self._parts,
                content_bytes=self._content_bytes,
                stored_bytes=self._stored_bytes,
            )
            self._archives.append(archive)
        self._buffer.clear()
        self._name = ""
        self._parts = self._content_bytes = self._stored_bytes = 0

    def _submit(self, content: bytes) -> None:
        self._parts += 1
        self._content_bytes += len(content)
        key = self._part_key(self._name, self._parts)
        self._pending.append(self._pool.submit(self._upload, key, content))
        if len(self._pending) >= PARTS_IN_FLIGHT_MAX:
            self._wait_oldest()

    def _wait_oldest(self) -> None:
        self._stored_bytes += self._pending.popleft().result()

    def _upload(self, key: str, content: bytes) -> int:
        sealed = seal(content, self._level)
        create_with_retries(self._store, key, sealed, self._stopping)
        return len(sealed)


class PartReader(io.RawIOBase):
    """The content of one archive, as a file that can be read once, from beginning to end.

    Raises ObjectStoreError if a part is missing or damaged.
    """

    def __init__(self, store: ObjectStore, part_key: PartKey, archive: BackupArchive) -> None:
        super().__init__()
        self._store = store
        self._archive = archive
        self._part_key = part_key
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="part")
        self._stopping = Event()
        self._parts = self._fetch_all()
        self._current = memoryview(b"")
        self.read_bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        piece = self._next(len(buffer))
        buffer[: len(piece)] = piece
        return len(piece)

    def pieces(self, length: int = sys.maxsize) -> Iterator[memoryview]:
        """The next `length` bytes, without copying them; fewer at the end of the archive."""
        while length and (piece := self._next(length)):
            length -= len(piece)
            yield piece

    def _next(self, length_max: int) -> memoryview:
        while not self._current:
            part = next(self._parts, None)
            if part is None:
                self._check_length()
                break
            self._current = memoryview(part)
        piece, self._current = self._current[:length_max], self._current[length_max:]
        self.read_bytes += len(piece)
        return piece

    def close(self) -> None:
        self._stopping.set()
        self._pool.shutdown(cancel_futures=True)
        super().close()

    def _fetch_all(self) -> Iterator[bytes]:
        pending: deque[Future[bytes]] = deque()
        for number in range(1, self._archive.parts + 1):
            pending.append(self._pool.submit(self._fetch, number))
            if len(pending) >= PARTS_IN_FLIGHT_MAX:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()

    def _fetch(self, number: int) -> bytes:
        key = self._part_key(self._archive.name, number)
        return unseal(with_retries(lambda: self._store.get(key), self._stopping), key)

    def _check_length(self) -> None:
        if self.read_bytes != self._archive.content_bytes:
            raise BackupError(
                f"{self._archive.name} is damaged: expected {self._archive.content_bytes} bytes, "
                f"found {self.read_bytes}"
            )
