"""Repairs corrupted segments of a safekeeper with the bytes of another safekeeper.

Only the proposer knows all addresses. It asks the members periodically for their damaged segments,
and copies each from another member, which verifies the bytes as it reads them. Committed bytes are
the same on all members. This runs in its own thread, outside the commit path.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Sequence
from contextlib import closing

import msgspec
import structlog

from quorum_wal.consensus.ids import NodeId, TimelineId
from quorum_wal.pgclient.errors import ConnectionLost
from quorum_wal.pgclient.stream import ReplicationStream
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.telemetry.stop_signal import StopSignal
from quorum_wal.walproposer.errors import Unreachable, WalProposerError
from quorum_wal.walproposer.safekeeper_client import SafekeeperAddress, SafekeeperClient
from quorum_wal.walproposer.stream.copy_connection import CopyConnection
from quorum_wal.walproposer.stream.peer import open_donor, open_repair

log = structlog.get_logger()

#: Interval between two checks of the members.
CHECK_SECONDS = 10.0
#: Time limit for a member to send or receive a piece of a segment, or to verify the segment.
ANSWER_SECONDS = 60.0

MENDED = b"mended"


class SegmentRepair:
    """`leader()` returns the NodeId that leads now, or None. `addresses()` returns the current
    addresses of the members."""

    def __init__(
        self,
        addresses: Callable[[], Sequence[SafekeeperAddress]],
        timeline: TimelineId,
        wal_seg_size: int,
        leader: Callable[[], NodeId | None],
    ) -> None:
        self._addresses = addresses
        self._timeline = timeline
        self._seg_size = wal_seg_size
        self._leader = leader
        #: The last error of each safekeeper, to log it once.
        self._logged: dict[SafekeeperAddress, str] = {}

    def run(self, stopping: StopSignal) -> None:
        while not stopping.wait(CHECK_SECONDS):
            for address in self._addresses():
                if self._leader() is not None and not stopping.is_set:
                    self._check_member(address)

    def _check_member(self, address: SafekeeperAddress) -> None:
        try:
            holes = self._holes_of(address)
        except WalProposerError:
            return  # other code reports an unreachable safekeeper
        try:
            for begin_lsn in holes:
                self._repair(address, begin_lsn)
        except WalProposerError as error:
            self._log_once(address, str(error))
        else:
            self._logged.pop(address, None)

    def _log_once(self, address: SafekeeperAddress, reason: str) -> None:
        if self._logged.get(address) != reason:
            self._logged[address] = reason
            log.warning("could not repair WAL segment", safekeeper=str(address), reason=reason)

    def _holes_of(self, address: SafekeeperAddress) -> list[int]:
        """The start positions of its damaged segments. Raises WalProposerError."""
        named = {
            "tenant_id": self._timeline.tenant_id.hex(),
            "timeline_id": self._timeline.timeline_id.hex(),
        }
        (row,) = SafekeeperClient(address).command("TIMELINE_STATUS", named)
        status = msgspec.json.decode(row["status"])
        return [int(Lsn.parse(lsn)) for lsn in status.get("holes", [])]

    def _repair(self, address: SafekeeperAddress, begin_lsn: int) -> None:
        """Repair from the first member that has the segment. Raises WalProposerError if none has
        it."""
        failure: WalProposerError | None = None
        for donor in self._addresses():
            node_id = self._leader()
            if donor == address or node_id is None:
                continue
            try:
                self._copy_segment(donor, address, node_id, begin_lsn)
            except WalProposerError as error:
                failure = error
            else:
                log.info(
                    "WAL segment repaired",
                    safekeeper=str(address),
                    donor=str(donor),
                    lsn=str(Lsn(begin_lsn)),
                )
                return
        if failure is not None:
            raise failure

    def _copy_segment(
        self, donor: SafekeeperAddress, address: SafekeeperAddress, node_id: NodeId, begin_lsn: int
    ) -> None:
        """Raises WalProposerError."""
        with (
            closing(open_donor(donor, self._timeline, node_id, begin_lsn)) as connection,
            closing(CopyConnection(open_repair(address, self._timeline, begin_lsn))) as target,
        ):
            with donor.answering():
                self._copy(ReplicationStream(connection.pgconn, begin_lsn, ANSWER_SECONDS), target)
            _await_repaired(target)

    def _copy(self, source: ReplicationStream, target: CopyConnection) -> None:
        end_lsn = source.next_lsn + self._seg_size
        for piece in source.pieces():
            surplus = max(0, source.next_lsn - end_lsn)
            if piece:
                _send(target, bytes(piece[: len(piece) - surplus]))
            if source.next_lsn >= end_lsn:
                return
        raise ConnectionLost("the server ended the stream")


def _send(target: CopyConnection, part: bytes) -> None:
    """Send all of `part`, and wait if the socket is full, so that nothing accumulates here."""
    target.send(part)
    while target.wants_write:
        _wait(target, writes=True)
        target.flush()
    if target.end is not None:
        raise target.end


def _await_repaired(target: CopyConnection) -> None:
    while MENDED not in map(bytes, target.receive()):
        _wait(target, writes=False)


def _wait(copy: CopyConnection, *, writes: bool) -> None:
    """Wait until the socket is ready. Raises WalProposerError if the other side has closed the
    connection."""
    if copy.end is not None:
        raise copy.end
    reading, writing = ([], [copy]) if writes else ([copy], [])
    if not any(select.select(reading, writing, [], ANSWER_SECONDS)):
        raise Unreachable(f"no message was received for {ANSWER_SECONDS:g} s")
