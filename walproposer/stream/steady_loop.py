"""Brings a `SteadyLeader`'s bytes from socket to socket, and commits to the primary.

    epoll -> recv -> take_wal -> a send to each follower
                     take_answers -> status 'r' to the primary -> clients' COMMITs return

On the path of every commit, so a wake-up costs a receive, what the leader does, and the sends. The
loop ends for whatever it does not know: another file is ready, a tick is due, something is odd, a
socket takes no more. What came by then is in the connections' buffers or the kernel's.

The same source runs interpreted, or compiled as `steady_loop_compiled`; see `steady_leader.py`.
"""

from __future__ import annotations

import select
from array import array
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeGuard

from pgwire.framing import COPY_DATA, pack_header
from pgwire.replication import POSTGRES_EPOCH_UNIX_S, StandbyStatus
from walproposer.stream.plain_copy import PlainCopy

try:
    import cython
except ImportError:
    from storage import uncompiled as cython

if TYPE_CHECKING:
    from walproposer.stream.copy_connection import CopyConnection
    from walproposer.stream.steady_leader import SteadyLeader

if cython.compiled:
    from cython.cimports.pgwire.copy_calls import (
        READABLE,
        monotonic,
        receive_some,
        send_some,
        time_us,
        wait_ready,
    )
    from cython.cimports.storage.big_endian import put_u64
else:
    from time import monotonic

    from pgwire.copy_calls import READABLE, receive_some, send_some, time_us, wait_ready
    from storage.big_endian import put_u64

#: In the frame of a status for the primary: three positions, and the time.
STATUS_LSNS_AT = 6
STATUS_TIME_AT = STATUS_LSNS_AT + 24
EPOCH_US = POSTGRES_EPOCH_UNIX_S * 1_000_000
READY_MAX = 64
#: What `run` answers where it is no peer's number.
NO_ONE, UPSTREAM = -2, -1


class SteadyLoop:
    """Brings a SteadyLeader's bytes from socket to socket, on the epoll that all are watched by."""

    @classmethod
    def of(
        cls,
        leader: SteadyLeader,
        epoll: select.epoll,
        upstream: CopyConnection,
        peers: Mapping[int, CopyConnection],
    ) -> SteadyLoop | None:
        """None where one of the connections is encrypted, has ended or has bytes left to send."""
        followers: list[PlainCopy | None] = []
        for peer, follows in enumerate(leader.follows):
            copy = peers.get(peer) if follows else None
            if follows and not _is_ready(copy):
                return None
            followers.append(copy if _is_ready(copy) else None)
        return cls(leader, epoll, upstream, followers) if _is_ready(upstream) else None

    def __init__(
        self,
        leader: SteadyLeader,
        epoll: select.epoll,
        upstream: PlainCopy,
        peers: Sequence[PlainCopy | None],
    ) -> None:
        """`peers`: by number; None for one that does not follow."""
        self.leader = leader
        self.reported_lsn = leader.commit_lsn
        #: Whether the primary said anything.
        self.has_heard = False
        self._epoll = epoll.fileno() if cython.compiled else epoll
        self._fds = memoryview(array("i", [0] * READY_MAX))
        self._masks = memoryview(array("I", [0] * READY_MAX))
        self._copies = [*peers, upstream]
        self._upstream = len(peers)
        fds = [copy.fileno() if copy is not None else -1 for copy in self._copies]
        self._copy_fds = memoryview(array("i", fds))
        self._begins = memoryview(array("l", [0] * len(fds)))
        self._ends = memoryview(array("l", [0] * len(fds)))
        self._views: list[memoryview | None] = []
        for index, copy in enumerate(self._copies):
            self._views.append(None)
            if copy is not None:
                self._views[index], self._begins[index], self._ends[index] = copy.frames.lend()
        status = StandbyStatus(0, 0, 0, 0).encode()
        self._status = memoryview(bytearray(pack_header(COPY_DATA, len(status)) + status))

    def run(self, deadline: float) -> int:
        """Until that moment of the monotonic clock, until something is odd, or until another file
        than these is ready: in whose buffer the odd thing is, a peer or UPSTREAM; NO_ONE."""
        try:
            while True:
                seconds = deadline - monotonic()
                if seconds <= 0:
                    return NO_ONE
                count = wait_ready(self._epoll, self._fds, self._masks, seconds)
                for ready in range(count):
                    index = self._index_of(self._fds[ready])
                    if index < 0 or self._masks[ready] != READABLE:
                        return NO_ONE
                    if not self._take(index):
                        return index if index != self._upstream else UPSTREAM
        finally:
            for index, copy in enumerate(self._copies):
                if copy is not None:
                    copy.frames.give_back(self._begins[index], self._ends[index])

    def _index_of(self, fd: int) -> int:
        for index in range(len(self._copy_fds)):
            if self._copy_fds[index] == fd:
                return index
        return -1

    def _take(self, index: int) -> bool:
        """False when what came is odd, or did not come; it is in the buffer."""
        view, begin, end = self._views[index], self._begins[index], self._ends[index]
        assert view is not None
        if begin == end:
            begin = end = 0
        elif end == len(view):
            view[: end - begin] = view[begin:end]
            begin, end = 0, end - begin
        memory = view
        count = receive_some(self._copy_fds[index], memory, end)
        end += max(count, 0)
        self._begins[index], self._ends[index] = begin, end
        if count <= 0:
            return False
        leader = self.leader
        if index == self._upstream:
            self.has_heard = True
            at = leader.take_wal(view, begin, end)
            if at > begin:
                self._begins[index] = at
                return self._send_append()
        else:
            at = leader.take_answers(index, view, begin, end)
            if at > begin:
                self._begins[index] = at
                return leader.commit_lsn == self.reported_lsn or self._report()
        return at == begin

    def _send_append(self) -> bool:
        """To all who follow. False when a socket did not take it whole: the rest waits in its
        connection, or it has failed."""
        leader, is_sent = self.leader, True
        for peer in range(len(leader.follows)):
            if leader.follows[peer]:
                count = send_some(self._copy_fds[peer], leader.frame, leader.frame_bytes)
                if count != leader.frame_bytes:
                    self._send_rest(peer, leader.frame[max(count, 0) : leader.frame_bytes])
                    is_sent = False
        return is_sent

    def _report(self) -> bool:
        """Commits up to `commit_lsn` return."""
        lsn, status = self.leader.commit_lsn, self._status
        put_u64(status, STATUS_LSNS_AT, lsn)
        put_u64(status, STATUS_LSNS_AT + 8, lsn)
        put_u64(status, STATUS_LSNS_AT + 16, lsn)
        put_u64(status, STATUS_TIME_AT, time_us() - EPOCH_US)
        self.reported_lsn = lsn
        count = send_some(self._copy_fds[self._upstream], status, len(status))
        if count != len(status):
            self._send_rest(self._upstream, status[max(count, 0) :])
            return False
        return True

    def _send_rest(self, index: int, rest: memoryview) -> None:
        copy = self._copies[index]
        assert copy is not None
        copy.send_rest(rest)


def _is_ready(copy: CopyConnection | None) -> TypeGuard[PlainCopy]:
    return isinstance(copy, PlainCopy) and copy.end is None and not copy.wants_write
