"""`PageSpill`: pages in a temporary file, one slot for each.

    slot  | size 4 | page, as bytes | unused |        its size is a power of two

A slot is used again when its page is taken out, so the file does not grow with the number of
writes. Memory grows with the number of pages, about 200 bytes for each, so that has a limit.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from quorum_wal.spark.changes.spill_file import SpillFile

PageName = tuple[int, int]

#: pages of 8 KiB: 2 GiB; those that were put first are forgotten
PAGES_MAX = 1 << 18

_SIZE = struct.Struct("<I")
_SLOT_BYTES_MIN = 512


class PageSpill:
    """Pages are identified by relfilenode and block."""

    def __init__(self) -> None:
        self._file = SpillFile()
        #: page -> (offset, size of the slot); in the order in which they were put
        self._slots: dict[PageName, tuple[int, int]] = {}
        #: size -> offsets of unused slots
        self._unused: dict[int, list[int]] = {}
        #: whether pages were forgotten
        self.has_forgotten = False

    def put(self, name: PageName, page: bytes) -> None:
        """The page must not be in the file. Raises SpillError."""
        assert name not in self._slots
        stored = _SIZE.pack(len(page)) + page
        size = max(_SLOT_BYTES_MIN, 1 << (len(stored) - 1).bit_length())
        unused = self._unused.get(size)
        at = unused.pop() if unused else self._file.end
        if at == self._file.end:  # so that the next slot begins after this one
            stored = stored.ljust(size, b"\0")
        self._file.write(at, stored)
        self._slots[name] = at, size
        if len(self._slots) > PAGES_MAX:
            self.has_forgotten = True
            self._free(next(iter(self._slots)))

    def take(self, name: PageName) -> bytes | None:
        """Removes the page from the file; None if it is not there. Raises SpillError."""
        if name not in self._slots:
            return None
        page = self._read(name)
        self._free(name)
        return page

    def everything(self) -> Iterator[tuple[PageName, bytes]]:
        """All pages, which stay in the file. Raises SpillError."""
        for name in self._slots:
            yield name, self._read(name)

    def clear(self) -> None:
        """Removes all pages."""
        self._slots.clear()
        self._unused.clear()
        self._file.close()

    def _read(self, name: PageName) -> bytes:
        stored = self._file.read(*self._slots[name])
        (length,) = _SIZE.unpack_from(stored)
        return stored[_SIZE.size : _SIZE.size + length]

    def _free(self, name: PageName) -> None:
        at, size = self._slots.pop(name)
        self._unused.setdefault(size, []).append(at)
