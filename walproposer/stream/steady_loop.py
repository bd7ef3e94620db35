"""Moves the bytes of a `SteadyLeader` between sockets, and reports commits to the primary.

    epoll -> recv -> take_wal -> a send to each follower
                     take_answers -> status 'r' to the primary -> clients' COMMITs return

Every commit takes this path, so a wake-up costs one receive, the work of the leader, and the sends.
The loop ends on anything else: another file is ready, a tick is due, other input arrives, or a
socket is full. Input up to then is in the buffers of the connections or of the kernel.

The same source runs interpreted, or compiled as `steady_loop_compiled`; see `steady_leader.py`.
"""

from __future__ import annotations

import select
from array import array
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeGuard

from quorum_wal.pgwire.framing import COPY_DATA, pack_header
from quorum_wal.pgwire.replication import POSTGRES_EPOCH_UNIX_S, StandbyStatus
from quorum_wal.walproposer.stream.commit_signal import COMMIT, WAKE, CommitSignal
from quorum_wal.walproposer.stream.plain_copy import PlainCopy
from quorum_wal.walproposer.stream.steady_leader import CHAINED, WAL_AT

try:
    import cython
except ImportError:
    from quorum_wal.storage import uncompiled as cython

if TYPE_CHECKING:
    from quorum_wal.walproposer.stream.copy_connection import CopyConnection
    from quorum_wal.walproposer.stream.steady_leader import SteadyLeader

if cython.compiled:
    from cython.cimports.quorum_wal.pgwire.copy_calls import (
        READABLE,
        monotonic,
        receive_some,
        send_some,
        time_us,
        wait_ready,
    )
    from cython.cimports.quorum_wal.storage.big_endian import put_u64
else:
    from time import monotonic

    from quorum_wal.pgwire.copy_calls import READABLE, receive_some, send_some, time_us, wait_ready
    from quorum_wal.storage.big_endian import put_u64

#: Offsets in the frame of a status for the primary: three positions, and the time.
STATUS_LSNS_AT = 6
STATUS_TIME_AT = STATUS_LSNS_AT + 24
EPOCH_US = POSTGRES_EPOCH_UNIX_S * 1_000_000
READY_MAX = 64
#: Results of `run` that are not the number of a peer.
NO_INPUT, UPSTREAM = -2, -1


class Lane:
    """One connection of a SteadyLoop: its file, and its input, memory[begin:end].

    `memory` is the same as `view`, with a C type.
    """

    def __init__(self, copy: PlainCopy) -> None:
        self.copy = copy
        self.fd = copy.fileno()
        self.view, self.begin, self.end = copy.frames.lend()
        self.memory = self.view

    def receive(self) -> int:
        """Read more input. Returns the number of bytes."""
        if self.begin == self.end:
            self.begin = self.end = 0
        elif self.end == len(self.memory):
            self.view[: self.end - self.begin] = self.view[self.begin : self.end]
            self.begin, self.end = 0, self.end - self.begin
        count: int = receive_some(self.fd, self.memory, self.end)
        self.end += max(count, 0)
        return count

    def send(self, frame: memoryview, frame_bytes: int) -> bool:
        """Send the first `frame_bytes` of `frame`. Returns False if the socket did not accept all
        of them: the connection queues the rest, or it has failed."""
        count = send_some(self.fd, frame, frame_bytes)
        if count == frame_bytes:
            return True
        self.copy.send_rest(frame[max(count, 0) : frame_bytes])
        return False

    def give_back(self) -> None:
        self.copy.frames.give_back(self.begin, self.end)


