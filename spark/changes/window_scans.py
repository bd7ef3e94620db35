"""`WindowScans`: the scans of a window, for a reader that needs them twice.

    first()   reads the window, and keeps its scans if they are small
    again()   the kept scans, or the window read once more

Law: memory does not grow with the window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from quorum_wal.spark.changes.heap_scan import HeapScan


class WindowScans:
    """`read` reads the window. Scans of at most `bytes_max` together are kept."""

    def __init__(self, read: Callable[[], Iterator[HeapScan]], bytes_max: int) -> None:
        self._read = read
        self._bytes_max = bytes_max
        #: None: they are too large, or not wanted any more
        self._kept: list[HeapScan] | None = None

    def first(self) -> Iterator[HeapScan]:
        """Raises WalInputError."""
        kept: list[HeapScan] | None = []
        size_bytes = 0
        for scan in self._read():
            size_bytes += scan.size_bytes
            if size_bytes > self._bytes_max:
                kept = None
            if kept is not None:
                kept.append(scan)
            yield scan
        self._kept = kept

    def again(self) -> Iterator[HeapScan]:
        """Raises WalInputError."""
        return self._read() if self._kept is None else iter(self._kept)

    def free(self) -> None:
        """Frees the memory; `again` then reads."""
        self._kept = None
