"""The WAL that the proposer holds in memory for streaming safekeepers. Bounded.

    begin_lsn                                                   end_lsn
       |chunk|  chunk  |chunk|      chunk      | ... |   chunk   |
                   ^ next_lsn of a slow peer           ^ next_lsn of the others

Pure. It may drop only what a quorum holds durably. A peer that falls out at the front catches up
from a donor (law 7 of the proposer), never by a longer window.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from msgspec import Struct

from quorum_wal.pgwal.page import WAL_PAGE_SIZE

# Available to a reconnecting or slow peer without a donor. One segment of WAL.
KEEP_BYTES = 16 * 1024 * 1024
# Small commits make small chunks. This bounds their number, and with it the memory of the objects.
KEEP_CHUNKS = 8192
# Above this the primary is not read: the quorum has not yet written this much.
WINDOW_BYTES_MAX = 32 * 1024 * 1024
# The greatest amount of WAL in one Append; Postgres sends the same (walsender.c, MAX_SEND_SIZE).
APPEND_BYTES_MAX = 128 * 1024


class Chunk(Struct, frozen=True, gc=False):
    """[begin_lsn, end_lsn) and the last record boundary known when it arrived."""

    begin_lsn: int
    end_lsn: int
    record_end_lsn: int
    wal: bytes


class WalWindow:
    """Chunks in LSN order without gaps. Invariant: begin_lsn <= every chunk <= end_lsn."""

    def __init__(self, begin_lsn: int) -> None:
        self.begin_lsn = begin_lsn
        self.end_lsn = begin_lsn
        self.record_end_lsn = begin_lsn
        self._chunks: list[Chunk] = []
        self._begins: list[int] = []

    @property
    def size_bytes(self) -> int:
        return self.end_lsn - self.begin_lsn

    @property
    def is_full(self) -> bool:
        return self.end_lsn - self.begin_lsn >= WINDOW_BYTES_MAX

    @property
    def exceeds_limits(self) -> bool:
        """`trim` is due."""
        return self.end_lsn - self.begin_lsn > KEEP_BYTES or len(self._chunks) > KEEP_CHUNKS

    def append(self, wal: bytes, record_end_lsn: int) -> None:
        """Add WAL that follows end_lsn and fits one Append. `record_end_lsn` is the last boundary
        in or before it."""
        assert len(wal) <= APPEND_BYTES_MAX
        chunk = Chunk(self.end_lsn, self.end_lsn + len(wal), record_end_lsn, wal)
        assert self.record_end_lsn <= record_end_lsn <= chunk.end_lsn
        self._chunks.append(chunk)
        self._begins.append(chunk.begin_lsn)
        self.end_lsn = chunk.end_lsn
        self.record_end_lsn = record_end_lsn

    def read(self, lsn: int) -> Chunk:
        """The next WAL for a peer at `lsn`, begin_lsn <= lsn < end_lsn.

        This is the rest of its chunk, joined with the following ones while they fit in one Append.
        """
        assert self.begin_lsn <= lsn < self.end_lsn
        index = bisect_right(self._begins, lsn) - 1
        chunk = self._chunks[index]
        if lsn == chunk.begin_lsn and chunk.end_lsn == self.end_lsn:
            return chunk  # the hot path: the peer waits for exactly this one
        parts: list[bytes | memoryview] = [memoryview(chunk.wal)[lsn - chunk.begin_lsn :]]
        while index + 1 < len(self._chunks):
            following = self._chunks[index + 1]
            if following.end_lsn - lsn > APPEND_BYTES_MAX:
                break
            parts.append(following.wal)
            chunk = following
            index += 1
        return Chunk(lsn, chunk.end_lsn, chunk.record_end_lsn, b"".join(parts))

    def trim(self, durable_lsn: int) -> bool:
        """If a limit is exceeded, drop WAL below `durable_lsn` from the front, down to 7/8 of the
        limits. It drops many chunks at a time, so the cost per chunk is small.

        Returns True if it dropped any: peers below begin_lsn now need a donor.
        """
        if not self.exceeds_limits:
            return False
        too_old = bisect_left(self._begins, self.end_lsn - KEEP_BYTES // 8 * 7)
        too_many = len(self._chunks) - KEEP_CHUNKS // 8 * 7
        # A chunk is completely durable if the next one begins at or below durable_lsn.
        durable = bisect_right(self._begins, durable_lsn) - 1
        if durable_lsn >= self.end_lsn:
            durable = len(self._chunks)
        count = min(max(too_old, too_many), durable)
        if count <= 0:
            return False
        self.begin_lsn = self._chunks[count - 1].end_lsn
        del self._chunks[:count]
        del self._begins[:count]
        return True


def cut(begin_lsn: int, wal: bytes) -> Iterator[tuple[int, bytes]]:
    """Pieces that fit one Append each, and where they begin. Cut at a page's end, as a walsender
    does, because WAL that ends inside a page ends with a record (`pgwal/boundary.py`)."""
    first_lsn, end_lsn = begin_lsn, begin_lsn + len(wal)
    while begin_lsn < end_lsn:
        next_lsn = min(begin_lsn + APPEND_BYTES_MAX, end_lsn)
        if next_lsn < end_lsn:
            next_lsn -= next_lsn % WAL_PAGE_SIZE
        yield begin_lsn, wal[begin_lsn - first_lsn : next_lsn - first_lsn]
        begin_lsn = next_lsn


def joined(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """WAL that arrived together is sent together: join neighbours while they fit one Append."""
    together: list[bytes] = []
    size = 0
    for wal in chunks:
        if together and size + len(wal) > APPEND_BYTES_MAX:
            yield b"".join(together)
            together, size = [], 0
        together.append(wal)
        size += len(wal)
    if together:
        yield b"".join(together)
