"""The proposer's state of one safekeeper. Pure.

OFFLINE -> CONNECTED -> GREETED -> VOTING -> VOTED -> CATCHING_UP <-> STREAMING -> CHAINED
   ^                       OUTSIDE                     LEFT_BEHIND          |
   |______________________ connection lost, from any state _________________|

A Progress is a place in the list of addresses, and the record of the safekeeper that answered there
last. If the safekeeper answers at another place, its record moves there (`exchange_records`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from quorum_wal.consensus.ids import NodeId
from quorum_wal.consensus.membership import UNKNOWN_INSTANCE, Stamp
from quorum_wal.consensus.messages import (
    NO_FEEDBACK,
    AppendResponse,
    HotStandbyFeedback,
    SafekeeperGreeting,
    VoteRequest,
    VoteResponse,
)
from quorum_wal.pgwal.boundary import BoundaryFinder
from quorum_wal.walproposer.stream.events import Action, ClosePeer, Send, StopCatchUp

# Bytes sent and not yet known to be durable at the peer. Large enough to keep a disk busy at 1 GB/s
# over a 4 ms round trip; small enough to bound the memory for a stalled peer.
IN_FLIGHT_BYTES_MAX = 8 * 1024 * 1024


class PeerState(Enum):
    """In order of execution."""

    OFFLINE = "offline"  #: no connection; next: PeerConnected
    CONNECTED = "connected"  #: greeting sent; next: its greeting
    GREETED = "greeted"  #: waiting for the choice of the term
    OUTSIDE = "outside"  #: in no set, and no learner: it is sent nothing
    VOTING = "voting"  #: vote requested; next: its answer
    VOTED = "voted"  #: waiting until the election is won and the primary checked
    CATCHING_UP = "catching up"  #: below the window: WAL from a donor
    LEFT_BEHIND = "left behind"  #: no donor has the WAL that it lacks
    STREAMING = "streaming"  #: WAL from the window
    CHAINED = "chained"  #: WAL from another safekeeper, the log's end from here


FOLLOWING = (
    PeerState.CATCHING_UP,
    PeerState.LEFT_BEHIND,
    PeerState.STREAMING,
    PeerState.CHAINED,
)
#: States of peers that get the log as it arrives.
IN_STEP = (PeerState.STREAMING, PeerState.CHAINED)


#: Attributes of the safekeeper, independent of the place where it answers.
RECORD = (
    "safekeeper_id",
    "instance",
    "is_member",
    "is_learner",
    "generation",
    "answered_ms",
    "flush_lsn",
    "durable_lsn",
    "commit_lsn",
    "has_lost_data",
    "lost_lsn",
    "feedback",
)


@dataclass(slots=True)
class Progress:
    """Invariant while following: flush_lsn <= durable_lsn <= next_lsn. Nothing is remembered of a
    safekeeper that is neither a member nor a learner (A4)."""

    #: Its place in the list of addresses.
    peer: int
    host: str = ""
    port: int = 0
    state: PeerState = PeerState.OFFLINE
    #: The shell connects to it, or tries to.
    is_open: bool = True
    #: It was closed because this safekeeper answers at another place.
    twin_id: int | None = None
    #: Known since its first greeting; kept across reconnections.
    safekeeper_id: int | None = None
    instance: bytes = UNKNOWN_INSTANCE
    #: In a set of the current membership, with its id and instance: it counts.
    is_member: bool = False
    #: Streamed to, in no set: it does not count.
    is_learner: bool = False
    #: From its greeting: it is in no set, and has no WAL.
    has_left: bool = False
    #: It reported that it has no such timeline, or a damaged one, and has not connected since.
    lacks_timeline: bool = False
    promised: NodeId = NodeId.ZERO
    #: The stamp of the request that its vote answers.
    asked: Stamp = Stamp.FIRST
    vote: VoteResponse | None = None
    #: The generation of the membership that it has on disk from us: that of its answers under our
    #: NodeId, kept across reconnections; 0: never.
    generation: int = 0
    #: When it last answered so.
    answered_ms: int = 0
    #: It has answered under our NodeId on this connection: its positions count.
    answered: bool = False
    next_lsn: int = 0
    #: The last record boundary sent to it; below next_lsn while a record is only partly sent.
    record_end_lsn: int = 0
    durable_lsn: int = 0
    #: Survives a lost connection: what it had flushed under our NodeId stays flushed, until it
    #: reports otherwise.
    flush_lsn: int = 0
    #: It reported this. A vote that shows all of lost_lsn, the position that it had flushed before,
    #: resets it.
    has_lost_data: bool = False
    lost_lsn: int = 0
    commit_lsn: int = 0
    #: What its replicas need, from its last answer; kept across reconnections.
    feedback: HotStandbyFeedback = NO_FEEDBACK
    sent_commit_lsn: int = 0
    last_sent_ms: int = 0
    last_heard_ms: int = 0
    #: When its flush_lsn last reached the end of the WAL that the primary had sent.
    caught_up_ms: int = 0
    #: Of this connection, from Elected on: the number of messages sent, the number that had
    #: certainly been taken at its last answer, and the number of the last message with WAL.
    sent_count: int = 0
    taken_count: int = 0
    wal_count: int = 0
    donor: int | None = None
    catch_up: BoundaryFinder | None = None
    #: Donors that could not be read for it, and when each may be tried again.
    donor_retry_ms: dict[int, int] = field(default_factory=dict)
    #: Why it is not connected; "" if it is.
    error: str = "not connected yet"

    @property
    def address(self) -> tuple[str, int]:
        return self.host, self.port

    @property
    def has_seat(self) -> bool:
        """The log is streamed to it."""
        return self.is_member or self.is_learner

    @property
    def is_voteless(self) -> bool:
        """It lost a part of its log, promised to obey us, and gave no vote."""
        return self.vote is not None and not self.vote.granted

    @property
    def is_following(self) -> bool:
        return self.state in FOLLOWING

    @property
    def can_confirm(self) -> bool:
        """It follows, and can get to the end of the log."""
        return self.is_following and self.answered and self.state is not PeerState.LEFT_BEHIND

    @property
    def has_room(self) -> bool:
        return self.next_lsn - self.durable_lsn < IN_FLIGHT_BYTES_MAX

    def is_whole(self, end_lsn: int) -> bool:
        """It follows, and has been sent everything up to `end_lsn`, or the position."""
        return self.state in IN_STEP and self.answered and self.next_lsn == end_lsn

    @property
    def is_inside_record(self) -> bool:
        return self.next_lsn != self.record_end_lsn

    @property
    def awaits_answer(self) -> bool:
        return self.is_following or self.state in (PeerState.CONNECTED, PeerState.VOTING)

    def become_connected(self, now_ms: int) -> None:
        self.state = PeerState.CONNECTED
        self.last_heard_ms = now_ms
        self.lacks_timeline = False
        self.error = ""

    def become_greeted(self, greeting: SafekeeperGreeting) -> None:
        self.state = PeerState.GREETED
        self.safekeeper_id, self.instance = greeting.safekeeper_id, greeting.instance
        self.promised, self.has_left = greeting.promised, greeting.has_left
        self.vote = None
        if greeting.has_left:
            self.forget()

    def become_outside(self) -> list[Action]:
        """It is no longer in a set. Its connection stays open."""
        stop: list[Action] = [StopCatchUp(self.peer)] if self.catch_up is not None else []
        self.state = PeerState.OUTSIDE
        self.vote = self.donor = self.catch_up = None
        self.answered = False
        return stop

    def request_vote(self, stamp: Stamp, node_id: NodeId) -> Send:
        self.state, self.asked = PeerState.VOTING, stamp
        return Send(self.peer, VoteRequest(stamp, node_id))

    def become_offline(self, reason: str) -> list[Action]:
        """The connection is lost, and with it all state of the connection."""
        stop: list[Action] = [StopCatchUp(self.peer)] if self.catch_up is not None else []
        self.state = PeerState.OFFLINE
        self.vote = None
        self.answered = False
        self.donor = None
        self.catch_up = None
        self.error = reason
        return stop

    def lose_data(self) -> None:
        """Its earlier acknowledgements no longer count."""
        self.has_lost_data = True
        self.lost_lsn = max(self.lost_lsn, self.flush_lsn)
        self.flush_lsn = self.durable_lsn = self.commit_lsn = self.generation = 0

    def forget(self) -> None:
        """A4: it is in no set. What its replicas need is still remembered for a while."""
        self.has_lost_data = False
        self.flush_lsn = self.durable_lsn = self.commit_lsn = self.lost_lsn = 0
        self.generation = self.answered_ms = 0

    def exchange_records(self, other: Progress) -> None:
        """Exchange the records of two places without streams: each safekeeper answered at the other
        place."""
        for name in RECORD:
            mine, theirs = getattr(self, name), getattr(other, name)
            setattr(self, name, theirs)
            setattr(other, name, mine)

    def write_off(self) -> None:
        """It knows of its loss, and gives no vote: its earlier acknowledgements do not count, and
        are not expected again. So it can vote later (rule 9)."""
        self.lose_data()
        self.lost_lsn = 0

    def close(self, reason: str, *, at_once: bool = False) -> list[Action]:
        """Drop the connection. The shell makes a new one, `at_once` or later."""
        return [*self.become_offline(reason), ClosePeer(self.peer, reason, at_once)]

    def become_following(self, start_lsn: int, now_ms: int) -> None:
        """Elected was sent: its log equals ours up to `start_lsn`, where the next byte goes."""
        self.state = PeerState.CATCHING_UP
        self.next_lsn = self.record_end_lsn = self.durable_lsn = start_lsn
        self.sent_commit_lsn = 0
        self.sent_count, self.taken_count, self.wal_count = 1, 0, 0
        self.caught_up_ms = now_ms
        self.donor_retry_ms.clear()

    def maybe_update(self, response: AppendResponse) -> bool:
        """Take an answer. Returns False if it has nothing new."""
        is_news = not self.answered or response.durable_lsn > self.durable_lsn
        is_news = is_news or response.flush_lsn > self.flush_lsn
        is_news = is_news or response.generation > self.generation
        self.answered = True
        self.generation = max(self.generation, response.generation)
        self.feedback = response.feedback
        self.durable_lsn = max(self.durable_lsn, response.durable_lsn)
        self.flush_lsn = max(self.flush_lsn, response.flush_lsn)
        self.commit_lsn = max(self.commit_lsn, response.commit_lsn)
        return is_news
