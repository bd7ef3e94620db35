"""The content of JOIN_TIMELINE: everything that a safekeeper needs to begin a log in the middle.

    system_id u64 | pg_version u32 | wal_seg_size u32 | start_lsn u64 | timeline_start u64 |
    node_id | membership | term_history | tli_history


`start_lsn` is a segment's start; the log begins there even inside a record. Laws: the offer
contains the histories below `start_lsn` only. Condition N1: `start_lsn` is at or below the commit,
so every later leader has the same bytes below it. Decoding raises only MessageError.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

from quorum_wal.consensus.errors import MessageError
from quorum_wal.consensus.ids import NodeId
from quorum_wal.consensus.membership import Membership
from quorum_wal.consensus.membership_codec import encode_membership, read_membership
from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.consensus.term_history import TermHistory
from quorum_wal.consensus.tli_history import clipped_tli_history
from quorum_wal.consensus.wire import (
    Reader,
    encode_node_id,
    encode_term_history,
    encode_tli_history,
    lawful,
)
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.pgwal.lsn import format_lsn

_FACTS = struct.Struct("!QIIQQ")


class OfferError(MessageError):
    """An offer that contradicts itself (invalid_parameter_value)."""

    sqlstate = "22023"


@dataclass(frozen=True, slots=True)
class TimelineOffer:
    """From the leader `node_id`, with its present membership."""

    server: ServerFacts
    start_lsn: int
    timeline_start_lsn: int
    node_id: NodeId
    membership: Membership
    term_history: TermHistory
    tli_history: TimelineHistory

    def __post_init__(self) -> None:
        if self.start_lsn < self.timeline_start_lsn:
            raise OfferError(
                f"log would begin at {format_lsn(self.start_lsn)}, before its timeline at "
                f"{format_lsn(self.timeline_start_lsn)}"
            )
        starts = [entry.start_lsn for entry in self.term_history.entries]
        if not starts or starts[0] > self.start_lsn or starts[-1] > self.start_lsn:
            raise OfferError(
                f"term history [{self.term_history}] is not clipped to {format_lsn(self.start_lsn)}"
            )
        if self.tli_history != clipped_tli_history(self.tli_history, self.start_lsn):
            raise OfferError(
                f"history of Postgres timeline {self.tli_history.tli} is not clipped to "
                f"{format_lsn(self.start_lsn)}"
            )
        if self.membership.stamp.author != self.node_id:
            raise OfferError(
                f"{self.node_id} offers a membership that {self.membership.stamp.author} wrote"
            )

    def beginning_at(self, start_lsn: int) -> TimelineOffer:
        """The same offer for a log that begins earlier. Raises OfferError."""
        if start_lsn > self.start_lsn:
            raise OfferError(
                f"offer for a log from {format_lsn(self.start_lsn)} cannot be used for one that "
                f"begins at {format_lsn(start_lsn)}"
            )
        return replace(
            self,
            start_lsn=start_lsn,
            term_history=self.term_history.clipped(start_lsn),
            tli_history=clipped_tli_history(self.tli_history, start_lsn),
        )


def encode_offer(offer: TimelineOffer) -> bytes:
    server = offer.server
    return b"".join((
        _FACTS.pack(
            server.system_id, server.pg_version, server.wal_seg_size, offer.start_lsn,
            offer.timeline_start_lsn,
        ),
        encode_node_id(offer.node_id), encode_membership(offer.membership),
        encode_term_history(offer.term_history), encode_tli_history(offer.tli_history),
    ))  # fmt: skip


def decode_offer(data: bytes | memoryview) -> TimelineOffer:
    """Raises MessageError."""
    reader = Reader(memoryview(data))
    system_id, pg_version, wal_seg_size, start_lsn, timeline_start_lsn = reader.unpack(_FACTS)
    node_id, membership = reader.node_id(), read_membership(reader)
    histories = reader.term_history(), reader.tli_history()
    reader.finish()
    server = ServerFacts(system_id, pg_version, wal_seg_size)
    return lawful(
        TimelineOffer, server, start_lsn, timeline_start_lsn, node_id, membership, *histories
    )
