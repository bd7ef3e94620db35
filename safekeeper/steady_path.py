"""The steady path of a connection: Appends and nothing else, without a message or action object.

    | tag generation term uuid | begin end record_end commit truncate | WAL to the end |
      `_head`: one comparison    five u64                               written as it came

Between two commits the process sleeps, and what it runs next is cold; so what counts is how little
runs between a wake-up and the answer. `SteadyPath.take` does what `Acceptor.step` orders for an
Append each and their BatchEnded, and no more: one write, one fdatasync, one answer.

Laws. The acceptor says when there is a steady state, and takes the outcome itself; every other
event of the timeline ends it. What is not just the next bytes of the log, into the open segment,
returns None with nothing changed: the general path takes the same payloads. The answer is made
after the flush.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from consensus.codec import APPEND, APPEND_HEAD, APPEND_POSITIONS
from safekeeper.acceptor import Acceptor
from safekeeper.wal_store import WalStore

_HEAD_BYTES, _WAL_AT = APPEND_HEAD.size, APPEND.size
_unpack_positions = APPEND_POSITIONS.unpack_from


class SteadyPath:
    """Of the connection that streams now; thrown away at the first event that is no such batch."""

    @classmethod
    def of(
        cls, acceptor: Acceptor | None, store: WalStore, flush: Callable[[], None]
    ) -> SteadyPath | None:
        head = acceptor.steady_head() if acceptor is not None else None
        return cls(acceptor, head, store, flush) if acceptor is not None and head else None

    def __init__(
        self, acceptor: Acceptor, head: bytes, store: WalStore, flush: Callable[[], None]
    ) -> None:
        self.connection = acceptor.streaming
        self._acceptor = acceptor
        self._store = store
        self._flush = flush
        self._head = head

    def take(self, payloads: Sequence[memoryview]) -> bytes | None:
        """The answer to all of them, once they are flushed; None: nothing was done. Raises
        StorageError, and then the acceptor is not ahead of the disk, but the disk's state is
        unknown."""
        acceptor, head = self._acceptor, self._head
        begin_lsn = end_lsn = acceptor.written_lsn
        record_end_lsn = commit_lsn = truncate_lsn = 0
        parts: list[memoryview] = []
        for payload in payloads:
            if payload[:_HEAD_BYTES] != head or len(payload) < _WAL_AT:
                return None
            next_lsn, following_lsn, boundary_lsn, sent_commit_lsn, sent_truncate_lsn = (
                _unpack_positions(payload, _HEAD_BYTES)
            )
            size = len(payload) - _WAL_AT
            if next_lsn != end_lsn or following_lsn - next_lsn != size:
                return None
            if boundary_lsn > following_lsn:
                return None
            end_lsn = following_lsn
            record_end_lsn = max(record_end_lsn, boundary_lsn)
            commit_lsn = max(commit_lsn, sent_commit_lsn)
            truncate_lsn = max(truncate_lsn, sent_truncate_lsn)
            if size:
                parts.append(payload[_WAL_AT:])
        if parts:
            if not self._store.has_room(end_lsn):
                return None
            self._store.write_open(begin_lsn, end_lsn, parts)
            self._flush()
        return acceptor.take_steady(end_lsn, record_end_lsn, commit_lsn, truncate_lsn)
