"""`ReadAhead`: buffers for layers that are read at the same time, each once from start to end.

    layer 1   | frame | frame | FRAME | FRAME | ...        capitals: read ahead in one request
    layer 2   | frame | FRAME | ...                        one frame of each layer is decompressed

Law: memory is limited for any number of layers. With more layers less is read ahead, and with very
many a frame is decompressed more than once. The result is the same.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

from quorum_wal.pageserver.layers.fork import PAGE_BYTES
from quorum_wal.pageserver.layers.layer_file import FRAME_PAGES, ReadRange

K = TypeVar("K")
V = TypeVar("V")

AHEAD_BYTES_MAX = 64 << 20
#: Size of one request.
REQUEST_BYTES_MIN, REQUEST_BYTES_MAX = 64 << 10, 4 << 20
UNPACKED_BYTES_MAX = 128 << 20


class ReadAhead:
    """For use by one thread. `layers` is the number of layers read at the same time."""

    def __init__(self, layers: int) -> None:
        share_bytes = max(REQUEST_BYTES_MIN, AHEAD_BYTES_MAX // max(layers, 1))
        self._request_bytes = min(REQUEST_BYTES_MAX, share_bytes)
        self._ahead: OrderedDict[str, tuple[int, bytes]] = OrderedDict()
        self._ahead_max = AHEAD_BYTES_MAX // self._request_bytes
        self._unpacked: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._unpacked_max = UNPACKED_BYTES_MAX // (FRAME_PAGES * PAGE_BYTES)
        #: Bytes read from the store.
        self.fetched_bytes = 0

    def ahead(self, key: str, size_bytes: int, fetch: ReadRange) -> ReadRange:
        """A read function for an object of that size, which also fetches the bytes that follow."""

        def read(offset: int, length: int) -> bytes:
            begin, content = self._ahead.get(key, (0, b""))
            if not begin <= offset <= offset + length <= begin + len(content):
                wanted = max(length, min(self._request_bytes, size_bytes - offset))
                begin, content = offset, fetch(offset, wanted)
                self.fetched_bytes += len(content)
                self._cache(self._ahead, key, (begin, content), self._ahead_max)
            return content[offset - begin : offset - begin + length]

        return read

    def unpacked(self, key: str, number: int, unpack: Callable[[], bytes]) -> bytes:
        """The decompressed frame of that object, from the cache or by calling `unpack`."""
        found = self._unpacked.get((key, number))
        if found is None:
            found = unpack()
        self._cache(self._unpacked, (key, number), found, self._unpacked_max)
        return found

    @staticmethod
    def _cache(kept: OrderedDict[K, V], key: K, value: V, most: int) -> None:
        kept[key] = value
        kept.move_to_end(key)
        if len(kept) > most:
            kept.popitem(last=False)
