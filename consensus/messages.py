"""The messages between proposer and safekeeper. One class is used on both sides of the wire.

P->S  ProposerGreeting, VoteRequest, Elected, Configure, Follow, Append
S->P  SafekeeperGreeting, VoteResponse, AppendResponse

LSNs are plain ints: these values live in hot loops; those of every commit are msgspec Structs,
which are made and freed in a fraction of a dataclass's time. How they look on the wire: `codec.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from msgspec import Struct

from consensus.ids import NodeId, TimelineId
from consensus.membership import Membership, Stamp
from consensus.term_history import TermHistory
from pgwal.history import TimelineHistory

PROTOCOL_VERSION = 2


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a log's WAL looks like; fixed when the timeline is created.

    `pg_version` is server_version_num (150018); only its major part must match.
    """

    system_id: int
    pg_version: int
    wal_seg_size: int

    @property
    def pg_major(self) -> int:
        return self.pg_version // 10000


@dataclass(frozen=True, slots=True)
class ProposerGreeting:
    """The first message on a connection. It creates nothing."""

    protocol_version: int
    timeline: TimelineId
    server: ServerFacts
    proposer_uuid: bytes


@dataclass(frozen=True, slots=True)
class SafekeeperGreeting:
    """Carries no positions: they may change before the vote (law, rule 1 of the safekeeper).

    `has_left`: it is in no set, its WAL is gone, and it leads on to the members that it knows.
    """

    safekeeper_id: int
    instance: bytes
    has_left: bool
    promised: NodeId
    membership: Membership


@dataclass(frozen=True, slots=True)
class VoteRequest:
    """`stamp` is of the membership that the votes are counted by."""

    stamp: Stamp
    node_id: NodeId


@dataclass(frozen=True, slots=True)
class VoteResponse:
    """`term_history` is clipped to `flush_lsn`. A refusal's `promised` names who was preferred.

    When that is the proposer that asked, the safekeeper obeys it, but has lost a part of its log:
    it is to be streamed to as any other, and gives no vote (rule 9 of the safekeeper).
    """

    granted: bool
    promised: NodeId
    flush_lsn: int
    commit_lsn: int
    truncate_lsn: int
    timeline_start_lsn: int
    membership: Membership
    term_history: TermHistory
    tli_history: TimelineHistory

    @property
    def last_log_node_id(self) -> NodeId:
        return self.term_history.last_log_node_id(self.flush_lsn)


@dataclass(frozen=True, slots=True)
class Elected:
    """The receiver truncates its log to `start_streaming_at`, and adopts both histories and the
    membership."""

    node_id: NodeId
    start_streaming_at: int
    timeline_start_lsn: int
    membership: Membership
    term_history: TermHistory
    tli_history: TimelineHistory


@dataclass(frozen=True, slots=True)
class Configure:
    """The membership that the leader wrote last. The answer is an AppendResponse, once it is
    durable."""

    node_id: NodeId
    membership: Membership


@dataclass(frozen=True, slots=True)
class Follow:
    """Take the WAL from the safekeeper there from now on (daisy chain), up to its flush_lsn.

    What comes on this connection afterwards are Appends without WAL, with the newest positions.
    """

    generation: int
    node_id: NodeId
    host: str
    port: int


@final
class Append(Struct, frozen=True, gc=False):
    """WAL [begin_lsn, end_lsn), or a heartbeat when empty.

    `record_end_lsn` is the last record boundary <= end_lsn that the proposer knows; it may lie
    below begin_lsn while one record spans several messages. `generation` is of the membership whose
    author is `node_id`, here and in the answer. To one that was told to Follow it brings no WAL,
    and says where the leader's log ends: there the next byte is not expected.
    """

    generation: int
    node_id: NodeId
    begin_lsn: int
    end_lsn: int
    record_end_lsn: int
    commit_lsn: int
    truncate_lsn: int
    wal: bytes | memoryview


class HotStandbyFeedback(Struct, frozen=True, gc=False):
    """The aggregate of a safekeeper's standbys, as in Postgres' 'h' message; xids 0 = none."""

    sent_at_us: int = 0
    xmin: int = 0
    xmin_epoch: int = 0
    catalog_xmin: int = 0
    catalog_xmin_epoch: int = 0


NO_FEEDBACK = HotStandbyFeedback()


@final
class AppendResponse(Struct, frozen=True, gc=False):
    """Sent after the flush that covers what it says.

    `node_id` is the promise: greater than the proposer's own means it is fenced. `durable_lsn` is
    the end of the fsynced bytes; it may be inside a record, counts for flow control only, and is
    never below `flush_lsn`, the last record boundary, which alone counts for commit.
    """

    generation: int
    node_id: NodeId
    flush_lsn: int
    durable_lsn: int
    commit_lsn: int
    remote_consistent_lsn: int = 0
    feedback: HotStandbyFeedback = NO_FEEDBACK


ProposerMessage = ProposerGreeting | VoteRequest | Elected | Configure | Follow | Append
SafekeeperMessage = SafekeeperGreeting | VoteResponse | AppendResponse
