"""START_REPLICATION: the log, from disk to a reader.

A message ends at the limit, which is a record boundary, or at a page boundary, like a walsender's.
So a reader may find boundaries by the walsender's rule. There are two kinds of readers: a donor's,
below, and a replica (`replica.py`). Source: Postgres `walsender.c`, `XLogSendPhysical`.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod

from quorum_wal.consensus.ids import NodeId
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.pgwal.page import WAL_PAGE_SIZE
from quorum_wal.pgwal.segment import format_segment_name, segno_of
from quorum_wal.pgwire.copy_stream import CopyStream
from quorum_wal.pgwire.replication import Keepalive, pack_xlog_data_header, postgres_time_us
from quorum_wal.safekeeper.block_sums import BLOCK_BYTES
from quorum_wal.safekeeper.donor_rule import DonorRule
from quorum_wal.safekeeper.errors import SafekeeperError
from quorum_wal.safekeeper.join_rules import check_not_left
from quorum_wal.safekeeper.read_wal import read_wal
from quorum_wal.safekeeper.timeline import Timeline
from quorum_wal.safekeeper.timeline_state import TimelineState

SEND_BYTES_MAX = 128 * 1024  # one message, as MAX_SEND_SIZE
READ_BYTES_MAX = 1024 * 1024  # one read: finding and opening the file costs as much as 100 KiB
KEEPALIVE_SECONDS = 1.0
# A reader answers each message. While WAL flows, its answers are read together with the next send
# and wake no thread. After this much silence the sender waits for them.
ANSWERS_WAIT_SECONDS = 0.02

UNDEFINED_FILE = "58P01"
CANNOT_CONNECT_NOW = "57P03"


class WalSender(ABC):
    """A stream to a reader; `sent_lsn` is the position of the next byte to send."""

    def __init__(self, timeline: Timeline, start_lsn: int) -> None:
        self.timeline = timeline
        self.sent_lsn = start_lsn
        self._sent_at = time.monotonic()

    @abstractmethod
    def limit_lsn(self) -> int:
        """The position up to which WAL may be sent now. Raises SafekeeperError if the stream must
        end."""

    def checked(self, wal: bytes) -> bytes:
        """Returns `wal`, which was just read. Raises SafekeeperError if it may not be sent."""
        self.limit_lsn()
        return wal

    @abstractmethod
    def take_answers(self, stream: CopyStream) -> None:
        """Reads the messages that the reader has sent, without waiting."""

    def is_over(self) -> bool:
        """Whether all WAL was sent and the stream ends."""
        return False

    def run(self, stream: CopyStream) -> None:
        """Sends until `is_over`. Raises CopyEnded when the reader disconnects or cancels,
        SafekeeperError when the stream must end."""
        while not self.is_over():
            stream.check_canceled()
            limit_lsn = self.limit_lsn()
            if self.sent_lsn < limit_lsn:
                self._send(stream, limit_lsn)
            else:
                self.wait(stream)
            self.take_answers(stream)

    def tli_to_name(self) -> int:
        """The timeline in the segment name that the reader knows."""
        return self.timeline.control.tli_history.tli_at(self.sent_lsn)

    def check_not_removed(self) -> None:
        if self.sent_lsn < self.timeline.control.local_start_lsn:
            raise self.removed()

    def removed(self) -> SafekeeperError:
        """Postgres's text, which some clients recognize."""
        seg_size = self.timeline.control.server.wal_seg_size
        segment = format_segment_name(
            self.tli_to_name(), segno_of(self.sent_lsn, seg_size), seg_size
        )
        return SafekeeperError(
            f"requested WAL segment {segment} has already been removed",
            hint=f"The oldest WAL here begins at "
            f"{format_lsn(self.timeline.control.local_start_lsn)}.",
            sqlstate=UNDEFINED_FILE,
        )

    def _send(self, stream: CopyStream, limit_lsn: int) -> None:
        end_lsn = self.sent_lsn + READ_BYTES_MAX
        # Whole blocks are checked: a read that begins and ends at a block is not copied.
        end_lsn = limit_lsn if end_lsn >= limit_lsn else end_lsn - end_lsn % BLOCK_BYTES
        wal = memoryview(self._read(end_lsn - self.sent_lsn))
        while wal:
            end_lsn = self.sent_lsn + SEND_BYTES_MAX
            part = wal[: end_lsn - end_lsn % WAL_PAGE_SIZE - self.sent_lsn]
            stream.send(pack_xlog_data_header(self.sent_lsn, limit_lsn, _now_us()), part)
            self.sent_lsn += len(part)
            wal = wal[len(part) :]
        self._sent_at = time.monotonic()

    def _read(self, length: int) -> bytes:
        """At least a byte. Raises SafekeeperError."""
        self.check_not_removed()
        wal = self.checked(read_wal(self.timeline, self.sent_lsn, length))
        if not wal:
            # The file was removed, or got another name, between finding and opening it.
            self.check_not_removed()
            wal = self.checked(read_wal(self.timeline, self.sent_lsn, length))
        if not wal:
            raise self.removed()
        return wal

    def wait(self, stream: CopyStream) -> None:
        """Waits until there is more to send or to read, the reader disconnects or cancels, or a
        keepalive is due."""
        now = time.monotonic()
        keepalive_at, answers_at = self._sent_at + KEEPALIVE_SECONDS, now + ANSWERS_WAIT_SECONDS
        with self.timeline.watchers.woken(stream.wake):
            while self.limit_lsn() <= self.sent_lsn and not self.is_over():
                stream.check_canceled()
                if now >= keepalive_at:
                    self.send_keepalive(stream)
                    return
                for_data = now >= answers_at
                until = keepalive_at if for_data else min(keepalive_at, answers_at)
                if stream.wait(until - now, for_data=for_data):
                    return
                now = time.monotonic()

    def send_keepalive(self, stream: CopyStream, *, reply_requested: bool = False) -> None:
        stream.send(Keepalive(self.sent_lsn, _now_us(), reply_requested).encode())
        self._sent_at = time.monotonic()


