"""Reads from donors: the tail of a donor's log for the check, and WAL for peers that lag.

The donor of a peer may change at any time. The result of an older read is discarded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import psycopg
import structlog

from quorum_wal.consensus.ids import NodeId, TimelineId
from quorum_wal.pgclient.errors import UNDEFINED_FILE
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.pgwire.replication import XLogData
from quorum_wal.walproposer.errors import WalProposerError
from quorum_wal.walproposer.safekeeper_client import SafekeeperAddress
from quorum_wal.walproposer.stream.copy_connection import CopyConnection
from quorum_wal.walproposer.stream.event_loop import EventLoop
from quorum_wal.walproposer.stream.events import CatchUpLost, CatchUpWal, Event
from quorum_wal.walproposer.stream.peer import open_donor, read_tail

log = structlog.get_logger()


class DonorReads:
    """`addresses` are those of the peers. `step` hands an event to the core. `changed` is called
    when a connection needs handling in the next round of the loop."""

    def __init__(
        self,
        loop: EventLoop,
        timeline: TimelineId,
        addresses: Mapping[int, SafekeeperAddress],
        step: Callable[[Event], None],
        changed: Callable[[], None],
    ) -> None:
        #: By the peer that is catching up.
        self.open: dict[int, CopyConnection] = {}
        self._loop = loop
        self._timeline = timeline
        self._addresses = addresses
        self._step = step
        self._changed = changed
        #: The number of the read that each peer waits for; connections of older reads are closed on
        #: arrival.
        self._reads: dict[int, int] = {}
        self._reads_count = 0

    def read_tail(
        self,
        donor: int,
        node_id: NodeId,
        begin_lsn: int,
        end_lsn: int,
        done: Callable[[bytes | WalProposerError], None],
    ) -> None:
        address, timeline = self._addresses[donor], self._timeline
        self._loop.in_thread(
            lambda: read_tail(address, timeline, node_id, begin_lsn, end_lsn), done
        )

    def start(self, peer: int, donor: int, node_id: NodeId, begin_lsn: int) -> None:
        """Read the donor's log from `begin_lsn` on, as CatchUpWal for the peer."""
        address, timeline = self._addresses[donor], self._timeline
        self._reads_count += 1
        number = self._reads[peer] = self._reads_count
        log.info(
            "catching up",
            safekeeper=str(self._addresses[peer]),
            donor=str(address),
            begin_lsn=format_lsn(begin_lsn),
        )
        self._loop.in_thread(
            lambda: open_donor(address, timeline, node_id, begin_lsn),
            lambda result: self._started(peer, number, result),
        )

    def stop(self, peer: int) -> None:
        self._reads.pop(peer, None)
        copy = self.open.pop(peer, None)
        if copy is not None:
            self._loop.unwatch(copy)
            copy.close()

    def update(self, wants: Callable[[int], bool]) -> None:
        """Stop reading for peers that want no more for now."""
        for peer, copy in self.open.items():
            self._loop.set_interest(copy, reads=wants(peer), writes=False)

    def _started(
        self, peer: int, number: int, result: psycopg.Connection | WalProposerError
    ) -> None:
        if self._reads.get(peer) != number:
            if not isinstance(result, WalProposerError):
                result.close()
            return
        if isinstance(result, WalProposerError):
            self._lost(peer, result)
            return
        copy = CopyConnection(result, self._changed)
        self.open[peer] = copy
        self._loop.watch(copy, lambda: self._ready(peer, copy), copy.flush)
        self._ready(peer, copy)

    def _ready(self, peer: int, copy: CopyConnection) -> None:
        for message in copy.receive_replication():
            if isinstance(message, XLogData) and self.open.get(peer) is copy:
                self._step(CatchUpWal(peer, message.start_lsn, bytes(message.data)))
        if copy.end is not None and self.open.get(peer) is copy:
            self.stop(peer)
            self._lost(peer, copy.end)

    def _lost(self, peer: int, error: WalProposerError) -> None:
        self._step(CatchUpLost(peer, str(error), is_removed=error.sqlstate == UNDEFINED_FILE))
