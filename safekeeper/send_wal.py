"""START_REPLICATION: the log, from disk to a reader.

A consumer gets what is committed and flushed here, never more. A donor's reader (a proposer that
recovers or catches up another safekeeper) names its NodeId and gets everything flushed, as long as
nobody greater was promised. Messages end at the limit, which is a record boundary, or at a page
boundary, as a walsender's do; so a reader may use the walsender's rule to find boundaries.
"""

from __future__ import annotations

import time

from consensus.ids import NodeId
from pgwal.lsn import format_lsn
from pgwal.page import WAL_PAGE_SIZE
from pgwire.blocking import CopyStream
from pgwire.errors import CopyEnd, CopyEnded
from pgwire.replication import Keepalive, pack_xlog_data_header, postgres_time_us
from safekeeper.errors import SafekeeperError
from safekeeper.timeline import Timeline, TimelineState

SEND_BYTES_MAX = 128 * 1024
KEEPALIVE_SECONDS = 1.0


class WalSender:
    """One reader. `node_id` makes it a donor's reader."""

    def __init__(self, timeline: Timeline, node_id: NodeId | None) -> None:
        self._timeline = timeline
        self._node_id = node_id

    def run(self, stream: CopyStream, start_lsn: int) -> None:
        """Until the reader leaves. Raises SafekeeperError when it must be sent away."""
        sent_lsn = start_lsn
        try:
            while True:
                limit_lsn = self._limit_lsn()
                if sent_lsn >= limit_lsn:
                    self._wait(stream, sent_lsn)
                    continue
                sent_lsn = self._send(stream, sent_lsn, limit_lsn)
                _take_answers(stream)
        except CopyEnded as ended:
            if ended.how is CopyEnd.COPY_DONE:
                stream.end_copy()

    def check_start(self, start_lsn: int) -> None:
        """Before the stream begins. Raises SafekeeperError."""
        oldest_lsn = self._timeline.control.local_start_lsn
        if start_lsn < oldest_lsn:
            raise SafekeeperError(
                f"requested starting point {format_lsn(start_lsn)} is below the oldest WAL here, "
                f"{format_lsn(oldest_lsn)}",
                sqlstate="58P01",
            )
        limit_lsn = self._limit_lsn()
        if start_lsn > limit_lsn:
            raise SafekeeperError(
                f"requested starting point {format_lsn(start_lsn)} is ahead of the WAL flush "
                f"position of this server {format_lsn(limit_lsn)}",
            )

    def _limit_lsn(self) -> int:
        timeline = self._timeline
        if timeline.state is not TimelineState.ACTIVE:
            raise SafekeeperError(
                f"timeline is {timeline.state.value}: {timeline.stopped_reason}", sqlstate="57P03"
            )
        positions = timeline.positions
        if self._node_id is None:
            return min(positions.commit_lsn, positions.flush_lsn)
        promised = timeline.control.promised
        if promised != self._node_id:
            raise SafekeeperError(
                f"log is read for {self._node_id}, but {promised} was promised", sqlstate="55000"
            )
        return positions.flush_lsn

    def _send(self, stream: CopyStream, begin_lsn: int, limit_lsn: int) -> int:
        end_lsn = begin_lsn + SEND_BYTES_MAX
        end_lsn = limit_lsn if end_lsn >= limit_lsn else end_lsn - end_lsn % WAL_PAGE_SIZE
        wal = self._timeline.store.read(begin_lsn, end_lsn - begin_lsn)
        self._limit_lsn()  # a greater promise, after which the log may be cut, came before the read
        if not wal:
            raise SafekeeperError(
                f"requested WAL segment at {format_lsn(begin_lsn)} has already been removed",
                sqlstate="58P01",
            )
        header = pack_xlog_data_header(begin_lsn, limit_lsn, postgres_time_us(time.time_ns()))
        stream.send(header, wal)
        return begin_lsn + len(wal)

    def _wait(self, stream: CopyStream, sent_lsn: int) -> None:
        """Until there is more to send, or it is time for a keepalive."""
        timeline = self._timeline
        timeline.watch(lambda: self._limit_lsn() > sent_lsn, KEEPALIVE_SECONDS)
        if self._limit_lsn() <= sent_lsn:
            now_us = postgres_time_us(time.time_ns())
            stream.send(Keepalive(sent_lsn, now_us, reply_requested=False).encode())
            _take_answers(stream)


def _take_answers(stream: CopyStream) -> None:
    """Status updates are read so that they do not pile up; a closed connection is noticed."""
    while stream.drain(timeout=0):
        continue
