"""The steady state of a leader: WAL out to the followers, their answers back. Pure.

    primary  | 'd' length | 'w' start end time | WAL ...  ->  'd' length | Append | WAL ...
    members  | 'd' length | 'A' head | flush durable commit | tail |

It works on the bytes of the wire, in the buffers where they arrived. It does what `Leader` does for
WAL that ends inside a page, for followers that have been sent everything, and for their answers. It
does nothing else: it makes no event, message or action objects and reads no clock. The leader gets
the result at the end of the steady state (`Leader.take_steady`).

Laws. Any other input, even one unexpected byte, is left in place with nothing changed, and ends the
steady state: the general path handles the same bytes. Positions count as they do there: a commit is
the quorum-th greatest flush_lsn, none below the term's start.

The same source runs interpreted, or compiled as `steady_leader_compiled` if there was a C compiler
at the installation. The .pxd file of that name has its C types.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from quorum_wal.consensus.codec import (
    APPEND,
    APPEND_HEAD,
    APPEND_POSITIONS,
    APPEND_RESPONSE,
    RESPONSE_POSITIONS,
    RESPONSE_POSITIONS_AT,
    append_head,
    encode_append_response,
)
from quorum_wal.consensus.messages import AppendResponse
from quorum_wal.consensus.quorum import quorum_size
from quorum_wal.pgwal.page import WAL_PAGE_SIZE
from quorum_wal.pgwire.framing import COPY_DATA, pack_header
from quorum_wal.pgwire.replication import XLOG_DATA_HEADER_BYTES
from quorum_wal.walproposer.stream.progress import IN_FLIGHT_BYTES_MAX, PeerState, Progress
from quorum_wal.walproposer.stream.wal_window import APPEND_BYTES_MAX, KEEP_BYTES

try:
    import cython
except ImportError:
    from quorum_wal.storage import uncompiled as cython

if TYPE_CHECKING:
    from quorum_wal.walproposer.stream.leader import Leader

if cython.compiled:
    from cython.cimports.quorum_wal.consensus.append_calls import (
        answer_positions_at,
        put_append_positions,
    )
    from cython.cimports.quorum_wal.storage.big_endian import (
        bytes_at,
        copy_bytes,
        is_at,
        is_same,
        put_u32,
        u32_at,
        u64_at,
    )
else:
    from quorum_wal.storage.big_endian import (
        bytes_at,
        copy_bytes,
        is_at,
        is_same,
        put_u32,
        u32_at,
        u64_at,
    )

    answer_positions_at = RESPONSE_POSITIONS.unpack_from
    put_append_positions = APPEND_POSITIONS.pack_into

XLOG_DATA = ord("w")
HEADER_BYTES = 5
#: Offsets in the frame of a primary's message.
START_AT, END_AT = HEADER_BYTES + 1, HEADER_BYTES + 9
DATA_AT = HEADER_BYTES + XLOG_DATA_HEADER_BYTES
#: Offsets in the frame of an Append.
POSITIONS_AT, WAL_AT = HEADER_BYTES + APPEND_HEAD.size, HEADER_BYTES + APPEND.size
#: Offsets in the frame of an answer, whose length is fixed.
ANSWER_BYTES = HEADER_BYTES + APPEND_RESPONSE.size
ANSWER_AT = HEADER_BYTES + RESPONSE_POSITIONS_AT
TAIL_AT = ANSWER_AT + RESPONSE_POSITIONS.size
TAIL_BYTES = ANSWER_BYTES - TAIL_AT
#: Other input has arrived, or the input needs the general path.
ODD = -1
#: Values of `follows`: the peer is sent the log, or only its end (daisy chain).
DIRECTLY, CHAINED = 1, 2


class SteadyLeader:
    """The steady state of a leader, until the first other input. Peers have the proposer's
    numbers."""

    @classmethod
    def of(cls, leader: Leader | None) -> SteadyLeader | None:
        """For a leader that streams from its primary; None if there is no steady state. The next
        event must report what it takes (SteadyEnded). There is no steady state while the members
        change, or a round is open."""
        if leader is None or leader.window.exceeds_limits:
            return None
        if leader.membership.is_joint or leader.members.is_changing or leader.rounds.is_open:
            return None
        for p in leader.peers:
            is_new = p.state is PeerState.STREAMING and not p.answered
            if is_new or p.state is PeerState.CATCHING_UP:
                return None
        return cls(leader)

    def __init__(self, leader: Leader) -> None:
        term, window, generation = leader.term, leader.window, leader.membership.generation
        answer = AppendResponse(generation, term.node_id, 0, 0, 0, 0)
        self.next_lsn = window.end_lsn
        self.record_end_lsn = window.record_end_lsn
        self.window_end_lsn_max = window.begin_lsn + KEEP_BYTES
        self.commit_lsn = leader.commit_lsn
        self.sent_commit_lsn = leader.commit_lsn
        self.truncate_lsn = leader.truncate_lsn
        self.term_start_lsn = term.term_start_lsn
        #: The end of the primary's WAL, as it reports it.
        self.primary_end_lsn = 0
        self.quorum_size = quorum_size(len(leader.membership.members))
        peers = leader.peers
        #: The peers that have been sent everything. Input of others is for the general path.
        follows = [_how_follows(p, window.end_lsn) for p in peers]
        self.follows = memoryview(array("B", follows))
        self.has_chained = CHAINED in follows
        self.has_answered = memoryview(array("B", bytes(len(peers))))
        #: The counts of `Progress`, for rounds; `append_count` is of this steady state.
        self.append_count = 0
        self.sent_counts = memoryview(array("Q", [p.sent_count for p in peers]))
        self.taken_counts = memoryview(array("Q", [p.taken_count for p in peers]))
        self.wal_counts = memoryview(array("Q", [p.wal_count for p in peers]))
        #: The peers that have flushed everything, when there was no more.
        self.has_caught_up = memoryview(array("B", bytes(len(peers))))
        #: Only members count (C1).
        self.flush_lsns = memoryview(array("Q", [p.flush_lsn if p.is_member else 0 for p in peers]))
        self.durable_lsns = memoryview(array("Q", [p.durable_lsn for p in peers]))
        self.commit_lsns = memoryview(array("Q", [p.commit_lsn for p in peers]))
        #: The WAL that was taken, for the window.
        self.wal: list[bytes] = []
        head = append_head(generation, term.node_id)
        #: The last Append: its frame is the first `frame_bytes`.
        frame = memoryview(bytearray(WAL_AT + APPEND_BYTES_MAX))
        frame[:POSITIONS_AT] = pack_header(COPY_DATA, 0) + head
        self.frame = frame
        self.frame_bytes = 0
        #: The message for chained peers: an Append at its end, without WAL.
        end_frame = memoryview(bytearray(WAL_AT))
        end_frame[:POSITIONS_AT] = pack_header(COPY_DATA, APPEND.size) + head
        self.end_frame = end_frame
        self._answer_head = (
            pack_header(COPY_DATA, APPEND_RESPONSE.size)
            + (encode_append_response(answer)[:RESPONSE_POSITIONS_AT])
        )
        #: The tails of all peers, one after the other.
        self._answer_tails = b"".join(
            encode_append_response(AppendResponse(0, term.node_id, 0, 0, 0, 0, peer.feedback))[
                TAIL_AT - HEADER_BYTES :
            ]
            for peer in peers
        )

    def take_wal(self, memory: memoryview, begin: int, end: int) -> int:
        """Make one Append of all complete frames of memory[begin:end], the primary's next WAL.
        Returns where they end, or ODD if nothing was done."""
        frame = self.frame
        at, lsn, size = begin, self.next_lsn, 0
        primary_end_lsn = self.primary_end_lsn
        while at < end:
            if memory[at] != COPY_DATA:
                return ODD
            if end - at < DATA_AT:
                if end - at >= HEADER_BYTES and u32_at(memory, at + 1) < DATA_AT - 1:
                    return ODD
                break
            length = u32_at(memory, at + 1)
            count = length - (DATA_AT - 1)
            if length < DATA_AT - 1 or count > APPEND_BYTES_MAX - size:
                return ODD
            if memory[at + HEADER_BYTES] != XLOG_DATA or u64_at(memory, at + START_AT) != lsn:
                return ODD
            if at + 1 + length > end:
                break
            primary_end_lsn = max(primary_end_lsn, u64_at(memory, at + END_AT))
            copy_bytes(frame, WAL_AT + size, memory, at + DATA_AT, count)
            lsn += count
            size += count
            at += 1 + length
        if size == 0:
            return begin if at == begin else ODD
        # WAL that ends inside a page ends with a record (`pgwal/boundary.py`); at a page's end it
        # may not.
        if lsn % WAL_PAGE_SIZE == 0 or size % 8 or lsn > self.window_end_lsn_max:
            return ODD
        for peer in range(len(self.follows)):
            full_lsn = self.durable_lsns[peer] + IN_FLIGHT_BYTES_MAX
            if self.follows[peer] == DIRECTLY and self.next_lsn >= full_lsn:
                return ODD
        put_u32(frame, 1, WAL_AT - 1 + size)
        put_append_positions(
            frame, POSITIONS_AT, self.next_lsn, lsn, lsn, self.commit_lsn, self.truncate_lsn
        )
        if self.has_chained:
            put_append_positions(
                self.end_frame, POSITIONS_AT, lsn, lsn, lsn, self.commit_lsn, self.truncate_lsn
            )
        self.frame_bytes = WAL_AT + size
        self.wal.append(bytes_at(frame, WAL_AT, size))
        self.append_count += 1
        self.sent_commit_lsn = self.commit_lsn
        self.next_lsn = self.record_end_lsn = lsn
        self.primary_end_lsn = primary_end_lsn
        return at

    def take_answers(self, peer: int, memory: memoryview, begin: int, end: int) -> int:
        """Take all complete frames of memory[begin:end], a follower's answers. Returns where they
        end, or ODD if nothing was done. Afterwards `commit_lsn` is what a quorum has."""
        at, flush_lsn = begin, self.flush_lsns[peer]
        durable_lsn, commit_lsn = self.durable_lsns[peer], self.commit_lsns[peer]
        taken_count, wal_count = self.taken_counts[peer], self.wal_counts[peer]
        if self.append_count:
            wal_count = self.sent_counts[peer] + self.append_count
        while at < end:
            if memory[at] != COPY_DATA:
                return ODD
            if end - at < ANSWER_BYTES:
                if end - at >= HEADER_BYTES and u32_at(memory, at + 1) != ANSWER_BYTES - 1:
                    return ODD
                break
            if not is_at(memory, at, self._answer_head):
                return ODD
            tails = self._answer_tails
            if not is_same(memory, at + TAIL_AT, tails, peer * TAIL_BYTES, TAIL_BYTES):
                return ODD
            flushed_lsn, written_lsn, told_lsn = answer_positions_at(memory, at + ANSWER_AT)
            flush_lsn = max(flush_lsn, flushed_lsn)
            durable_lsn = max(durable_lsn, written_lsn)
            commit_lsn = max(commit_lsn, told_lsn)
            taken_count += 1
            if written_lsn >= self.next_lsn:
                taken_count = max(taken_count, wal_count)
            at += ANSWER_BYTES
        if at == begin:
            return at
        is_news = flush_lsn > self.flush_lsns[peer] or durable_lsn > self.durable_lsns[peer]
        self.has_answered[peer] = 1
        self.flush_lsns[peer], self.durable_lsns[peer] = flush_lsn, durable_lsn
        self.commit_lsns[peer] = commit_lsn
        if self.follows[peer] == DIRECTLY:
            self.taken_counts[peer] = taken_count
        if is_news and flush_lsn >= self.record_end_lsn:
            self.has_caught_up[peer] = 1
        if is_news and flush_lsn > self.commit_lsn:
            self._advance_commit()
        return at

    def _advance_commit(self) -> None:
        """Rule 5: the greatest position that a quorum has reached, none below the term's start."""
        for candidate in range(len(self.flush_lsns)):
            lsn = self.flush_lsns[candidate]
            if lsn <= self.commit_lsn or lsn < self.term_start_lsn:
                continue
            count = 0
            for peer in range(len(self.flush_lsns)):
                count += self.flush_lsns[peer] >= lsn
            if count >= self.quorum_size:
                self.commit_lsn = lsn


def _how_follows(progress: Progress, end_lsn: int) -> int:
    if not progress.is_whole(end_lsn):
        return 0
    return CHAINED if progress.state is PeerState.CHAINED else DIRECTLY