class DonorSender(WalSender):
    """Sends to a proposer that recovers, or that catches up another safekeeper. It names its NodeId
    and gets everything flushed, as long as no greater NodeId was promised. `is_chained`: sends to a
    safekeeper that takes its log from this one."""

    def __init__(
        self, timeline: Timeline, start_lsn: int, node_id: NodeId, *, is_chained: bool = False
    ) -> None:
        super().__init__(timeline, start_lsn)
        self._is_chained = is_chained
        self._rule = DonorRule(node_id, self._look, self._follows if is_chained else None)

    def check_start(self) -> None:
        """Called before the stream begins. A safekeeper that will be chained may have more than is
        flushed here: the leader has just sent the WAL to both. Raises SafekeeperError."""
        if self.timeline.read_archived is None:
            self.check_not_removed()
        limit_lsn = self.limit_lsn()
        if not self._is_chained:
            check_not_ahead(self.sent_lsn, limit_lsn)

    def _look(self) -> tuple[NodeId, int]:
        check_active(self.timeline)
        return self.timeline.control.promised, self.timeline.positions.flush_lsn

    def _follows(self) -> NodeId:
        return self.timeline.control.term_history.entries[-1].node_id

    def limit_lsn(self) -> int:
        return self._rule.limit_lsn()

    def checked(self, wal: bytes) -> bytes:
        return self._rule.checked(wal)

    def _read(self, length: int) -> bytes:
        """Reads WAL that was removed from the disk from the archive, if there is one."""
        read_archived = self.timeline.read_archived
        if read_archived is None or self.sent_lsn >= self.timeline.control.local_start_lsn:
            return super()._read(length)
        return self.checked(read_archived(self.sent_lsn, length))

    def take_answers(self, stream: CopyStream) -> None:
        """Reads and ignores them, so that a closed connection is noticed."""
        while stream.drain(timeout=0):
            continue


def check_active(timeline: Timeline) -> None:
    """Raises SafekeeperError: 57P03, or 55000 if the timeline was left."""
    check_not_left(timeline.control)
    if timeline.state is not TimelineState.ACTIVE:
        raise SafekeeperError(
            f"timeline is {timeline.state.value}: {timeline.stopped_reason}",
            sqlstate=CANNOT_CONNECT_NOW,
        )


def check_not_ahead(start_lsn: int, limit_lsn: int) -> None:
    """Raises SafekeeperError."""
    if start_lsn > limit_lsn:
        raise SafekeeperError(
            f"requested starting point {format_lsn(start_lsn)} is ahead of the WAL flush "
            f"position of this server {format_lsn(limit_lsn)}",
        )


def _now_us() -> int:
    return postgres_time_us(time.time_ns())
