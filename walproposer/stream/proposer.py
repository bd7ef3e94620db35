"""The core of one incarnation of the proposer: the proposer's rules of `docs/protocol.md`. Pure.

`step(event) -> list[Action]` is the only mutator. One object is one proposer_uuid and one term;
after a Stop it never speaks again. This file wins the term; `leader.py` is what follows.

    COLLECTING -> CAMPAIGNING -> CHECKING -> LEADING -> STOPPED
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import assert_never

from consensus.ids import NodeId, TimelineId
from consensus.membership import Membership
from consensus.messages import (
    PROTOCOL_VERSION,
    AppendResponse,
    ProposerGreeting,
    SafekeeperGreeting,
    SafekeeperMessage,
    ServerFacts,
    VoteRequest,
    VoteResponse,
)
from consensus.quorum import has_quorum, quorum_lsn
from pgwal.errors import WalFormatError
from pgwal.lsn import format_lsn
from walproposer.primary.primary import Primary
from walproposer.stream.election import (
    behind_problem,
    choose_donor,
    fork_problem,
    tail_begin_lsn,
    tail_problem,
)
from walproposer.stream.events import (
    Action,
    CatchUpLost,
    CatchUpWal,
    Event,
    Outcome,
    PeerConnected,
    PeerLost,
    PeerMessage,
    RareEvent,
    ReadTail,
    Send,
    StartUpstream,
    SteadyEnded,
    Stop,
    Stopping,
    TailRead,
    Tick,
    UpstreamStarted,
    WalReceived,
)
from walproposer.stream.leader import Leader, WonTerm
from walproposer.stream.progress import PeerState, Progress

# More WAL than this on its way is a bulk load, which is pipelined.
SMALL_ROUND_BYTES_MAX = 64 * 1024
# Without a primary: how long the rest may take to hear what a quorum has heard.
TELL_ALL_MS = 500
# A safekeeper that owes an answer for so long is disconnected and tried again.
RESPONSE_TIMEOUT_MS = 10_000


class State(Enum):
    """In order of execution."""

    COLLECTING = "collecting greetings"  #: a quorum of greetings moves it on
    CAMPAIGNING = "campaigning"  #: a quorum of granted votes moves it on
    CHECKING = "checking the primary"  #: the donor's tail equal to the primary's moves it on
    LEADING = "leading"  #: until a greater NodeId is seen
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Candidacy:
    """What an incarnation is made with.

    `predecessor` is the NodeId of the incarnation before it in the same process: whoever was
    promised more since then took over, and this one gives way instead of taking it back.
    """

    timeline: TimelineId
    server: ServerFacts
    membership: Membership
    proposer_uuid: bytes
    peers_count: int
    predecessor: NodeId | None = None


class Proposer:
    """Without a `primary` it completes the log's tail on a quorum and stops (COMPLETED)."""

    def __init__(self, candidacy: Candidacy, primary: Primary | None) -> None:
        self.candidacy = candidacy
        self.membership = candidacy.membership
        self.primary = primary
        self.state = State.COLLECTING
        self.node_id: NodeId | None = None
        self.peers = [Progress(peer) for peer in range(candidacy.peers_count)]
        #: From the election on.
        self.leader: Leader | None = None
        self._tail_begin_lsn = 0
        #: From _tail_begin_lsn on, as far as it came before the check was passed.
        self._primary_wal = bytearray()
        self._donor_tail: bytes | None = None
        self._quorum_told_ms = 0
        self._now_ms = 0

    # ---- what the shell may ask

    def wants_wal(self) -> bool:
        """False while the window is full, or the primary is being checked and has sent its part:
        stop reading from it (not answering it)."""
        if self.leader is None:
            return True
        if self.state is State.CHECKING:
            kept_lsn = self._tail_begin_lsn + len(self._primary_wal)
            return kept_lsn < self.leader.term.term_start_lsn
        return not self.leader.window.is_full

    @property
    def is_round_small(self) -> bool:
        """A quorum has yet to answer what was sent, and that is little: what the primary sends
        meanwhile had better wait for the answer and travel together (group commit)."""
        leader = self.leader
        if leader is None or self.state is not State.LEADING:
            return False
        return 0 < leader.window.record_end_lsn - leader.commit_lsn < SMALL_ROUND_BYTES_MAX

    @property
    def streams(self) -> bool:
        """The primary's WAL goes to the quorum."""
        return self.state is State.LEADING and self.primary is not None

    @property
    def is_drained(self) -> bool:
        """Nothing that came is still being checked, or on its way to a quorum."""
        leader = self.leader
        if leader is None:
            return True
        return self.state is State.LEADING and leader.commit_lsn >= leader.window.record_end_lsn

    @property
    def quorum_is_connected(self) -> bool:
        return self.leader is not None and self.leader.quorum_is_connected

    def wants_catch_up(self, peer: int) -> bool:
        """False while the peer has enough in flight: stop reading from its donor."""
        return self.peers[peer].has_room

    @property
    def commit_lsn(self) -> int:
        return self.leader.commit_lsn if self.leader is not None else 0

    # ---- the only mutator

    def step(self, event: Event) -> list[Action]:
        if self.state is State.STOPPED:
            return []
        try:
            # The two of every commit come first, and by their type: a class pattern costs five
            # times as much.
            if type(event) is PeerMessage:
                actions = self._peer_message(self.peers[event.peer], event.message)
            elif type(event) is WalReceived:
                actions = self._wal_received(event.begin_lsn, event.wal)
            else:
                actions = self._dispatch(event)
        except WalFormatError as error:
            actions = [Stop(Outcome.REFUSED, f"the primary sent what cannot be WAL: {error}")]
        for count, action in enumerate(actions, 1):
            if isinstance(action, Stop):
                self.state = State.STOPPED
                return actions[:count]  # it never speaks again
        return actions

    def _dispatch(self, event: RareEvent) -> list[Action]:
        match event:
            case UpstreamStarted(flush_lsn):
                return self._upstream_started(flush_lsn)
            case Tick(now_ms):
                return self._tick(now_ms)
            case CatchUpWal(peer, begin_lsn, wal):
                assert self.leader is not None
                return self.leader.catch_up_wal(self.peers[peer], begin_lsn, wal)
            case CatchUpLost(peer):
                assert self.leader is not None
                return self.leader.catch_up_lost(self.peers[peer], event)
            case PeerConnected(peer):
                return self._peer_connected(self.peers[peer])
            case PeerLost(peer, reason, lost_data):
                if lost_data:
                    self.peers[peer].lose_data()
                return self._peer_lost(self.peers[peer], reason)
            case TailRead(wal):
                self._donor_tail = wal
                return self._check_tail()
            case SteadyEnded(steady):
                assert self.leader is not None
                self.leader.take_steady(steady)
                return []
            case Stopping():
                return self._stopping()
            case _:
                assert_never(event)

    # ---- connections and greetings

    def _peer_connected(self, progress: Progress) -> list[Action]:
        progress.become_connected(self._now_ms)
        candidacy = self.candidacy
        greeting = ProposerGreeting(
            protocol_version=PROTOCOL_VERSION,
            timeline=candidacy.timeline,
            server=candidacy.server,
            proposer_uuid=candidacy.proposer_uuid,
            membership=self.membership,
        )
        return [Send(progress.peer, greeting)]

    def _peer_lost(self, progress: Progress, reason: str) -> list[Action]:
        actions = progress.become_offline(reason)
        if self._awaits_tail_of(progress):
            actions.append(Stop(Outcome.RESTART, f"lost the donor while checking: {reason}"))
        return actions

    def _awaits_tail_of(self, progress: Progress) -> bool:
        return (
            self.state is State.CHECKING
            and self._donor_tail is None
            and self.leader is not None
            and self.leader.term.donor == progress.peer
        )

    def _peer_message(self, progress: Progress, message: SafekeeperMessage) -> list[Action]:
        progress.last_heard_ms = self._now_ms
        if type(message) is AppendResponse:
            return self._append_response(progress, message)
        if self._is_fenced_by(message.promised):
            if isinstance(message, SafekeeperGreeting):
                return [self._fenced(message.promised, message.safekeeper_id)]
            return [self._fenced(message.promised, progress.safekeeper_id)]
        match message:
            case SafekeeperGreeting() if progress.state is PeerState.CONNECTED:
                return self._greeting(progress, message)
            case VoteResponse() if progress.state is PeerState.VOTING:
                return self._vote(progress, message)
            case _:
                name = type(message).__name__
                return progress.close(f"unexpected {name} while {progress.state.value}")

    def _greeting(self, progress: Progress, greeting: SafekeeperGreeting) -> list[Action]:
        problem = self._greeting_problem(progress, greeting)
        if problem:
            return progress.close(problem)
        progress.safekeeper_id = greeting.safekeeper_id
        progress.promised = greeting.promised
        progress.state = PeerState.GREETED
        if self.state is State.COLLECTING:
            return self._maybe_campaign()
        return [self._request_vote(progress)]

    def _greeting_problem(self, progress: Progress, greeting: SafekeeperGreeting) -> str:
        member, theirs, ours = greeting.safekeeper_id, greeting.membership, self.membership
        if member not in ours.all_members or theirs != ours:
            return (
                f"safekeeper {member} has members {theirs.all_members} of generation "
                f"{theirs.generation}, expected {ours.all_members} of {ours.generation}"
            )
        if progress.safekeeper_id not in (None, member):
            return f"this address was safekeeper {progress.safekeeper_id}, now it is {member}"
        if any(p.safekeeper_id == member for p in self.peers if p is not progress):
            return f"two safekeepers have the id {member}"
        return ""

    # ---- campaign

    def _maybe_campaign(self) -> list[Action]:
        """Rule 1: the greatest term in a quorum of greetings, plus one, chosen once."""
        greeted = [p for p in self.peers if p.state is PeerState.GREETED]
        if not has_quorum(self.membership, {p.safekeeper_id or 0 for p in greeted}):
            return []
        term = max(p.promised.term for p in greeted) + 1
        self.node_id = NodeId(term, self.candidacy.proposer_uuid)
        self.state = State.CAMPAIGNING
        return [self._request_vote(progress) for progress in greeted]

    def _request_vote(self, progress: Progress) -> Send:
        assert self.node_id is not None
        progress.state = PeerState.VOTING
        return Send(progress.peer, VoteRequest(self.membership.generation, self.node_id))

    def _vote(self, progress: Progress, vote: VoteResponse) -> list[Action]:
        assert self.node_id is not None
        assert progress.safekeeper_id is not None
        if vote.generation != self.membership.generation:
            return self._wrong_generation(progress, vote.generation)
        if vote.promised != self.node_id:
            return progress.close(f"vote refused in favour of {vote.promised}")
        if not vote.granted:
            progress.write_off()
        acknowledged_lsn = max(progress.flush_lsn, progress.lost_lsn)
        if vote.flush_lsn < acknowledged_lsn:
            progress.lose_data()
            return progress.close(
                f"safekeeper {progress.safekeeper_id} lost data: its log ends at "
                f"{format_lsn(vote.flush_lsn)}, it had acknowledged "
                f"{format_lsn(acknowledged_lsn)}"
            )
        progress.has_lost_data = False
        progress.vote = vote
        progress.state = PeerState.VOTED
        if self.state is State.CAMPAIGNING:
            return self._maybe_elected()
        if self.state is State.LEADING:
            assert self.leader is not None
            return self.leader.follow(progress)
        return []

    def _maybe_elected(self) -> list[Action]:
        """Rule 2: a quorum of grants elects; the donor's log, whole, is the log from now on."""
        assert self.node_id is not None
        votes = {p.peer: p.vote for p in self.peers if p.vote is not None and p.vote.granted}
        if not has_quorum(self.membership, {self.peers[i].safekeeper_id or 0 for i in votes}):
            return []
        donor = choose_donor(votes)
        vote = votes[donor]
        if self.primary is not None:
            problem = fork_problem(self.primary, vote)
            if problem is not None:
                return [problem]
        term = WonTerm(
            node_id=self.node_id,
            server=self.candidacy.server,
            membership=self.membership,
            donor=donor,
            timeline_start_lsn=vote.timeline_start_lsn,
            term_start_lsn=vote.flush_lsn,
            term_history=vote.term_history.extended(self.node_id, vote.flush_lsn),
            tli_history=self.primary.tli_history if self.primary else vote.tli_history,
        )
        truncate_lsn = max(v.truncate_lsn for v in votes.values())
        self.leader = Leader(term, self.peers, truncate_lsn, self._now_ms)
        return self._start_checking(vote) if self.primary is not None else self._lead()

    # ---- the check of the primary

    def _start_checking(self, vote: VoteResponse) -> list[Action]:
        assert self.leader is not None
        assert self.primary is not None
        self.state = State.CHECKING
        self._tail_begin_lsn = tail_begin_lsn(self.primary, vote)
        start = StartUpstream(self._tail_begin_lsn)
        if self._tail_begin_lsn == vote.flush_lsn:
            self._donor_tail = b""
            return [start, *self._check_tail()]
        return [ReadTail(self.leader.term.donor, self._tail_begin_lsn, vote.flush_lsn), start]

    def _upstream_started(self, flush_lsn: int) -> list[Action]:
        assert self.leader is not None
        problem = behind_problem(flush_lsn, self.leader.term.term_start_lsn)
        return [problem] if problem is not None else []

    def _wal_received(self, begin_lsn: int, wal: bytes) -> list[Action]:
        """Until the primary has passed its check, its WAL is only kept."""
        assert self.leader is not None
        if self.state is State.LEADING:
            return self.leader.wal_received(begin_lsn, wal)
        assert begin_lsn == self._tail_begin_lsn + len(self._primary_wal)
        self._primary_wal += wal
        return self._check_tail()

    def _check_tail(self) -> list[Action]:
        """Rule 3: the last bytes below the term's start must be the same on both sides."""
        assert self.leader is not None
        term_start_lsn = self.leader.term.term_start_lsn
        tail_bytes = term_start_lsn - self._tail_begin_lsn
        if self._donor_tail is None or len(self._primary_wal) < tail_bytes:
            return []
        if len(self._donor_tail) != tail_bytes:
            return [Stop(Outcome.RESTART, "the donor's tail came short")]
        ours, wal = bytes(self._primary_wal[:tail_bytes]), bytes(self._primary_wal[tail_bytes:])
        problem = tail_problem(self._tail_begin_lsn, ours, self._donor_tail)
        if problem is not None:
            return [problem]
        self._donor_tail, self._primary_wal = b"", bytearray()
        actions = self._lead()
        return actions + self.leader.wal_received(term_start_lsn, wal) if wal else actions

    # ---- leading

    def _lead(self) -> list[Action]:
        leader = self.leader
        assert leader is not None
        self.state = State.LEADING
        voted = [p for p in self.peers if p.state is PeerState.VOTED]
        # The donor first: the others' missing tail can then be read from it.
        voted.sort(key=lambda p: p.peer != leader.term.donor)
        return [action for progress in voted for action in leader.follow(progress)]

    def _append_response(self, progress: Progress, response: AppendResponse) -> list[Action]:
        if response.node_id != self.node_id or not progress.is_following:
            if self._is_fenced_by(response.node_id):
                return [self._fenced(response.node_id, progress.safekeeper_id)]
            return progress.close(f"unexpected append response of {response.node_id}")
        if response.generation != self.membership.generation:
            return self._wrong_generation(progress, response.generation)
        assert self.leader is not None
        actions = self.leader.append_response(progress, response)
        return actions if self.primary is not None else actions + self._maybe_completed()

    def _maybe_completed(self) -> list[Action]:
        """Without a primary: done when a quorum has been told that the whole log is committed, and
        the others too if they can be: a standby may be streaming from any of them."""
        assert self.leader is not None
        term_start_lsn = self.leader.term.term_start_lsn
        told = {p.safekeeper_id: p.commit_lsn for p in self.peers if p.safekeeper_id}
        if not self.commit_lsn >= term_start_lsn <= quorum_lsn(self.membership, told):
            return self.leader.spread_commit()
        self._quorum_told_ms = self._quorum_told_ms or self._now_ms
        are_all_told = all(p.commit_lsn >= term_start_lsn for p in self.peers)
        if not are_all_told and self._now_ms - self._quorum_told_ms < TELL_ALL_MS:
            return self.leader.spread_commit()
        return [Stop(Outcome.COMPLETED, f"the log ends at {format_lsn(term_start_lsn)}")]

    def _tick(self, now_ms: int) -> list[Action]:
        self._now_ms = now_ms
        actions: list[Action] = []
        for progress in self.peers:
            if progress.awaits_answer and now_ms - progress.last_heard_ms > RESPONSE_TIMEOUT_MS:
                actions += progress.close(f"no answer for {RESPONSE_TIMEOUT_MS} ms")
        if self.state is State.LEADING:
            assert self.leader is not None
            actions += self.leader.tick(now_ms)
            if self.primary is None:
                actions += self._maybe_completed()
        return actions

    def _stopping(self) -> list[Action]:
        """Its last words: what a stopping primary wrote last, replicas may read."""
        is_leading, self.state = self.state is State.LEADING, State.STOPPED
        return self.leader.spread_commit() if is_leading and self.leader is not None else []

    def _wrong_generation(self, progress: Progress, generation: int) -> list[Action]:
        return progress.close(
            f"safekeeper {progress.safekeeper_id} answered at membership generation {generation}, "
            f"expected {self.membership.generation}"
        )

    def _is_fenced_by(self, promised: NodeId) -> bool:
        """Rule 1: the first greater NodeId that is seen, in whatever message, ends it."""
        ours = self.node_id or self.candidacy.predecessor
        return ours is not None and promised > ours

    def _fenced(self, promised: NodeId, safekeeper_id: int | None) -> Stop:
        ours = self.node_id or self.candidacy.predecessor
        who = "a safekeeper" if safekeeper_id is None else f"safekeeper {safekeeper_id}"
        return Stop(
            Outcome.FENCED,
            f"{who} has promised {promised}, greater than our {ours}",
            "Another proposer took over this timeline. Its primary is the one to use; 'sk status' "
            "shows it.",
        )
