"""`RangeCache`: a cache of aligned blocks of objects.

Frames of a layer are small, and one frame may contain pages of many forks. A reader of all forks
reads neighbouring frames, and the same frame repeatedly. With the cache each block costs one
request. Memory is limited by BLOCKS_KEPT.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock

BLOCK_BYTES = 1 << 20
BLOCKS_KEPT = 64

#: (key, begin, length) -> bytes; fewer at the end of the object
GetRange = Callable[[str, int, int], bytes]


class RangeCache:
    """Thread-safe. Raises the exceptions of `get_range`."""

    def __init__(self, get_range: GetRange) -> None:
        self._get_range = get_range
        self._kept: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._lock = Lock()

    def read(self, key: str, begin: int, length: int) -> bytes:
        """As get_range() of an object store."""
        pieces = []
        end = begin + length
        while begin < end:
            number, offset = divmod(begin, BLOCK_BYTES)
            piece = self._block(key, number)[offset : offset + end - begin]
            if not piece:
                break
            pieces.append(piece)
            begin += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _block(self, key: str, number: int) -> bytes:
        with self._lock:
            block = self._kept.get((key, number))
            if block is not None:
                self._kept.move_to_end((key, number))
                return block
        block = self._get_range(key, number * BLOCK_BYTES, BLOCK_BYTES)
        with self._lock:
            self._kept[key, number] = block
            if len(self._kept) > BLOCKS_KEPT:
                self._kept.popitem(last=False)
        return block
