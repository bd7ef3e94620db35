"""`HeapPages`: the tuples of pages that the WAL has shown. It is needed with wal_level replica,
where an update has only the difference from the old row, and a delete only the row's position.

    page image  -->  all tuples of the page       insert, update  -->  one tuple of the page

With full_page_writes, the first change of a page after a checkpoint's redo point has its image. So
a reader that starts at a redo point knows every page that changes. Pruning does not move a tuple to
another line pointer, so the tuple of a line pointer stays until another one is put there. After
lost WAL any page may have changed, so all pages are forgotten there.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from quorum_wal.pgwal.block_ref import PageImage
from quorum_wal.spark.changes.heap_page import restore_page, tuple_on_page

#: pages of 8 KiB; the least recently changed ones are forgotten
PAGES_MAX = 1 << 15


@dataclass(slots=True)
class _Page:
    image: PageImage | None = None
    restored: bytes | None = None
    #: by line pointer; newer than the image
    tuples: dict[int, bytes] = field(default_factory=dict)


class HeapPages:
    """Pages are identified by relfilenode and block."""

    def __init__(self, pages_max: int = PAGES_MAX) -> None:
        self._pages: OrderedDict[tuple[int, int], _Page] = OrderedDict()
        self._pages_max = pages_max

    def clear(self) -> None:
        """Forgets all pages."""
        self._pages.clear()

    def put_image(self, relfilenode: int, block: int, image: PageImage) -> None:
        """Stores the page as it is after the record."""
        page = self._page(relfilenode, block)
        page.image, page.restored = image, None
        page.tuples.clear()

    def put(self, relfilenode: int, block: int, offset: int, stored: bytes) -> None:
        self._page(relfilenode, block).tuples[offset] = stored

    def get(self, relfilenode: int, block: int, offset: int) -> bytes | None:
        """None if the tuple has not been seen. Raises DatumError if the image is damaged."""
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
