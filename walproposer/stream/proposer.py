"""The core of one incarnation of the proposer: the proposer's rules of `docs/protocol.md`. Pure.

`step(event) -> list[Action]` is the only mutator. One object is one proposer_uuid and one term;
after a Stop it does nothing. `candidacy.py` wins the term, and `leader.py` does the rest. This file
hands them the events, and checks the primary between the two.

    COLLECTING -> CAMPAIGNING -> CHECKING -> LEADING -> STOPPED
"""

from __future__ import annotations

from enum import Enum
from typing import assert_never

from quorum_wal.consensus.ids import NodeId
from quorum_wal.consensus.membership import Membership, Stamp
from quorum_wal.consensus.messages import (
    PROTOCOL_VERSION,
    AppendResponse,
    ProposerGreeting,
    SafekeeperGreeting,
    SafekeeperMessage,
    VoteResponse,
)
from quorum_wal.consensus.quorum import quorum_lsn
from quorum_wal.pgwal.errors import WalFormatError
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.walproposer.primary.primary import Primary
from quorum_wal.walproposer.stream.candidacy import Candidacy, Candidate
from quorum_wal.walproposer.stream.election import (
    behind_problem,
    choose_donor,
    fenced,
    fork_problem,
    tail_begin_lsn,
)
from quorum_wal.walproposer.stream.events import (
    Action,
    CatchUpLost,
    CatchUpWal,
    ChangeCancelled,
    ChangeRequested,
    ChangeView,
    Event,
    ForgetPeer,
    Joined,
    Left,
    Outcome,
    OutsiderNamed,
    PeerConnected,
    PeerLost,
    PeerMessage,
    RareEvent,
    ReadTail,
    RoundWanted,
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
from quorum_wal.walproposer.stream.leader import Leader, WonTerm
from quorum_wal.walproposer.stream.peer_set import PeerSet
from quorum_wal.walproposer.stream.pending_change import PendingChange
from quorum_wal.walproposer.stream.progress import PeerState, Progress
from quorum_wal.walproposer.stream.tail_check import TailCheck

# More WAL than this in flight is a bulk load, which is pipelined.
SMALL_ROUND_BYTES_MAX = 64 * 1024
# Without a primary: time to inform the other members of what a quorum knows.
TELL_ALL_MS = 500
# A safekeeper that owes an answer for this long is disconnected and tried again.
RESPONSE_TIMEOUT_MS = 10_000


class State(Enum):
    """In order of execution."""

    COLLECTING = "collecting greetings"  #: next: greetings of a quorum of each set
    CAMPAIGNING = "campaigning"  #: next: granted votes of a quorum of each set
    CHECKING = "checking the primary"  #: next: the donor's tail equals the primary's
    LEADING = "leading"  #: until a greater NodeId is seen
    STOPPED = "stopped"


class Proposer:
    """Without a `primary` it completes the log's tail on a quorum, and a change of the members that
    it found or that was requested, and stops (COMPLETED)."""

    def __init__(self, candidacy: Candidacy, primary: Primary | None) -> None:
        self.candidacy = candidacy
        self.primary = primary
        self.state = State.COLLECTING
        self.peer_set = PeerSet(candidacy.addresses, candidacy.learnt)
        self.peers = self.peer_set.places
        self.candidate = Candidate(candidacy, self.peer_set)
        #: From the election on.
        self.leader: Leader | None = None
        #: While it checks the primary.
        self._check: TailCheck | None = None
        self.pending = PendingChange()
        self._quorum_told_ms = 0
        self._now_ms = 0

    # ---- for the shell

    @property
    def node_id(self) -> NodeId | None:
        return self.candidate.node_id

    @property
    def membership(self) -> Membership | None:
        """The current one; before the election the greatest one seen."""
        return self.leader.membership if self.leader is not None else self.candidate.membership

    @property
    def is_in_force(self) -> bool:
        return self.leader is not None and self.leader.is_in_force

    @property
    def change(self) -> ChangeView | None:
        """The change of the members in progress, or the last one."""
        return self.pending.view(self.leader)

    @property
    def _leading(self) -> Leader | None:
        return self.leader if self.state is State.LEADING else None

    def wants_wal(self) -> bool:
        """False while the window is full, or the primary is being checked and has sent its part.
        Then stop reading from the primary, but do answer it."""
        if self.leader is None:
            return True
        if self._check is not None:
            return self._check.wants_wal
        return not self.leader.window.is_full

    @property
    def is_round_small(self) -> bool:
        """A quorum has yet to answer what was sent, and that is little. WAL that the primary sends
        meanwhile should wait for the answer and be sent together (group commit)."""
        leader = self._leading
        if leader is None:
            return False
        return 0 < leader.window.record_end_lsn - leader.commit_lsn < SMALL_ROUND_BYTES_MAX

    @property
    def streams(self) -> bool:
        """The primary's WAL goes to the quorum."""
        return self.state is State.LEADING and self.primary is not None

    @property
    def is_drained(self) -> bool:
        """No received WAL is still being checked, or on its way to a quorum."""
        leader = self._leading
        if leader is None:
            return self.leader is None
        return leader.commit_lsn >= leader.window.record_end_lsn

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
            # The two events of every commit come first, and by type: a class pattern costs five
            # times as much.
            if type(event) is PeerMessage:
                actions = self._peer_message(self.peers[event.peer], event.message)
            elif type(event) is WalReceived:
                actions = self._wal_received(event.begin_lsn, event.wal)
            else:
                actions = self._dispatch(event)
        except WalFormatError as error:
            actions = [Stop(Outcome.REFUSED, f"the primary sent invalid WAL: {error}")]
        for count, action in enumerate(actions, 1):
            if isinstance(action, Stop):
                self.state = State.STOPPED
                return actions[:count]  # it does nothing afterwards
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
                return self._peer_lost(self.peers[peer], reason, lost_data=lost_data)
            case TailRead(wal):
                return self._tail_read(wal)
            case SteadyEnded(steady):
                assert self.leader is not None
                self.leader.take_steady(steady)
                return []
            case RoundWanted():
                return self._leading.rounds.want(self._leading) if self._leading else []
            case Stopping():
                return self._stopping()
            case ChangeRequested() | ChangeCancelled() | Joined() | Left() | OutsiderNamed():
                return self.pending.take(event, self._leading, self.peers)
            case _:
                assert_never(event)

    # ---- connections and greetings

    def _peer_connected(self, progress: Progress) -> list[Action]:
        if not progress.is_open:
            return [ForgetPeer(progress.peer)]  # it was connecting when it was closed
        progress.become_connected(self._now_ms)
        who = self.candidacy
        greeting = ProposerGreeting(PROTOCOL_VERSION, who.timeline, who.server, who.proposer_uuid)
        return [Send(progress.peer, greeting)]

    def _peer_lost(self, progress: Progress, reason: str, *, lost_data: bool) -> list[Action]:
        if lost_data:
            progress.lacks_timeline = True
            if progress.is_member:
                progress.lose_data()
        actions = progress.become_offline(reason)
        if self._leading is not None:
            actions += self._leading.members.go_on(self._leading)
        if self._awaits_tail_of(progress):
            actions.append(Stop(Outcome.RESTART, f"lost the donor while checking: {reason}"))
        return actions

    def _awaits_tail_of(self, progress: Progress) -> bool:
        check, leader = self._check, self.leader
        if check is None or leader is None:
            return False
        return check.awaits_donor and leader.term.donor == progress.peer

    def _peer_message(self, progress: Progress, message: SafekeeperMessage) -> list[Action]:
        progress.last_heard_ms = self._now_ms
        if type(message) is AppendResponse:
            return self._append_response(progress, message)
        if type(message) is VoteResponse and message.promised == self.node_id:
            self.peer_set.note_truncated(message.truncate_lsn)
        match message:
            case SafekeeperGreeting() if progress.state is PeerState.CONNECTED:
                return self._greeting(progress, message)
            case VoteResponse() if progress.state is PeerState.VOTING:
                return self._vote(progress, message)
            case VoteResponse() if progress.state is PeerState.OUTSIDE:
                return []  # it was asked before it was outside
            case SafekeeperGreeting() | VoteResponse():
                if self._is_fenced_by(progress, message.promised):
                    return [self._fenced(progress, message.promised)]
                name = type(message).__name__
                return progress.close(f"unexpected {name} while {progress.state.value}")

    def _greeting(self, progress: Progress, greeting: SafekeeperGreeting) -> list[Action]:
        """Id and instance identify it. Then the candidate or the leader handles its place."""
        leader, theirs = self.leader, greeting.membership
        if self.candidate.contradicts(theirs):
            return progress.close(f"it has other members than ours, with the same {theirs.stamp}")
        if not self.peer_set.greeted(progress, greeting):
            reason = f"safekeeper {greeting.safekeeper_id} answers at another address"
            return self.peer_set.forget(progress, reason)
        actions = self.candidate.hear(theirs) if leader is None else []
        if leader is not None:
            self.peer_set.assign(leader.membership, leader.members.learners)
        if self._is_another_disk(progress):
            return actions + progress.close(
                f"safekeeper {progress.safekeeper_id} lost its data: it has another data directory "
                f"({greeting.instance.hex()})"
            )
        if self._is_fenced_by(progress, greeting.promised):
            return [*actions, self._fenced(progress, greeting.promised)]
        if leader is None:
            return actions + self._campaign()
        return actions + leader.members.greeted(leader, progress)

    def _is_another_disk(self, progress: Progress) -> bool:
        """A1: a member's id alone is not enough."""
        membership = self.membership
        ids = membership.all_members if membership is not None else ()
        return progress.safekeeper_id in ids and not progress.is_member

    # ---- campaign

    def _campaign(self) -> list[Action]:
        actions = self.candidate.ask()
        if self.state is State.COLLECTING and self.node_id is not None:
            self.state = State.CAMPAIGNING
        return actions + self._maybe_elected()

    def _vote(self, progress: Progress, vote: VoteResponse) -> list[Action]:
        if self._is_fenced_by(progress, vote.promised):
            return [self._fenced(progress, vote.promised)]
        if not vote.granted and vote.membership.stamp > progress.asked:
            return self._refused_for(progress, vote.membership)
        if vote.promised != self.node_id:
            return self._promised_another(progress, vote.promised)
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
        return self._leading.follow(progress) if self._leading is not None else []

    def _refused_for(self, progress: Progress, theirs: Membership) -> list[Action]:
        """V2: it has a greater membership than the request. Before the election we adopt it. After
        it, only a greater NodeId's membership is greater."""
        progress.state = PeerState.GREETED
        leader = self.leader
        if leader is None:
            return self.candidate.hear(theirs) + self._campaign()
        if theirs.stamp <= leader.membership.stamp:
            return leader.seat()  # asks it again
        if progress.is_member:
            return [fenced(leader.term.node_id, theirs.stamp.author, None)]
        return self._promised_another(progress, theirs.stamp.author)

    def _promised_another(self, progress: Progress, promised: NodeId) -> list[Action]:
        leader = self.leader
        if leader is not None and progress.is_learner and promised > leader.term.node_id:
            return leader.members.promised_more(leader, progress, promised)
        return progress.close(f"vote refused in favor of {promised}")

    def _maybe_elected(self) -> list[Action]:
        """Rule 2: a quorum of grants elects; the donor's whole log is the log from now on. The
        membership gets a new stamp (M2)."""
        candidate = self.candidate
        if self.state is not State.CAMPAIGNING or not candidate.is_elected:
            return []
        assert candidate.node_id is not None
        assert candidate.membership is not None
        votes, node_id = candidate.votes, candidate.node_id
        donor = choose_donor(votes)
        vote = votes[donor]
        if self.primary is not None:
            problem = fork_problem(self.primary, vote)
            if problem is not None:
                return [problem]
        term = WonTerm(
            node_id=node_id,
            server=self.candidacy.server,
            donor=donor,
            donor_id=self.peers[donor].safekeeper_id or 0,
            timeline_start_lsn=vote.timeline_start_lsn,
            term_start_lsn=vote.flush_lsn,
            term_history=vote.term_history.extended(node_id, vote.flush_lsn),
            tli_history=self.primary.tli_history if self.primary else vote.tli_history,
        )
        membership = candidate.membership.stamped(Stamp(node_id, candidate.membership.generation))
        self.leader = Leader(term, membership, self.peer_set, self._now_ms, self.candidacy.chains)
        return self._start_checking(vote) if self.primary is not None else self._lead()

    # ---- the check of the primary

    def _start_checking(self, vote: VoteResponse) -> list[Action]:
        assert self.leader is not None
        assert self.primary is not None
        self.state = State.CHECKING
        check = self._check = TailCheck(tail_begin_lsn(self.primary, vote), vote.flush_lsn)
        start = StartUpstream(check.begin_lsn)
        if not check.awaits_donor:
            return [start, *self._maybe_checked()]
        return [ReadTail(self.leader.term.donor, check.begin_lsn, check.end_lsn), start]

    def _upstream_started(self, flush_lsn: int) -> list[Action]:
        assert self.leader is not None
        problem = behind_problem(flush_lsn, self.leader.term.term_start_lsn)
        return [problem] if problem is not None else []

    def _wal_received(self, begin_lsn: int, wal: bytes) -> list[Action]:
        assert self.leader is not None
        if self._check is None:
            return self.leader.wal_received(begin_lsn, wal)
        self._check.take_wal(begin_lsn, wal)
        return self._maybe_checked()

    def _tail_read(self, wal: bytes) -> list[Action]:
        assert self._check is not None
        self._check.take_donor(wal)
        return self._maybe_checked()

    def _maybe_checked(self) -> list[Action]:
        """Rule 3: the last bytes below the term's start must be equal on both sides."""
        assert self._check is not None
        result = self._check.result()
        if result is None:
            return []
        if isinstance(result, Stop):
            return [result]
        self._check = None
        assert self.leader is not None
        return self._lead() + self.leader.wal_received(self.leader.term.term_start_lsn, result)

    # ---- leading

    def _lead(self) -> list[Action]:
        assert self.leader is not None
        self.state = State.LEADING
        return self.leader.begin() + self.pending.begin(self.leader)

    def _append_response(self, progress: Progress, response: AppendResponse) -> list[Action]:
        if response.node_id != self.node_id or not progress.is_following:
            return self._unexpected_response(progress, response.node_id)
        leader = self.leader
        assert leader is not None
        if response.generation > leader.membership.generation:
            return progress.close(
                f"safekeeper {progress.safekeeper_id} answered at membership generation "
                f"{response.generation}, expected at most {leader.membership.generation}"
            )
        actions = leader.append_response(progress, response)
        return actions if self.primary is not None else actions + self._maybe_completed()

    def _unexpected_response(self, progress: Progress, promised: NodeId) -> list[Action]:
        if self._is_fenced_by(progress, promised):
            return [self._fenced(progress, promised)]
        if progress.state is PeerState.OUTSIDE:
            return []  # an answer to a message that it got as a member
        leader = self.leader
        if leader is not None and progress.is_learner and promised > leader.term.node_id:
            return leader.members.promised_more(leader, progress, promised)
        return progress.close(f"unexpected append response of {promised}")

    def _maybe_completed(self) -> list[Action]:
        """Without a primary: complete when a quorum has been told that the whole log is committed,
        and the others too if possible, because a standby may be streaming from any of them; and
        when the change of the members is complete."""
        leader = self.leader
        assert leader is not None
        term_start_lsn = leader.term.term_start_lsn
        told = {p.safekeeper_id or 0: p.commit_lsn for p in self.peers if p.is_member}
        if not self.commit_lsn >= term_start_lsn <= quorum_lsn(leader.membership, told):
            return leader.spread_commit()
        if self.pending.request is not None or leader.members.is_changing:
            return leader.spread_commit()
        self._quorum_told_ms = self._quorum_told_ms or self._now_ms
        are_all_told = all(told.get(i, 0) >= term_start_lsn for i in leader.membership.all_members)
        if not are_all_told and self._now_ms - self._quorum_told_ms < TELL_ALL_MS:
            return leader.spread_commit()
        return [Stop(Outcome.COMPLETED, f"the log ends at {format_lsn(term_start_lsn)}")]

    def _tick(self, now_ms: int) -> list[Action]:
        self._now_ms = now_ms
        actions: list[Action] = []
        for progress in self.peers:
            if progress.awaits_answer and now_ms - progress.last_heard_ms > RESPONSE_TIMEOUT_MS:
                actions += progress.close(f"no answer for {RESPONSE_TIMEOUT_MS} ms")
        actions += self.leader.reach() if self.leader is not None else self.candidate.reach()
        if self._leading is not None:
            actions += self._leading.tick(now_ms) + self.pending.begin(self._leading)
            if self.primary is None:
                actions += self._maybe_completed()
        return actions

    def _stopping(self) -> list[Action]:
        """The last messages: they allow replicas to read what a stopping primary wrote last."""
        leader, self.state = self._leading, State.STOPPED
        return leader.spread_commit() if leader is not None else []

    def _is_fenced_by(self, progress: Progress, promised: NodeId) -> bool:
        """Rule 1: the first greater NodeId that is seen, in any message, ends this proposer. Rule
        11: only from a member."""
        ours = self.candidate.ours
        return progress.is_member and ours is not None and promised > ours

    def _fenced(self, progress: Progress, promised: NodeId) -> Stop:
        ours = self.candidate.ours
        assert ours is not None
        return fenced(ours, promised, progress.safekeeper_id)
