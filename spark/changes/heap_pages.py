"""`HeapPages`: the tuples of pages, as far as the WAL has shown them; for wal_level replica, where
an update says only how it differs from the old row, and a delete only where the row was.

    page image  -->  all tuples of the page       insert, update  -->  one tuple of the page

With full_page_writes the first change of a page behind a checkpoint's redo point carries its image,
so what is read from a redo point on knows every page it changes. Pruning moves no tuple to another
line pointer: what stands there stays until another tuple is put there. Behind WAL that is lost all
of it may be otherwise: everything is forgotten there.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from pgwal.block_ref import PageImage
from spark.changes.heap_page import restore_page, tuple_on_page

#: pages of 8 KiB; those that were not changed for longest are forgotten
PAGES_MAX = 1 << 15


@dataclass(slots=True)
class _Page:
    image: PageImage | None = None
    restored: bytes | None = None
    #: by line pointer, newer than the image
    tuples: dict[int, bytes] = field(default_factory=dict)


class HeapPages:
    """Pages are named by relfilenode and block."""

    def __init__(self, pages_max: int = PAGES_MAX) -> None:
        self._pages: OrderedDict[tuple[int, int], _Page] = OrderedDict()
        self._pages_max = pages_max

    def clear(self) -> None:
        """Nothing is known any more, but what comes from here on."""
        self._pages.clear()

    def put_image(self, relfilenode: int, block: int, image: PageImage) -> None:
        """The page as it is after the record."""
        page = self._page(relfilenode, block)
        page.image, page.restored = image, None
        page.tuples.clear()

    def put(self, relfilenode: int, block: int, offset: int, stored: bytes) -> None:
        self._page(relfilenode, block).tuples[offset] = stored

    def get(self, relfilenode: int, block: int, offset: int) -> bytes | None:
        """None if it was not seen. Raises DatumError if the image is damaged."""
        page = self._pages.get((relfilenode, block))
        if page is None:
            return None
        if offset in page.tuples or page.image is None:
            return page.tuples.get(offset)
        if page.restored is None:
            page.restored = restore_page(page.image)
        return tuple_on_page(page.restored, offset)

    def _page(self, relfilenode: int, block: int) -> _Page:
        name = relfilenode, block
        page = self._pages.pop(name, None) or _Page()
        self._pages[name] = page
        if len(self._pages) > self._pages_max:
            self._pages.popitem(last=False)
        return page
