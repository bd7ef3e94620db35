"""`HeapPages`: the tuples of pages that the WAL has shown. It is needed with wal_level replica,
where an update has only the difference from the old row, and a delete only the row's position.

    page image  -->  all tuples of the page       insert, update  -->  one tuple of the page

With full_page_writes, the first change of a page after a checkpoint's redo point has its image. So
a reader that starts at a redo point knows every page that changes. Pruning does not move a tuple to
another line pointer, so the tuple of a line pointer stays until another one is put there. After
lost WAL any page may have changed, so all pages are forgotten there.

Memory is bounded: the least recently used pages are in a temporary file. `older` has the pages of
an earlier batch (`page_folder.py`): of a page that is not known here, or only in part, it has the
rest.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from quorum_wal.pgwal.block_ref import PageImage
from quorum_wal.spark.changes.heap_page import restore_page, tuple_on_page
from quorum_wal.spark.changes.page_file import PagesLost, StoredPage, decode_page, encode_page
from quorum_wal.spark.changes.page_folder import KeptPages
from quorum_wal.spark.changes.page_spill import PageName, PageSpill

#: of the pages in memory
MEMORY_BYTES = 64 << 20

#: what Python's objects need beside the bytes of a tuple and of a page
_TUPLE_BYTES, _PAGE_BYTES = 100, 700


@dataclass(slots=True)
class _Page:
    image: PageImage | None = None
    restored: bytes | None = None
    #: by line pointer; newer than the image
    tuples: dict[int, bytes] = field(default_factory=dict)
    #: what an earlier batch knew, unless `image` is newer; not stored again
    older: StoredPage | None = None
    #: of memory
    size_bytes: int = 0

    @property
    def is_changed(self) -> bool:
        return self.image is not None or bool(self.tuples)

    def encoded(self) -> bytes:
        return encode_page((self.image, self.tuples))


class HeapPages:
    """Pages are identified by relfilenode and block. `memory_bytes` is for the pages in memory.
    With `older`, methods that read or write a page raise PagesLost if it cannot be used."""

    def __init__(self, memory_bytes: int = MEMORY_BYTES, older: KeptPages | None = None) -> None:
        self._pages: OrderedDict[PageName, _Page] = OrderedDict()
        self._size_bytes = 0
        self._spill = PageSpill()
        self._memory_bytes = memory_bytes
        self._older = older
        self._is_cleared = False

    def clear(self) -> None:
        """Forgets all pages. Raises PagesLost if there are older ones: they are not known from
        lost WAL on."""
        if self._older is not None:
            raise PagesLost("WAL is lost after a file of pages")
        self.close()

    def close(self) -> None:
        """Forgets all pages, and deletes the file."""
        self._pages.clear()
        self._size_bytes = 0
        self._spill.clear()
        self._is_cleared = True

    @property
    def is_complete(self) -> bool:
        """False if pages were forgotten: because of lost WAL, or because they were too many."""
        return not (self._is_cleared or self._spill.has_forgotten)

    def changed(self) -> Iterator[tuple[PageName, bytes]]:
        """The pages that have changed, as records of a file of pages; of a page without an image,
        only the new tuples. Raises SpillError."""
        for name, page in self._pages.items():
            if page.is_changed:
                yield name, page.encoded()
        yield from self._spill.everything()

    def put_image(self, relfilenode: int, block: int, image: PageImage) -> None:
        """Stores the page as it is after the record. Raises SpillError."""
        page = self._page(relfilenode, block)
        page.image, page.restored, page.older = image, None, None
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
        name = relfilenode, block
        page = self._found(name)
        if page is None:
            if self._older is None:
                return None
            page = self._page(relfilenode, block)
        if offset in page.tuples:
            return page.tuples[offset]
        image = page.image
        if image is None and self._older is not None:
            image, tuples = self._older_part(page, name)
            if offset in tuples:
                return tuples[offset]
        if image is None:
            return None
        if page.restored is None:
            page.restored = restore_page(image)
            self._grow(page, len(page.restored))
        return tuple_on_page(page.restored, offset)

    def _older_part(self, page: _Page, name: PageName) -> StoredPage:
        """What the earlier batch knew of a page without a newer image. Raises PagesLost."""
        assert self._older is not None
        if page.older is None:
            page.older = self._older.page(name) or (None, {})
            image, tuples = page.older
            self._grow(page, _size_of(tuples) + (len(image.data) if image else 0))
        return page.older

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
        image, tuples = decode_page(stored)
        page = self._pages[name] = _Page(image, None, tuples)
        self._grow(page, _PAGE_BYTES + _size_of(tuples) + (len(image.data) if image else 0))
        return page

    def _grow(self, page: _Page, size_bytes: int) -> None:
        """Counts the memory of the page that was used last, which stays in memory."""
        page.size_bytes += size_bytes
        self._size_bytes += size_bytes
        while self._size_bytes > self._memory_bytes and len(self._pages) > 1:
            name, oldest = self._pages.popitem(last=False)
            self._size_bytes -= oldest.size_bytes
            if oldest.is_changed:
                self._spill.put(name, oldest.encoded())
        if self._older is not None and not self.is_complete:
            # A forgotten page would be taken as it was in the earlier batch.
            raise PagesLost("more pages changed than are followed")


def _size_of(tuples: dict[int, bytes]) -> int:
    return sum(len(each) + _TUPLE_BYTES for each in tuples.values())
