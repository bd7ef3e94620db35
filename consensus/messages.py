"""The messages between proposer and safekeeper. One class is used on both sides of the wire.

P->S  ProposerGreeting, VoteRequest, Elected, Configure, Follow, Append
S->P  SafekeeperGreeting, VoteResponse, AppendResponse


LSNs are plain ints because these values are used in hot loops. The messages of every commit are
msgspec Structs, which are much faster to create than dataclasses. Their bytes: `codec.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from msgspec import Struct

from quorum_wal.consensus.ids import NodeId, TimelineId
from quorum_wal.consensus.membership import Membership, Stamp
from quorum_wal.consensus.term_history import TermHistory
from quorum_wal.pgwal.history import TimelineHistory

PROTOCOL_VERSION = 2


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """The properties of a log's WAL; fixed when the timeline is created.

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
    """Contains no positions: they may change before the vote (rule 1 of the safekeeper).

    `has_left`: it is in no set and has removed its WAL; it names the members that it knows.
    """

    safekeeper_id: int
    instance: bytes
    has_left: bool
    promised: NodeId
    membership: Membership


@dataclass(frozen=True, slots=True)
class VoteRequest:
    """`stamp`: of the membership by which the votes are counted."""

    stamp: Stamp
    node_id: NodeId


@dataclass(frozen=True, slots=True)
class VoteResponse:
    """`term_history` is clipped to `flush_lsn`. `promised` is the NodeId that was promised.

    If a vote is refused although `promised` is the proposer that asked, the safekeeper follows it,
    but has lost a part of its log: it gets the WAL like any other, and grants no vote (rule 9 of
    the safekeeper).
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
    """The membership that the leader wrote last. The answer is an AppendResponse, sent when the
    membership is durable."""

    node_id: NodeId
    membership: Membership


@dataclass(frozen=True, slots=True)
class Follow:
    """Take the WAL from that safekeeper from now on (daisy chain), up to its flush_lsn.

    After this, the connection carries Appends without WAL, with the newest positions.
    """

    generation: int
    node_id: NodeId
    host: str
    port: int


@final
class Append(Struct, frozen=True, gc=False):
    """WAL [begin_lsn, end_lsn), or a heartbeat if empty.

    `record_end_lsn` is the last record boundary <= end_lsn that the proposer knows. It may be below
    begin_lsn while one record spans several messages. `generation` is that of the membership whose
    author is `node_id`, here and in the answer. After Follow, an Append contains no WAL, and names
    the end of the leader's log; it then need not begin at the safekeeper's `written_lsn`.
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
    """Sent after the flush that covers its positions.

    `node_id` is the promise: if it is greater than the proposer's own, the proposer is fenced.
    `durable_lsn` is the end of the fsynced bytes. It may be inside a record, is for flow control
    only, and is never below `flush_lsn`, the last record boundary, which alone counts for commit.
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
