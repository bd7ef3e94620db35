"""The proposer after its election: sends WAL to the safekeepers, counts answers, commits. Pure; no
I/O.

A part of the core in `proposer.py`, which hands it the events of a won term. WAL above
term_start_lsn comes from the primary through the window. WAL below the window that a safekeeper
lacks comes from a donor, another safekeeper.

Invariants: commit_lsn never decreases, and is either 0 or at least term_start_lsn. A peer that does
not follow is sent nothing. Only positions of members count for a commit (C1). For the members, and
changes of them, see `members.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quorum_wal.consensus.errors import HistoryError
from quorum_wal.consensus.ids import NodeId
from quorum_wal.consensus.membership import Membership
from quorum_wal.consensus.messages import Append, AppendResponse, Configure, Elected, ServerFacts
from quorum_wal.consensus.quorum import committed_lsn, has_quorum, quorum_lsn
from quorum_wal.consensus.term_history import TermHistory, highest_common_point
from quorum_wal.pgwal.boundary import BoundaryFinder
from quorum_wal.pgwal.errors import WalFormatError
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.walproposer.chain_rule import NO_CHAINS, ChainRule
from quorum_wal.walproposer.stream.chains import Chains
from quorum_wal.walproposer.stream.events import (
    Action,
    CatchUpLost,
    Outcome,
    ReportFlushed,
    Send,
    StartCatchUp,
    Stop,
    StopCatchUp,
)
from quorum_wal.walproposer.stream.members import Members
from quorum_wal.walproposer.stream.peer_set import PeerSet
from quorum_wal.walproposer.stream.progress import PeerState, Progress
from quorum_wal.walproposer.stream.rounds import Rounds, count_answer
from quorum_wal.walproposer.stream.wal_window import WalWindow, cut, joined

if TYPE_CHECKING:
    from quorum_wal.walproposer.stream.steady_leader import SteadyLeader

# An idle connection gets a heartbeat at this interval. The answer proves that the safekeeper is
# alive.
HEARTBEAT_MS = 1000
# A donor that could not be read is tried again after the first time. One that has removed the WAL
# is tried again after the second: it may have got an archive since.
DONOR_RETRY_MS = 500
REMOVED_RETRY_MS = 10_000
# States of a peer that does not follow yet.
WAITING = (PeerState.GREETED, PeerState.VOTING, PeerState.VOTED)


@dataclass(frozen=True, slots=True)
class WonTerm:
    """The result of the election. `donor` is the place, `donor_id` the safekeeper whose whole log
    is the log."""

    node_id: NodeId
    server: ServerFacts
    donor: int
    donor_id: int
    timeline_start_lsn: int
    term_start_lsn: int
    term_history: TermHistory
    tli_history: TimelineHistory


class Leader:
    """`peer_set` is shared with the proposer, which moves its places up to VOTED.

    `membership` is the current one (law): stamped by this leader, and used for counting from the
    moment when it is written.
    """

    def __init__(
        self,
        term: WonTerm,
        membership: Membership,
        peer_set: PeerSet,
        now_ms: int,
        chain_rule: ChainRule = NO_CHAINS,
    ) -> None:
        self.term = term
        self.membership = membership
        self.peer_set = peer_set
        self.peers = peer_set.places
        self.members = Members()
        self.chains = Chains(chain_rule)
        self.rounds = Rounds()
        self.commit_lsn = 0
        self.truncate_lsn = 0
        self.window = WalWindow(term.term_start_lsn)
        #: Finds the ends of records in the WAL that goes into the window.
        self.boundary = self._boundary_finder(term.term_start_lsn)
        self._last_append: Append | None = None
        self.now_ms = now_ms

    def _boundary_finder(self, start_lsn: int) -> BoundaryFinder:
        server = self.term.server
        return BoundaryFinder(
            start_lsn, wal_seg_size=server.wal_seg_size, version_major=server.pg_major
        )

    @property
    def quorum_is_connected(self) -> bool:
        return has_quorum(self.membership, self.ids_of(p for p in self.peers if p.can_confirm))

    # ---- the membership

    def ids_of(self, places: Iterable[Progress]) -> set[int]:
        """The ids of the members among them: others do not count (C1)."""
        return {p.safekeeper_id or 0 for p in places if p.is_member}

    @property
    def flush_lsns(self) -> dict[int, int]:
        """By member; 0 if it has not answered under this NodeId."""
        return {p.safekeeper_id or 0: p.flush_lsn for p in self.peers if p.is_member}

    @property
    def informed_ids(self) -> set[int]:
        """The members that have answered with the current generation."""
        generation = self.membership.generation
        return self.ids_of(p for p in self.peers if p.generation == generation)

    @property
    def is_in_force(self) -> bool:
        return has_quorum(self.membership, self.informed_ids)

    def begin(self) -> list[Action]:
        """The primary has passed its check. The donor comes first: the others can then read the
        tail that they lack from it."""
        actions = self.seat()
        voted = [p for p in self.peers if p.state is PeerState.VOTED]
        voted.sort(key=lambda p: p.peer != self.term.donor)
        for progress in voted:
            actions += self.follow(progress)
        return actions + self.members.begin(self)

    def write(self, membership: Membership) -> list[Action]:
        """Rule 3: the membership counts at once, and is sent to every follower. A commit may be
        due: the set that it waited for may no longer count."""
        assert membership.stamp > self.membership.stamp
        assert membership.stamp.author == self.term.node_id
        self.membership = membership
        actions = self.seat()
        configure = Configure(self.term.node_id, membership)
        for p in self.peers:
            if p.is_following:
                p.sent_count += 1
                actions.append(Send(p.peer, configure))
        return self._advance_commit() + actions

    def seat(self) -> list[Action]:
        """Send nothing more to peers without a seat. Request votes from peers that now have one, to
        follow them."""
        self.peer_set.assign(self.membership, self.members.learners)
        actions: list[Action] = []
        for p in self.peers:
            if p.has_seat and not p.has_left:
                if p.state in (PeerState.GREETED, PeerState.OUTSIDE):
                    actions.append(p.request_vote(self.membership.stamp, self.term.node_id))
            elif p.is_following or p.state in WAITING:
                actions += p.become_outside()
        return actions + self.reach()

    def reach(self) -> list[Action]:
        """Also after a place was lost: its safekeeper may answer at another address."""
        return self.peer_set.reach((*self.membership.roster, *self.members.learners))

    # ---- streaming

    def follow(self, progress: Progress) -> list[Action]:
        """Rule 4: each safekeeper is streamed to from its own highest common point."""
        term, vote = self.term, progress.vote
        assert vote is not None
        try:
            start_lsn = highest_common_point(term.term_history, vote.term_history, vote.flush_lsn)
        except HistoryError as error:
            return progress.close(str(error))
        progress.become_following(start_lsn, self.now_ms)
        elected = Elected(
            node_id=term.node_id,
            start_streaming_at=start_lsn,
            timeline_start_lsn=term.timeline_start_lsn,
            membership=self.membership,
            term_history=term.term_history,
            tli_history=term.tli_history,
        )
        return [Send(progress.peer, elected), *self._feed(progress)]

    def wal_received(self, begin_lsn: int, wal: bytes) -> list[Action]:
        """The next WAL of the primary, from term_start_lsn on, of any length."""
        pieces = cut(begin_lsn, wal)
        return [action for piece in pieces for action in self._take_wal(*piece)]

    def _take_wal(self, begin_lsn: int, wal: bytes) -> list[Action]:
        assert begin_lsn == self.window.end_lsn
        self.boundary.feed(begin_lsn, wal)
        self.window.append(wal, self.boundary.record_end_lsn)
        actions: list[Action] = []
        for p in self.peers:
            if p.state is PeerState.STREAMING and p.next_lsn == begin_lsn and p.has_room:
                actions.append(self._send(p, self._window_append(begin_lsn)))  # its next WAL
            elif p.is_following:
                actions += self._feed(p)
        return actions

    def _feed(self, progress: Progress) -> list[Action]:
        """Send what the peer lacks and has room for: from the window, else through a donor."""
        if progress.state is PeerState.CHAINED:
            return self._tell(progress)
        if progress.next_lsn < self.window.begin_lsn:
            return self._maybe_start_catch_up(progress)
        actions: list[Action] = []
        if progress.catch_up is not None:
            progress.catch_up = progress.donor = None
            actions.append(StopCatchUp(progress.peer))
        progress.state = PeerState.STREAMING
        while progress.next_lsn < self.window.end_lsn and progress.has_room:
            actions.append(self._send(progress, self._window_append(progress.next_lsn)))
        return actions

    def _tell(self, progress: Progress) -> list[Action]:
        """The WAL reaches it another way. Send it the end of the WAL, and the last record
        boundary."""
        window = self.window
        if progress.next_lsn == window.end_lsn:
            return []
        progress.next_lsn = window.end_lsn
        return [self._send(progress, self._append(window.end_lsn, b"", window.record_end_lsn))]

    def _window_append(self, lsn: int) -> Append:
        """Peers at the same position get the same Append object, to encode it once."""
        last = self._last_append
        if (
            last is None
            or last.begin_lsn != lsn
            or last.commit_lsn != self.commit_lsn
            or last.truncate_lsn != self.truncate_lsn
            or last.generation != self.membership.generation
        ):
            chunk = self.window.read(lsn)
            last = self._append(lsn, chunk.wal, chunk.record_end_lsn)
            self._last_append = last
        return last

    def _append(self, begin_lsn: int, wal: bytes, record_end_lsn: int) -> Append:
        return Append(
            self.membership.generation, self.term.node_id, begin_lsn, begin_lsn + len(wal),
            record_end_lsn, self.commit_lsn, self.truncate_lsn, wal,
        )  # fmt: skip

    def _send(self, progress: Progress, append: Append) -> Send:
        assert append.begin_lsn == progress.next_lsn
        progress.sent_count += 1
        if append.wal:
            progress.wal_count = progress.sent_count
        progress.next_lsn = append.end_lsn
        progress.record_end_lsn = max(progress.record_end_lsn, append.record_end_lsn)
        progress.sent_commit_lsn = append.commit_lsn
        progress.last_sent_ms = self.now_ms
        return Send(progress.peer, append)

    def append_response(self, progress: Progress, response: AppendResponse) -> list[Action]:
        """The hot path back. The report to the primary comes first, because clients wait for it."""
        progress.answered_ms = self.now_ms
        count_answer(progress, response.durable_lsn)
        actions = self.rounds.heard(self, progress, response.durable_lsn)
        if not progress.maybe_update(response):
            return actions
        if progress.flush_lsn >= self.window.record_end_lsn:
            progress.caught_up_ms = self.now_ms
        if response.flush_lsn > self.commit_lsn:
            actions = self._advance_commit() + actions
        if self.window.exceeds_limits:
            self.window.trim(self._quorum_durable_lsn())
        if progress.state is not PeerState.STREAMING or progress.next_lsn < self.window.end_lsn:
            actions += self._feed(progress)
        return actions + self.members.go_on(self) if self.members.is_changing else actions

    def take_steady(self, steady: SteadyLeader) -> None:
        """The messages of the steady path, which has reported each commit itself."""
        if steady.wal:
            self.boundary.advance_to(steady.next_lsn)
            for wal in joined(steady.wal):
                self.window.append(wal, self.window.end_lsn + len(wal))
        assert self.window.end_lsn == steady.next_lsn
        self.commit_lsn = steady.commit_lsn
        for p in self.peers:
            if not steady.follows[p.peer]:
                continue
            if steady.wal:
                p.next_lsn = p.record_end_lsn = steady.next_lsn
                p.sent_commit_lsn = steady.sent_commit_lsn
                p.last_sent_ms = self.now_ms
                p.sent_count += len(steady.wal)
                if p.state is not PeerState.CHAINED:  # it gets the position without the WAL
                    p.wal_count = p.sent_count
            if steady.has_answered[p.peer]:
                p.last_heard_ms = p.answered_ms = self.now_ms
                p.generation = self.membership.generation
                p.flush_lsn = steady.flush_lsns[p.peer]
                p.durable_lsn = steady.durable_lsns[p.peer]
                p.commit_lsn = steady.commit_lsns[p.peer]
                p.taken_count = steady.taken_counts[p.peer]
            if steady.has_caught_up[p.peer]:
                p.caught_up_ms = self.now_ms

    def _advance_commit(self) -> list[Action]:
        """Rule 5, over each set (C1). A member that is offline now still has what it flushed."""
        lsn = committed_lsn(self.membership, self.flush_lsns, self.term.term_start_lsn)
        if lsn <= self.commit_lsn:
            return []
        self.commit_lsn = lsn
        return [ReportFlushed(lsn)]

    def _quorum_durable_lsn(self) -> int:
        durable = {
            p.safekeeper_id or 0: p.durable_lsn for p in self.peers if p.is_member and p.answered
        }
        return quorum_lsn(self.membership, durable)

    def _advance_truncate(self) -> None:
        """R1: the position that all members of both sets have flushed, which have answered with the
        current generation, and all learners. Nothing waits for it, so it is computed on ticks."""
        flush_lsns, informed = self.flush_lsns, self.informed_ids
        slowest_lsn = min(
            flush_lsns[member] if member in informed else 0
            for member in self.membership.all_members
        )
        slowest_lsn = min(slowest_lsn, self.members.held_lsn(self))
        self.truncate_lsn = max(self.truncate_lsn, min(slowest_lsn, self.commit_lsn))
        self.peer_set.note_truncated(self.truncate_lsn)

    # ---- catch-up

    def _maybe_start_catch_up(self, progress: Progress) -> list[Action]:
        """Rule 7: the WAL below the window comes from a donor, not from the primary.

        A BoundaryFinder must begin on a boundary. So a peer that fell out of the window inside a
        record starts over from its last complete record, on a new connection.
        """
        if progress.catch_up is None and progress.is_inside_record:
            return progress.close("fell below the window inside a record")
        if progress.state is PeerState.STREAMING:
            progress.state = PeerState.CATCHING_UP
        if progress.catch_up is not None or not progress.has_room:
            return []
        donor = self._choose_donor(progress)
        if donor is None:
            return []
        progress.donor = donor
        progress.catch_up = self._boundary_finder(progress.next_lsn)
        return [StartCatchUp(progress.peer, donor, progress.next_lsn)]

    def _choose_donor(self, progress: Progress) -> int | None:
        """The donor with the longest log, of those that may be asked now."""
        retry_ms = progress.donor_retry_ms
        ends = {
            peer: end_lsn
            for peer, end_lsn in self._donors(progress).items()
            if self.now_ms >= retry_ms.get(peer, 0)
        }
        return max(ends, key=lambda peer: (ends[peer], -peer), default=None)

    def _donors(self, progress: Progress) -> dict[int, int]:
        """The peers whose log is certainly ours beyond this peer's, and where it ends.

        The election's donor counts from its vote on, unless it lost what it had then. Any other
        peer counts only after an answer under our NodeId: before that, it might still have a
        diverged tail.
        """
        ends = {p.peer: p.flush_lsn for p in self.peers if p.is_following and p.answered}
        for p in self.peers:
            if p.safekeeper_id == self.term.donor_id and p.is_following and not p.is_voteless:
                ends[p.peer] = max(ends.get(p.peer, 0), self.term.term_start_lsn)
        ends.pop(progress.peer, None)
        return {peer: end_lsn for peer, end_lsn in ends.items() if end_lsn > progress.next_lsn}

    def catch_up_wal(self, progress: Progress, begin_lsn: int, wal: bytes) -> list[Action]:
        if progress.catch_up is None:
            return []  # sent before our StopCatchUp arrived
        if begin_lsn != progress.next_lsn:
            return progress.close(
                f"donor sent {format_lsn(begin_lsn)}, expected {format_lsn(progress.next_lsn)}"
            )
        actions: list[Action] = []
        for piece_lsn, piece in cut(begin_lsn, wal):
            try:
                progress.catch_up.feed(piece_lsn, piece)
            except WalFormatError as error:
                return actions + progress.close(f"its donor sent invalid WAL: {error}")
            record_end_lsn = progress.catch_up.record_end_lsn
            append = self._append(piece_lsn, piece, record_end_lsn)
            actions.append(self._send(progress, append))
        if progress.state is PeerState.LEFT_BEHIND:
            progress.state, progress.error = PeerState.CATCHING_UP, ""
        return actions + self._feed(progress)

    def catch_up_lost(self, progress: Progress, lost: CatchUpLost) -> list[Action]:
        """The next tick looks for another donor. A peer inside a record starts over. A peer whose
        WAL no donor has is left behind, until one has it."""
        donor = progress.donor
        if progress.catch_up is None or donor is None:
            return []
        progress.catch_up = progress.donor = None
        if progress.is_inside_record:
            return progress.close(f"lost its donor inside a record: {lost.reason}")
        wait_ms = REMOVED_RETRY_MS if lost.is_removed else DONOR_RETRY_MS
        progress.donor_retry_ms[donor] = self.now_ms + wait_ms
        if lost.is_removed and self._choose_donor(progress) is None:
            progress.state = PeerState.LEFT_BEHIND
            progress.error = (
                f"left behind: no safekeeper has WAL from {format_lsn(progress.next_lsn)} on: "
                f"{lost.reason}"
            )
        return []

    # ---- time

    def tick(self, now_ms: int) -> list[Action]:
        self.now_ms = now_ms
        self._advance_truncate()
        actions = self._maybe_stuck()
        for progress in self.peers:
            if progress.is_following:
                actions += self._feed(progress)  # this may close it
            if progress.is_following and now_ms - progress.last_sent_ms >= HEARTBEAT_MS:
                actions.append(self.heartbeat(progress))
        actions += self.chains.tick(self)
        actions += self.rounds.tick(self)
        return actions + self.spread_commit() + self.members.tick(self)

    def spread_commit(self) -> list[Action]:
        """Consumers read up to the safekeeper's commit_lsn, so it must also advance on an idle
        log."""
        return [
            self.heartbeat(p)
            for p in self.peers
            if p.is_following and p.answered and p.sent_commit_lsn < self.commit_lsn
        ]

    def heartbeat(self, progress: Progress) -> Send:
        """No WAL and no new boundary: every chunk brought its own."""
        return self._send(progress, self._append(progress.next_lsn, b"", 0))

    def _maybe_stuck(self) -> list[Action]:
        """Only the primary has the WAL that a quorum lacks: all fell below the window inside one
        long record, or the election's donor lost its data before another peer had it. A new
        incarnation must start over. A stream from a donor that has nothing more to send does not
        help."""
        stuck = [
            p
            for p in self.peers
            if p.state is PeerState.CATCHING_UP
            and (p.answered and p.has_room)
            and not self._donors(p)
        ]
        if not has_quorum(self.membership, self.ids_of(stuck)):
            return []
        return [Stop(Outcome.RESTART, "no safekeeper has the WAL below the window")]