class SteadyLoop:
    """Moves a SteadyLeader's bytes between sockets, on the epoll that watches all of them."""

    @classmethod
    def of(
        cls,
        leader: SteadyLeader,
        epoll: select.epoll,
        upstream: CopyConnection,
        peers: Mapping[int, CopyConnection],
        signal: CommitSignal,
    ) -> SteadyLoop | None:
        """None if one of the connections is encrypted, has ended or has queued output."""
        followers: list[PlainCopy | None] = []
        for peer, follows in enumerate(leader.follows):
            copy = peers.get(peer) if follows else None
            if follows and not _is_ready(copy):
                return None
            followers.append(copy if _is_ready(copy) else None)
        return cls(leader, epoll, upstream, followers, signal) if _is_ready(upstream) else None

    def __init__(
        self,
        leader: SteadyLeader,
        epoll: select.epoll,
        upstream: PlainCopy,
        peers: Sequence[PlainCopy | None],
        signal: CommitSignal,
    ) -> None:
        """`peers`: by number; None for one that does not follow."""
        self.leader = leader
        self.reported_lsn = leader.commit_lsn
        #: Whether the primary sent anything.
        self.has_heard = False
        self._epoll = epoll.fileno() if cython.compiled else epoll
        self._fds = memoryview(array("i", [0] * READY_MAX))
        self._masks = memoryview(array("I", [0] * READY_MAX))
        #: Those of the peers, by number, then that of the primary; None for a peer that does not
        #: follow.
        self._lanes = [Lane(copy) if copy is not None else None for copy in (*peers, upstream)]
        self._upstream = len(peers)
        status = StandbyStatus(0, 0, 0, 0).encode()
        self._status = memoryview(bytearray(pack_header(COPY_DATA, len(status)) + status))
        self._signal, self._words = signal, signal.words

    def run(self, deadline: float) -> int:
        """Run until `deadline`, a time of the monotonic clock, until other input arrives, or until
        another file is ready. Returns the peer, or UPSTREAM, whose buffer has the other input; or
        NO_INPUT."""
        try:
            while True:
                seconds = deadline - monotonic()
                if seconds <= 0:
                    return NO_INPUT
                count = wait_ready(self._epoll, self._fds, self._masks, seconds)
                for ready in range(count):
                    index = self._index_of(self._fds[ready])
                    if index < 0 or self._masks[ready] != READABLE:
                        return NO_INPUT
                    if not self._take(index):
                        return index if index != self._upstream else UPSTREAM
        finally:
            for lane in self._lanes:
                if lane is not None:
                    lane.give_back()

    def _index_of(self, fd: int) -> int:
        for index in range(len(self._lanes)):
            lane = self._lanes[index]
            if lane is not None and lane.fd == fd:
                return index
        return -1

    def _take(self, index: int) -> bool:
        """Returns False if the input is for the general path, or did not arrive. It stays in the
        buffer."""
        lane, leader = self._lanes[index], self.leader
        assert lane is not None
        if lane.receive() <= 0:
            return False
        if index == self._upstream:
            self.has_heard = True
            at = leader.take_wal(lane.memory, lane.begin, lane.end)
        else:
            at = leader.take_answers(index, lane.memory, lane.begin, lane.end)
        if at <= lane.begin:
            return at == lane.begin
        lane.begin = at
        if index == self._upstream:
            return self._send_append()
        return leader.commit_lsn == self.reported_lsn or self._report()

    def _send_append(self) -> bool:
        """Send the Append to all followers, or its end to chained ones. Returns False if a socket
        did not accept all of it."""
        leader, is_sent = self.leader, True
        for peer in range(self._upstream):
            lane = self._lanes[peer]
            if lane is None:
                continue
            if leader.follows[peer] == CHAINED:
                is_sent = lane.send(leader.end_frame, WAL_AT) and is_sent
            else:
                is_sent = lane.send(leader.frame, leader.frame_bytes) and is_sent
        return is_sent

    def _report(self) -> bool:
        """Commits up to `commit_lsn` return."""
        lsn, status = self.leader.commit_lsn, self._status
        put_u64(status, STATUS_LSNS_AT, lsn)
        put_u64(status, STATUS_LSNS_AT + 8, lsn)
        put_u64(status, STATUS_LSNS_AT + 16, lsn)
        put_u64(status, STATUS_TIME_AT, time_us() - EPOCH_US)
        self.reported_lsn = lsn
        upstream = self._lanes[self._upstream]
        assert upstream is not None
        is_sent = upstream.send(status, len(status))
        self._words[COMMIT] = lsn
        if lsn >= self._words[WAKE]:
            self._signal.pass_on()
        return is_sent


def _is_ready(copy: CopyConnection | None) -> TypeGuard[PlainCopy]:
    return isinstance(copy, PlainCopy) and copy.end is None and not copy.wants_write
