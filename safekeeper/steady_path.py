"""The steady path of a connection: only Appends, from the wire to the disk and back.

    | 'd' length | tag generation term uuid | begin end record_end commit truncate | WAL ... |
      u8    u32    `_head`: one comparison    five u64                               as it came

Between two commits the process sleeps, and what it runs next is cold; so what counts is how little

Between two commits the process sleeps, so the caches are cold for the code that runs next. Latency
depends on how little code runs between the wake-up and the answer. `step` does exactly what
`Acceptor.step` orders for a batch of Appends and its BatchEnded: one write, one fdatasync, one
answer. It decodes no message and creates no event, action or answer object. The acceptor gets the
result when the steady state ends.

Laws. The acceptor decides when there is a steady state, and takes its result itself. Every other
event of the timeline ends it first. Input that is not the next bytes of the log, or does not fit
into the open segment, is left unread, with no state changed: the general path takes the same bytes.
The answer is sent after the flush.

The same source runs interpreted, or compiled as `steady_path_compiled` if a C compiler was present
at the installation. Its C types are in the .pxd file of that name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from crc32c import crc32c

from quorum_wal.consensus.codec import APPEND, APPEND_HEAD, APPEND_POSITIONS, RESPONSE_POSITIONS
from quorum_wal.consensus.codec import RESPONSE_POSITIONS_AT as ANSWER_AT
from quorum_wal.pgwire.framing import COPY_DATA, MESSAGE_BYTES_MAX, pack_header
from quorum_wal.safekeeper.block_sums import BLOCK_BYTES, BlockSums
from quorum_wal.safekeeper.events import SteadyTaken
from quorum_wal.safekeeper.timeline_state import Positions
from quorum_wal.storage import durable

try:
    import cython
except ImportError:
    from quorum_wal.storage import uncompiled as cython

if TYPE_CHECKING:
    from quorum_wal.pgwire.copy_stream import CopyStream
    from quorum_wal.safekeeper.acceptor import Acceptor
    from quorum_wal.safekeeper.timeline import Timeline

if cython.compiled:
    from cython.cimports.quorum_wal.consensus.append_calls import positions_at, put_positions
    from cython.cimports.quorum_wal.pgwire.copy_calls import monotonic, receive, send_all
    from cython.cimports.quorum_wal.storage.big_endian import is_at, u32_at
    from cython.cimports.quorum_wal.storage.durable_calls import sync, write_at
else:
    from time import monotonic

    from quorum_wal.storage.big_endian import is_at, u32_at

    positions_at = APPEND_POSITIONS.unpack_from
    put_positions = RESPONSE_POSITIONS.pack_into

#: Offsets in the frame of an Append, and limits of its length field.
HEADER_BYTES = 5
POSITIONS_AT = HEADER_BYTES + APPEND_HEAD.size
WAL_AT = HEADER_BYTES + APPEND.size
LENGTH_MIN, LENGTH_MAX = WAL_AT - 1, 4 + MESSAGE_BYTES_MAX
#: The input is not the next Append, or the steady state has ended.
NOT_STEADY = -1
# Hints are saved each time the log has grown by this much; this bounds what a start must decode.
HINTS_BYTES_MAX = 16 * 1024 * 1024


class SteadyPath:
    """Of the connection that streams now, until the next event that is not a batch of Appends.

    The timeline's lock is held during changes, and when a steady path is created or ended.
    """

    @classmethod
    def of(cls, timeline: Timeline, acceptor: Acceptor | None) -> SteadyPath | None:
        """None if there is no steady state. The caller holds the timeline's lock."""
        state = acceptor.steady_state() if acceptor is not None else None
        if acceptor is None or state is None:
            return None
        sums = timeline.store.checked.open_sums(acceptor.written_lsn)
        if sums is None or timeline.store.open_file[0] < 0:
            return None
        return cls(timeline, acceptor, sums, *state)

    def __init__(
        self, timeline: Timeline, acceptor: Acceptor, sums: BlockSums, head: bytes, answer: bytes
    ) -> None:
        """`head` is how the leader's Appends begin. `answer` is the acceptor's answer now, encoded.
        `sums` are the checksums of the open segment."""
        self.connection = acceptor.streaming
        #: When data last arrived, by the monotonic clock; 0 before the first.
        self.heard_at = 0.0
        self.is_over = False
        #: Whether any Append was taken.
        self.has_taken = False
        self._timeline = timeline
        self._acquire, self._release = timeline.lock.acquire, timeline.lock.release
        self._wakes = timeline.watchers.wakes
        self._head = head
        #: The frame of the answer; its positions are overwritten each time.
        self.answer = bytearray(pack_header(COPY_DATA, len(answer)) + answer)
        self._sums = sums
        self._fd, self._path, self._file_end_lsn = timeline.store.open_file
        self._file_begin_lsn = sums.begin_lsn
        times = timeline.hooks.flush_times
        self._flush_bounds, self._flush_counts = times.bounds, times.counts
        self._flush_sum_us = times.sum_us
        self._hint_lsn = timeline.hinted_lsn + HINTS_BYTES_MAX
        self.written_lsn = acceptor.written_lsn
        self.flush_lsn = self.record_end_lsn = acceptor.flush_lsn
        self.commit_lsn = acceptor.commit_lsn
        self.sent_commit_lsn = acceptor.sent_commit_lsn
        self.truncate_lsn = acceptor.truncate_lsn

    def run(self, stream: CopyStream) -> None:
        """Runs until other input arrives, the stream ends, or the steady state ends. Bytes received
        but not taken stay in the stream's buffer. It begins with the bytes already in the buffer:
        no more may arrive. Raises StorageError."""
        fd = stream.plain_fd
        view, begin, end = stream.lend()
        memory = view
        try:
            while True:
                if begin < end:
                    at = self._step(memory, view, begin, end)
                    if at < 0:
                        return
                    if at > begin and not self._answer(stream, fd):
                        return
                    begin = at
                if begin == end:
                    begin = end = 0
                elif begin:
                    view[: end - begin] = view[begin:end]
                    begin, end = 0, end - begin
                if cython.compiled and fd >= 0:
                    count = receive(fd, memory, end)
                else:
                    count = stream.receive_into(view[end:])
                if count <= 0:
                    return
                end += count
                self.heard_at = monotonic()
        finally:
            stream.give_back(begin, end)

    def _answer(self, stream: CopyStream, fd: int) -> bool:
        """Returns False if the connection is closed."""
        if cython.compiled and fd >= 0:
            is_sent: bool = send_all(fd, self.answer) >= 0
            return is_sent
        return stream.send_framed(self.answer)

    def step(self, view: memoryview, begin: int, end: int) -> int:
        """Takes all whole frames of view[begin:end] and flushes them. Returns the offset where they
        end, or NOT_STEADY, and then nothing was done. `answer` is the answer to the frames taken;
        without a whole frame there is none. Raises StorageError; then the timeline has stopped."""
        return self._step(view, view, begin, end)

    def _step(self, memory: memoryview, view: memoryview, begin: int, end: int) -> int:
        """`memory` is the same as `view`, with a C type."""
        self._acquire()
        try:
            return NOT_STEADY if self.is_over else self._take(memory, view, begin, end)
        except Exception as error:
            self._timeline.fail(error)
            raise
        finally:
            self._release()

    def positions(self) -> Positions:
        """The published positions. Reads without the lock: a position that may not be ahead of
        another one is read before it."""
        truncate_lsn, commit_lsn = self.truncate_lsn, self.commit_lsn
        flush_lsn = self.flush_lsn
        return Positions(self.written_lsn, flush_lsn, commit_lsn, truncate_lsn)

    def hand_over(self, acceptor: Acceptor) -> None:
        """Gives the result to the acceptor, which computes the same positions."""
        taken = SteadyTaken(
            self.written_lsn, self.record_end_lsn, self.sent_commit_lsn, self.truncate_lsn
        )
        assert acceptor.step(taken) == [], "no action may be left"
        assert acceptor.flush_lsn == self.flush_lsn
        assert acceptor.commit_lsn == self.commit_lsn

    def _take(self, memory: memoryview, view: memoryview, begin: int, end: int) -> int:
        at, lsn = begin, self.written_lsn
        record_end_lsn, commit_lsn = self.record_end_lsn, self.sent_commit_lsn
        truncate_lsn = self.truncate_lsn
        while at < end:
            if memory[at] != COPY_DATA:
                return NOT_STEADY
            if end - at < HEADER_BYTES:
                break
            length = u32_at(memory, at + 1)
            if length < LENGTH_MIN or length > LENGTH_MAX:
                return NOT_STEADY
            next_at = at + 1 + length
            if next_at > end:
                break
            if not is_at(memory, at + HEADER_BYTES, self._head):
                return NOT_STEADY
            begin_lsn, end_lsn, boundary_lsn, sent_commit_lsn, sent_truncate_lsn = positions_at(
                memory, at + POSITIONS_AT
            )
            if begin_lsn != lsn or end_lsn - begin_lsn != next_at - at - WAL_AT:
                return NOT_STEADY
            if boundary_lsn > end_lsn:
                return NOT_STEADY
            lsn = end_lsn
            record_end_lsn = max(record_end_lsn, boundary_lsn)
            commit_lsn = max(commit_lsn, sent_commit_lsn)
            truncate_lsn = max(truncate_lsn, sent_truncate_lsn)
            at = next_at
        if at == begin:
            return at
        if lsn != self.written_lsn:
            if lsn >= self._file_end_lsn:
                return NOT_STEADY
            self._write(memory, view, begin, at)
            self._flush()
        self.has_taken = True
        self.written_lsn = lsn
        self.record_end_lsn = record_end_lsn
        self.sent_commit_lsn = commit_lsn
        self.flush_lsn = record_end_lsn
        self.commit_lsn = max(self.commit_lsn, min(commit_lsn, record_end_lsn))
        self.truncate_lsn = truncate_lsn
        self._publish()
        return at

    def _write(self, memory: memoryview, view: memoryview, begin: int, end: int) -> None:
        """Writes the WAL of the frames in view[begin:end], and adds it to the checksums."""
        at, offset = begin, self.written_lsn - self._file_begin_lsn
        while at < end:
            next_at = at + 1 + u32_at(memory, at + 1)
            wal_at, at = at + WAL_AT, next_at
            if wal_at == next_at:
                continue
            if cython.compiled:
                error = write_at(self._fd, memory, wal_at, next_at, offset)
                if error:
                    durable.raise_failed(error, "write", self._path)
            else:
                durable.write_all(self._fd, view[wal_at:next_at], offset, self._path)
            self._sum(view[wal_at:next_at])
            offset += next_at - wal_at

    def _sum(self, wal: memoryview) -> None:
        """Equal to `BlockSums.extend`; within a block, without the interpreter."""
        sums = self._sums
        lsn, crc = sums.end
        count = len(wal)
        if count < BLOCK_BYTES - lsn % BLOCK_BYTES:
            sums.end = (lsn + count, crc32c(wal, crc))
        else:
            sums.extend(wal)

    def _flush(self) -> None:
        begun = monotonic()
        if cython.compiled:
            error = sync(self._fd)
            if error:
                durable.raise_failed(error, "fdatasync", self._path)
        else:
            durable.sync_data(self._fd, self._path)
        seconds, bucket = monotonic() - begun, 0
        while bucket < len(self._flush_bounds) and self._flush_bounds[bucket] < seconds:
            bucket += 1
        self._flush_counts[bucket] += 1
        self._flush_sum_us[0] += int(seconds * 1e6)

    def _publish(self) -> None:
        """The frames taken are on disk: publishes the positions, and updates the answer."""
        put_positions(
            self.answer, HEADER_BYTES + ANSWER_AT, self.flush_lsn, self.written_lsn, self.commit_lsn
        )
        if self._wakes:
            self._timeline.watchers.notify()
        if self.commit_lsn >= self._hint_lsn:
            self._hint_lsn = self.commit_lsn + HINTS_BYTES_MAX
            self._timeline.hooks.wants_housekeeping()
