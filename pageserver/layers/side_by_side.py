"""`SideBySide`: what is kept of layers that are read together, each once from begin to end.

    layer 1   | frame | frame | FRAME | FRAME | ...        capitals: fetched ahead, at one request
    layer 2   | frame | FRAME | ...                        of each layer one frame is unpacked

Law: memory has a bound, however many layers there are. With more of them less is fetched ahead, and
in the end a frame is unpacked more than once; what is read is the same.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

from pageserver.layers.fork import PAGE_BYTES
from pageserver.layers.layer_file import FRAME_PAGES, ReadRange

K = TypeVar("K")
V = TypeVar("V")

AHEAD_BYTES_MAX = 64 << 20
#: At one request.
REQUEST_BYTES_MIN, REQUEST_BYTES_MAX = 64 << 10, 4 << 20
UNPACKED_BYTES_MAX = 128 << 20


class SideBySide:
    """Of one thread; `layers` are read at a time."""

    def __init__(self, layers: int) -> None:
        share_bytes = max(REQUEST_BYTES_MIN, AHEAD_BYTES_MAX // max(layers, 1))
        self._request_bytes = min(REQUEST_BYTES_MAX, share_bytes)
        self._ahead: OrderedDict[str, tuple[int, bytes]] = OrderedDict()
        self._ahead_max = AHEAD_BYTES_MAX // self._request_bytes
        self._unpacked: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._unpacked_max = UNPACKED_BYTES_MAX // (FRAME_PAGES * PAGE_BYTES)
        #: That were asked of the store.
        self.fetched_bytes = 0

    def ahead(self, key: str, size_bytes: int, fetch: ReadRange) -> ReadRange:
        """Of an object of that size: what comes behind is fetched along."""

        def read(offset: int, length: int) -> bytes:
            begin, content = self._ahead.get(key, (0, b""))
            if not begin <= offset <= offset + length <= begin + len(content):
                wanted = max(length, min(self._request_bytes, size_bytes - offset))
                begin, content = offset, fetch(offset, wanted)
                self.fetched_bytes += len(content)
                self._keep(self._ahead, key, (begin, content), self._ahead_max)
            return content[offset - begin : offset - begin + length]

        return read

    def unpacked(self, key: str, number: int, unpack: Callable[[], bytes]) -> bytes:
        """A frame of that object."""
        found = self._unpacked.get((key, number))
        if found is None:
            found = unpack()
        self._keep(self._unpacked, (key, number), found, self._unpacked_max)
        return found

    @staticmethod
    def _keep(kept: OrderedDict[K, V], key: K, value: V, most: int) -> None:
        kept[key] = value
        kept.move_to_end(key)
        if len(kept) > most:
            kept.popitem(last=False)
