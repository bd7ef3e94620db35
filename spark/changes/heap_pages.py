"""`HeapPages`: the tuples of pages that the WAL has shown. It is needed with wal_level replica,
where an update has only the difference from the old row, and a delete only the row's position.

    page image  -->  all tuples of the page       insert, update  -->  one tuple of the page

With full_page_writes, the first change of a page after a checkpoint's redo point has its image. So
a reader that starts at a redo point knows every page that changes. Pruning does not move a tuple to
another line pointer, so the tuple of a line pointer stays until another one is put there. After
lost WAL any page may have changed, so all pages are forgotten there.

Memory is bounded: the least recently used pages are in a temporary file.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

import msgspec

from quorum_wal.pgwal.block_ref import PageImage
from quorum_wal.spark.changes.heap_page import restore_page, tuple_on_page
from quorum_wal.spark.changes.page_spill import PageName, PageSpill

#: of the pages in memory
MEMORY_BYTES = 64 << 20

#: what Python's objects need beside the bytes of a tuple and of a page
_TUPLE_BYTES, _PAGE_BYTES = 100, 700

_Stored = tuple[PageImage | None, dict[int, bytes]]
_ENCODER, _DECODER = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(_Stored)


@dataclass(slots=True)
class _Page:
    image: PageImage | None = None
    restored: bytes | None = None
    #: by line pointer; newer than the image
    tuples: dict[int, bytes] = field(default_factory=dict)
    #: of memory
    size_bytes: int = 0


class HeapPages:
    """Pages are identified by relfilenode and block. `memory_bytes` is for the pages in memory."""

    def __init__(self, memory_bytes: int = MEMORY_BYTES) -> None:
        self._pages: OrderedDict[PageName, _Page] = OrderedDict()
        self._size_bytes = 0
        self._spill = PageSpill()
        self._memory_bytes = memory_bytes

    def clear(self) -> None:
        """Forgets all pages, and deletes the file."""
        self._pages.clear()
        self._size_bytes = 0
        self._spill.clear()

    close = clear

    def put_image(self, relfilenode: int, block: int, image: PageImage) -> None:
        """Stores the page as it is after the record. Raises SpillError."""
        page = self._page(relfilenode, block)
        page.image, page.restored = image, None
        page.tuples.clear()
        self._grow(page, _PAGE_BYTES + len(image.data) - page.size_bytes)

    def put(self, relfilenode: int, block: int, offset: int, stored: bytes) -> None:
        """Raises SpillError."""
        page = self._page(relfilenode, block)
        before = page.tuples.get(offset)
        added = len(stored) + _TUPLE_BYTES
        page.tuples[offset] = stored
        self._grow(page, added if before is None else len(stored) - len(before))

    def get(self, relfilenode: int, block: int, offset: int) -> bytes | None:
        """None if the tuple has not been seen. Raises DatumError if the image is damaged, and
        SpillError."""
        page = self._found((relfilenode, block))
        if page is None:
            return None
        if offset in page.tuples or page.image is None:
            return page.tuples.get(offset)
        if page.restored is None:
            page.restored = restore_page(page.image)
            self._grow(page, len(page.restored))
        return tuple_on_page(page.restored, offset)

    def _page(self, relfilenode: int, block: int) -> _Page:
        name = relfilenode, block
        page = self._found(name)
        if page is None:
            page = self._pages[name] = _Page()
            self._grow(page, _PAGE_BYTES)
        return page

    def _found(self, name: PageName) -> _Page | None:
        """A known page, in memory from now on, and the most recently used one."""
        page = self._pages.get(name)
        if page is not None:
            self._pages.move_to_end(name)
            return page
        stored = self._spill.take(name)
        if stored is None:
            return None
        image, tuples = _DECODER.decode(stored)
        page = self._pages[name] = _Page(image, None, tuples)
        size = sum(len(each) + _TUPLE_BYTES for each in tuples.values())
        self._grow(page, _PAGE_BYTES + size + (len(image.data) if image else 0))
        return page

    def _grow(self, page: _Page, size_bytes: int) -> None:
        """Counts the memory of the page that was used last, which stays in memory."""
        page.size_bytes += size_bytes
        self._size_bytes += size_bytes
        while self._size_bytes > self._memory_bytes and len(self._pages) > 1:
            name, oldest = self._pages.popitem(last=False)
            self._size_bytes -= oldest.size_bytes
            self._spill.put(name, _ENCODER.encode((oldest.image, oldest.tuples)))
