"""`FileSync`: threads that sync files while the caller writes the next ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from quorum_wal.storage import durable

THREADS = 8
IN_FLIGHT_MAX = 256


class FileSync:
    """A context manager. With `is_synced` False it syncs nothing. Raises StorageError."""

    def __init__(self, is_synced: bool) -> None:
        self._is_synced = is_synced
        self._pool = ThreadPoolExecutor(THREADS)
        self._pending: deque[Future[None]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._pool.shutdown(cancel_futures=True)

    def add(self, path: Path) -> None:
        """`path` is completely written."""
        if self._is_synced:
            self._pending.append(self._pool.submit(durable.sync_file, path))
        if len(self._pending) > IN_FLIGHT_MAX:
            self._pending.popleft().result()

    def finish(self, directories: Iterable[Path]) -> None:
        """Returns when all files are synced, and then `directories`."""
        while self._pending:
            self._pending.popleft().result()
        if self._is_synced:
            list(self._pool.map(durable.sync_directory, directories))
