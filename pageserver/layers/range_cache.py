"""`RangeCache`: bytes of objects in blocks, of which the last ones are kept.

Frames of a layer are small, and one may have pages of many forks. Who reads all of a cut, fork by
fork, asks for neighbours, and for the same frame again: it costs a request a block, not a frame.
Memory is bounded by BLOCKS_KEPT.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock

BLOCK_BYTES = 1 << 20
BLOCKS_KEPT = 64

#: (key, begin, length) -> bytes; fewer where the object ends
GetRange = Callable[[str, int, int], bytes]


class RangeCache:
    """Thread-safe. Raises what `get_range` raises."""

    def __init__(self, get_range: GetRange) -> None:
        self._get_range = get_range
        self._kept: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._lock = Lock()

    def read(self, key: str, begin: int, length: int) -> bytes:
        """As an object store's get_range()."""
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
