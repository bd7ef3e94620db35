"""The invariants of the protocol, checked after every step, over the global state.

    ElectionSafety   a NodeId is won at most once, ever
    LogIsMonotonic   on a safekeeper, the NodeId of byte i is never greater than that of byte j > i
    LogSafety        two commits at one position, at any two times, have the same bytes
    AckedIsSafe      what was reported flushed is in the donor's log of every greater election
    OneHistory       equal (NodeId, lsn) on two safekeepers means equal logs below
    Monotone         commit_lsn, truncate_lsn and the promise never go back
    CommitRule       a commit is at or above the start of the term that reports it (figure 8)
    Durable          no answer speaks of what a power loss could take back; a commit is on a quorum
    RecordBoundary   flush_lsn and the start of a term are ends of records
    Donor            a donor's stream is its ballot's log, and ends with the donor's promise to it
    Primary          one whose WAL ends below the log's end is refused at once
    Window           what a leader forgets of its primary's WAL is flushed on a quorum
    Fenced           a proposer stops at the first greater ballot that any message tells it of
    Timelines        all that follow a ballot have its one timeline history, which every page names
    Truncate         truncate_lsn is on the disk of every member of each set
    Recovery         after a start the log ends at the last whole record that is valid, no earlier
    History          the history in a vote names every ballot that wrote the log below, and no later

Those of memberships are in `membership_laws.py`. A quorum is one of each set of the membership that
the leader counts by; a member is a disk: another one under its id is not it.

No code is shared with the cores but the names of messages, events and states. Of every ballot a
ghost is kept: the log of its election's donor, then what its primary sent. Each safekeeper's disk
is compared with the ghost of the ballot it follows, so OneHistory is checked in a stronger form:
byte by byte.

A step changes one process. Only what it changed is looked at again; what was compared before and
did not change is not compared anew, which makes the checks cost less than the cores.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from quorum_wal.consensus.ids import NodeId
from quorum_wal.consensus.join import TimelineOffer
from quorum_wal.consensus.membership import Membership
from quorum_wal.consensus.messages import AppendResponse, SafekeeperGreeting, VoteResponse
from quorum_wal.safekeeper.control_state import ControlState
from quorum_wal.safekeeper.events import Action as NodeAction
from quorum_wal.safekeeper.events import Event as NodeEvent
from quorum_wal.safekeeper.events import Reply
from quorum_wal.walproposer.stream.events import Event, Outcome, PeerMessage, WalReceived
from quorum_wal.walproposer.stream.proposer import State

from .broken_law import check
from .ghost import Ghost, clipped
from .holders import Holders
from .log import START_LSN, WAL_SEG_SIZE, Log, common_bytes
from .membership_laws import MembershipLaws
from .sets import has_quorum, sets_of
from .timelines import foreign_page

if TYPE_CHECKING:
    from .incarnation import Incarnation
    from .node import Node
    from .world import World


class Invariants:
    """Receives every change; `committed` is the longest log that was ever reported as committed."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.committed = Log()
        self.memberships = MembershipLaws(world)
        self._quorum = len(world.membership.members) // 2 + 1
        self.ghosts: dict[NodeId, Ghost] = {}
        #: The greatest position each ballot has committed.
        self.commits: dict[NodeId, int] = {}
        root = Ghost(NodeId.ZERO, Log(), [], START_LSN)
        # Of nodes, by their index.
        self._followed: dict[int, Ghost] = defaultdict(lambda: root)
        #: Up to where each disk was compared with its ghost, and with the committed log.
        self._compared: dict[int, int] = defaultdict(lambda: START_LSN)
        #: The WAL of each node, as far as leaders may count on it.
        self.holders = Holders(self._followed, self.ghosts)
        self._served: dict[int, int] = defaultdict(lambda: START_LSN)
        self._promises: dict[int, NodeId] = defaultdict(lambda: NodeId.ZERO)
        self._positions: dict[int, tuple[int, int]] = {}
        self._flush_lsns: dict[int, int] = {}
        self._votes: dict[tuple[NodeId, int], Ghost] = {}

    # ---- safekeepers

    def replied(self, node: Node, reply: Reply) -> None:
        """Before the answer is sent, and after the actions that were ordered before it."""
        message, disk = reply.message, node.disk
        if type(message) is AppendResponse:
            durable_lsn = message.durable_lsn
            check("Durable", durable_lsn <= disk.flushed_lsn, node.name, message)
            promised, flush_lsn = message.node_id, message.flush_lsn
        elif type(message) is VoteResponse:
            promised, flush_lsn = message.promised, message.flush_lsn
            self._voted(node, message)
        else:
            assert type(message) is SafekeeperGreeting
            promised, flush_lsn = message.promised, 0
        self.memberships.replied(node, message)
        check("Durable", flush_lsn <= disk.flushed_lsn, node.name, message)
        check("Durable", promised == disk.control.promised, node.name, "answers", promised)

    def _voted(self, node: Node, vote: VoteResponse) -> None:
        """Record the log of the voter: a greater ballot may truncate it during the election."""
        if not vote.granted:
            return
        self._check_disk(node)
        followed = self._followed[node.index]
        ghost = followed.at(vote.flush_lsn)
        entries = {(e.start_lsn, e.node_id) for e in vote.term_history.entries}
        check("History", set(ghost.origins) <= entries, node.name, vote.term_history)
        last = max((start for start, _ in entries), default=0)
        check("History", last <= vote.flush_lsn, node.name, vote.term_history)
        self._votes[vote.promised, node.index] = ghost

    def truncating(self, node: Node, end_lsn: int) -> None:
        """The bytes from `end_lsn` on are about to be removed."""
        served_lsn = self._served[node.index]
        check("LogSafety", end_lsn >= served_lsn, node.name, "truncates below its commit_lsn")
        self.world.count("truncations")
        followed = self._followed[node.index]
        record_end_lsn = followed.log.boundary_after(end_lsn)
        record = followed.log.read(end_lsn, record_end_lsn)
        holders = [
            other
            for other in self.world.nodes
            if end_lsn < record_end_lsn <= other.disk.flushed_lsn
            and other.disk.as_written(end_lsn, record_end_lsn) == record
            and self._followed[other.index].origin_of(end_lsn) == followed.origin_of(end_lsn)
        ]
        if node in holders and len(holders) >= self._quorum:
            self.world.count("figure-8 truncations")
        self._compared[node.index] = min(self._compared[node.index], end_lsn)

    def node_stepped(self, node: Node, event: NodeEvent, actions: list[NodeAction]) -> None:
        acceptor, disk = node.acceptor, node.disk
        assert acceptor is not None
        number = node.index
        self._follow(node)  # an Elected that changes nothing on disk orders no action
        if actions:
            self.memberships.node_has(node)
            self._check_disk(node)
            check("Durable", acceptor.durable_lsn <= disk.flushed_lsn, node.name)
            law = "Order of positions"
            check(law, acceptor.flush_lsn <= acceptor.record_end_lsn <= acceptor.written_lsn, node)
            check(law, acceptor.flush_lsn <= acceptor.durable_lsn <= acceptor.written_lsn, node)
            if disk.damaged_lsn is None:
                check(law, acceptor.written_lsn == disk.written_lsn, node.name)
            check("Durable", disk.control.flush_lsn <= disk.flushed_lsn, "flush_lsn of", node.name)
            check("Durable", acceptor.control.promised == disk.control.promised, node.name)
            check("Durable", acceptor.control.term_history == disk.control.term_history, node.name)
            check("Durable", acceptor.control.membership == disk.control.membership, node.name)
        self._check_positions(node)
        flush_lsn = acceptor.flush_lsn
        if flush_lsn != self._flush_lsns.get(number):
            self._flush_lsns[number] = flush_lsn
            boundary_lsn = self._followed[number].log.boundary_at(flush_lsn)
            is_boundary = flush_lsn in (boundary_lsn, disk.control.local_start_lsn)  # by force
            check("RecordBoundary", is_boundary, node.name, hex(flush_lsn))
            if self.committed.lsn < flush_lsn < self._followed[number].term_start_lsn:
                self._count_figure_8(self._followed[number], flush_lsn)

    def _count_figure_8(self, ghost: Ghost, lsn: int) -> None:
        """A quorum follows a leader and has flushed a record older than its term: not committed."""
        holders = [
            number
            for number, flush_lsn in self._flush_lsns.items()
            if self._followed[number] is ghost and flush_lsn >= lsn
        ]
        if len(holders) >= self._quorum:
            self.world.count("figure-8 shapes")

    def _follow(self, node: Node) -> None:
        """If it has obeyed another leader, its log must be that leader's, up to its end."""
        acceptor, number = node.acceptor, node.index
        assert acceptor is not None
        if acceptor.streaming is None:
            return
        before, promised = self._followed[number], acceptor.control.promised
        if before.node_id == promised:
            same = before.tli_history == acceptor.control.tli_history
            check("Timelines", same, node.name, acceptor.control.tli_history, "of", promised)
            return
        check("ElectionSafety", promised in self.ghosts, node.name, "follows a loser", promised)
        ghost = self._followed[number] = self.ghosts[promised]
        end_lsn = node.disk.valid_lsn
        check(
            "OneHistory",
            clipped(before.origins, end_lsn) == clipped(ghost.origins, end_lsn),
            f"{node.name}: {before.origins} and {ghost.origins} below {end_lsn:X}",
        )
        origins = [origin for _, origin in ghost.origins]
        check("LogIsMonotonic", origins == sorted(origins), node.name, ghost.origins)
        same = ghost.tli_history == acceptor.control.tli_history
        check("Timelines", same, node.name, acceptor.control.tli_history, "of", promised)
        self._compared[number] = node.disk.start_lsn

    def _check_disk(self, node: Node) -> None:
        """WAL written since the last check equals that of the leader."""
        number, disk = node.index, node.disk
        begin_lsn = max(self._compared[number], disk.start_lsn)
        end_lsn = disk.valid_lsn
        if begin_lsn < end_lsn:
            log = self._followed[number].log
            same = disk.as_written(begin_lsn, end_lsn) == log.read(begin_lsn, end_lsn)
            check("OneHistory", same, f"{node.name} differs in [{begin_lsn:X}, {end_lsn:X})")
            self._compared[number] = end_lsn

    def _check_positions(self, node: Node) -> None:
        acceptor, number, disk = node.acceptor, node.index, node.disk
        assert acceptor is not None
        promised = disk.control.promised
        before = self._promises[number]
        if promised is not before:
            check("Monotone", before <= promised, f"{node.name}: {before}, then {promised}")
            self._promises[number] = promised
        commit_lsn, truncate_lsn = acceptor.commit_lsn, acceptor.truncate_lsn
        was = self._positions.get(number, (0, 0))
        if was == (commit_lsn, truncate_lsn):
            return
        check("Monotone", was[0] <= commit_lsn, "commit_lsn of", node.name)
        check("Monotone", was[1] <= truncate_lsn, "truncate_lsn of", node.name)
        self._positions[number] = (commit_lsn, truncate_lsn)
        check("LogSafety", commit_lsn <= self.committed.lsn, node.name, "invented a commit")
        check("Durable", commit_lsn <= disk.flushed_lsn, "commit_lsn of", node.name)
        for other in [] if self.world.is_changing else self.world.nodes:
            on_disk = truncate_lsn <= max(other.disk.flushed_lsn, self.holders.lost_lsn(other))
            check("Truncate", on_disk, node.name, hex(truncate_lsn), "is not on", other.name)
        begin_lsn = max(self._served[number], disk.start_lsn)
        if commit_lsn > begin_lsn:
            same = disk.as_written(begin_lsn, commit_lsn) == self.committed.read(
                begin_lsn, commit_lsn
            )
            check("LogSafety", same, node.name, "serves other bytes than were committed")
            self._served[number] = commit_lsn

    # ---- ends and starts of safekeepers

    def node_ended(self, node: Node) -> None:
        before, promised = self._promises[node.index], node.disk.control.promised
        check("Monotone", before <= promised, f"{node.name}: {before}, then {promised}")
        self._promises[node.index] = promised
        self._flush_lsns.pop(node.index, None)

    def log_of(self, node: Node) -> Log:
        """The log on its disk, and possibly more, as its leader sent it."""
        return self._followed[node.index].log

    def expected_end(self, node: Node) -> int:
        """The last record end below the first byte that differs from the leader's."""
        log, wal = self._followed[node.index].log, node.disk.wal
        if node.disk.control.is_unproven:
            return node.disk.start_lsn
        whole_segments = wal + bytes(-len(wal) % WAL_SEG_SIZE)
        start_lsn = node.disk.start_lsn
        log.complete_switch(start_lsn + common_bytes(whole_segments, self._wal_from(log, node)))
        end_lsn = start_lsn + common_bytes(whole_segments, self._wal_from(log, node))
        return max(log.boundary_at(end_lsn), start_lsn)

    def _wal_from(self, log: Log, node: Node) -> bytes:
        return log.read(node.disk.start_lsn, log.lsn)

    def node_recovered(
        self, node: Node, before: ControlState, expected_lsn: int, end_lsn: int
    ) -> None:
        """`before` is the content of the control file when the safekeeper started."""
        disk = node.disk
        check("Recovery", end_lsn == expected_lsn, f"{node.name} {end_lsn:X} {expected_lsn:X}")
        flushed_lsn = max(before.commit_lsn, before.flush_lsn)
        lost_lsn = max(before.lost_lsn, flushed_lsn if end_lsn < flushed_lsn else 0)
        check("Recovery", disk.control.lost_lsn == lost_lsn, node.name, "forgets what it lost")
        check("Durable", self._served[node.index] <= disk.flushed_lsn, node.name)
        self._compared[node.index] = min(self._compared[node.index], end_lsn)
        if end_lsn < flushed_lsn:
            self.holders.lost(node, is_again=before.lost_lsn > 0)

    def node_started(self, node: Node, *, is_new: bool = True) -> None:
        if is_new:
            self._positions.pop(node.index, None)  # the hints may lag
            self._served[node.index] = node.disk.start_lsn
            self.memberships.node_has(node)
        self._check_positions(node)

    def node_joined(self, node: Node, offer: TimelineOffer) -> None:
        """Its log begins again, and equals the leader's as far as it goes."""
        ghost = self.ghosts[offer.node_id]
        self.memberships.joined(node, offer, ghost)
        self._followed[node.index] = ghost
        self._begun_anew(node)

    def node_left(self, node: Node, flushed_lsn: int) -> None:
        """Its flushed position when it left."""
        self.memberships.left(node)
        self.holders.left(node, flushed_lsn)
        self._begun_anew(node)

    def _begun_anew(self, node: Node) -> None:
        self._compared[node.index] = node.disk.start_lsn
        self._flush_lsns.pop(node.index, None)
        self.holders.begun_anew(node)
        self.node_started(node)

    # ---- proposers

    def proposer_stepping(
        self, process: Incarnation, event: Event, before: Membership | None
    ) -> None:
        """The core has decided; its actions are not executed yet. `before`: the membership that it
        used until now."""
        core = process.core
        self._check_fenced(process, event, before)
        self.memberships.proposer_stepping(process, event, before)
        process.counted_by = before
        if core.leader is None:
            return
        node_id = core.node_id
        assert node_id is not None
        ghost = self.ghosts.get(node_id)
        if ghost is None or ghost.owner is not process:
            ghost = self._elected(process, node_id)
        if type(event) is WalReceived or not ghost.is_leading:
            self._grow(process, ghost)

    def _check_fenced(self, process: Incarnation, event: Event, before: Membership | None) -> None:
        """By a member's greater promise; another one's is no reason, nor is one of who is no
        member by the membership that its own message brought (V2)."""
        core = process.core
        if type(event) is not PeerMessage or core.node_id is None or before is None:
            return
        assert core.membership is not None
        message, node = event.message, process.met[event.peer]
        seen = message.node_id if type(message) is AppendResponse else message.promised
        if seen <= core.node_id or core.state is State.STOPPED:
            return
        is_member = all(node in self.memberships.members(m) for m in (before, core.membership))
        check("Fenced", not is_member, core.node_id, "goes on after", message)

    def _check_fence(self, process: Incarnation, event: Event) -> None:
        """A learner's promise is no reason to stop, nor is one of who has left; but one of who is a
        member by the membership that its own message brought (V2)."""
        node_id, before, now = process.core.node_id, process.counted_by, process.core.membership
        if type(event) is PeerMessage and node_id is not None and before and now:
            message, node = event.message, process.met[event.peer]
            by_author = type(message) is not AppendResponse and (
                message.membership.stamp.author > node_id
            )
            is_member = any(node in self.memberships.members(m) for m in (before, now))
            check("Fenced", by_author or is_member, node_id, "stopped by", node.name, message)

    def _grow(self, process: Incarnation, ghost: Ghost) -> None:
        if process.core.state is State.LEADING:
            ghost.is_leading = True
            primary = process.primary
            if primary is not None and process.upstream_lsn > ghost.log.lsn:
                begin_lsn = ghost.log.lsn
                ghost.log.extend(primary.log, process.upstream_lsn)
                self._check_pages(ghost, begin_lsn)

    def _check_pages(self, ghost: Ghost, begin_lsn: int) -> None:
        problem = foreign_page(ghost.tli_history, ghost.log, begin_lsn, ghost.log.lsn)
        check("Timelines", not problem, ghost.node_id, ghost.tli_history, problem)

    def _elected(self, process: Incarnation, node_id: NodeId) -> Ghost:
        assert process.core.leader is not None
        term = process.core.leader.term
        check("ElectionSafety", node_id not in self.ghosts, node_id, "was won twice")
        votes = {n: ghost for (ballot, n), ghost in self._votes.items() if ballot == node_id}
        now, under = process.core.membership, process.counted_by
        assert now is not None
        if under is None or (sets_of(under), under.generation) != (sets_of(now), now.generation):
            under = now  # a greater one was found in this step
        is_won = has_quorum(self.world.nodes, under, lambda node: node.index in votes)
        check("ElectionSafety", is_won, node_id, "was won without a quorum of", under)
        self.memberships.elected(under, now, node_id)
        voted = votes.get(process.met[term.donor].index)
        check("ElectionSafety", voted is not None, node_id, "follows who did not vote for it")
        assert voted is not None
        end_lsn = voted.log.lsn
        check("RecordBoundary", end_lsn == term.term_start_lsn, node_id, "misread its donor")
        boundary_lsn = voted.log.boundary_at(end_lsn)
        check("RecordBoundary", end_lsn == boundary_lsn, node_id, "begins inside a record")
        origins = [*voted.origins, (end_lsn, node_id)]
        check("LogIsMonotonic", all(o < node_id for _, o in voted.origins), node_id, origins)
        ghost = Ghost(node_id, voted.log.cut(end_lsn), origins, end_lsn, term.tli_history)
        self._check_pages(ghost, START_LSN)
        ghost.owner = process
        self.ghosts[node_id] = ghost
        self.world.count("elections")
        self.world.shapes.won(ghost)
        for winner, lsn in self.commits.items():
            self._check_acked(winner, lsn, ghost)
        return ghost

    def won_log(self, process: Incarnation) -> Log:
        """The log of a server that was restored from the log of this process's election."""
        node_id = process.core.node_id
        assert node_id is not None
        ghost = self.ghosts[node_id]
        return ghost.log.cut(ghost.term_start_lsn)

    def _check_acked(self, winner: NodeId, lsn: int, later: Ghost) -> None:
        """The commit of `winner` is in the log that a later ballot started from."""
        if later.node_id <= winner or lsn <= later.agreed_lsn:
            return
        begin_lsn = later.agreed_lsn
        is_there = lsn <= later.term_start_lsn and (
            later.log.read(begin_lsn, lsn) == self.committed.read(begin_lsn, lsn)
        )
        check("AckedIsSafe", is_there, f"{later.node_id} lacks the commit {lsn:X} of {winner}")
        later.agreed_lsn = lsn

    def donor_goes_on(self, process: Incarnation, node: Node) -> None:
        """It has checked; it has not ended the stream, and will not before the next check."""
        promised, node_id = node.disk.control.promised, process.core.node_id
        check("Donor", promised == node_id, f"{node.name} serves {node_id}, promised {promised}")

    def donor_sends(self, process: Incarnation, node: Node, begin_lsn: int, wal: bytes) -> None:
        """To a proposer that reads for itself, or for another member."""
        self.donor_goes_on(process, node)
        node_id = process.core.node_id
        assert node_id is not None
        same = wal == self.ghosts[node_id].log.read(begin_lsn, begin_lsn + len(wal))
        check("Donor", same, f"{node.name} sends other bytes than those of {node_id}")

    def proposer_stepped(self, process: Incarnation, event: Event) -> None:
        if process.stop is not None and process.stop.outcome is Outcome.FENCED:
            self._check_fence(process, event)
        leader = process.core.leader
        if leader is None:
            return
        was = process.positions
        now = process.positions = (leader.commit_lsn, leader.truncate_lsn)
        if was != now:
            check("Monotone", was[0] <= now[0] and was[1] <= now[1], process.name, was, now)
            if was[1] != now[1]:
                self.memberships.truncates(process, now[1], self.holders.flushed_by)
        begin_lsn = leader.window.begin_lsn
        if begin_lsn > max(process.window_begin_lsn, leader.term.term_start_lsn):
            process.window_begin_lsn = begin_lsn
            self._check_window(process, begin_lsn)

    def _check_window(self, process: Incarnation, begin_lsn: int) -> None:
        """Dropped WAL is on a quorum, as far as it is whole records: a restart takes the rest from
        a safekeeper. Unless another proposer, unknown to the leader, has begun to truncate."""
        node_id = process.core.node_id
        assert node_id is not None
        if all(promised <= node_id for promised in list(self._promises.values())):
            ghost = self.ghosts[node_id]
            name = f"{process.name} {begin_lsn:X}"
            self._check_quorum("Window", ghost, ghost.log.boundary_at(begin_lsn), name)

    def upstream_started(self, process: Incarnation) -> None:
        """It has reported the end of its WAL, and the core has decided."""
        leader, primary = process.core.leader, process.primary
        if process.is_alive and leader is not None and primary is not None:
            has_all = primary.log.lsn >= leader.term.term_start_lsn
            check(
                "Primary", has_all, f"{process.name} goes on with {primary.name}, which lacks WAL"
            )

    def reported(self, process: Incarnation, lsn: int) -> None:
        """A quorum is reported to have everything below `lsn`; the clients continue."""
        core, node_id = process.core, process.core.node_id
        assert node_id is not None
        ghost = self.ghosts[node_id]
        name = f"{process.name} {node_id} at {lsn:X}"
        check("LogSafety", ghost.is_leading, name, "commits while", core.state.value)
        check("CommitRule", lsn >= ghost.term_start_lsn, name, "commits what it did not write")
        check("LogSafety", lsn <= ghost.log.lsn, name, "commits what nobody wrote")
        check("RecordBoundary", lsn == ghost.log.boundary_at(lsn), name, "is inside a record")
        begin_lsn, known_lsn = ghost.reported_lsn, min(lsn, self.committed.lsn)
        wal = ghost.log.read(begin_lsn, lsn)
        known = self.committed.read(begin_lsn, known_lsn)
        check("LogSafety", wal.startswith(known), name, "commits other bytes than before")
        if process.primary is not None:
            same = wal == process.primary.log.read(begin_lsn, lsn)
            check("LogSafety", same, name, "tells a primary that has other bytes")
            process.primary.acked_lsn = max(process.primary.acked_lsn, lsn)
        if lsn > self.committed.lsn:
            self.committed.extend(ghost.log, lsn)
        ghost.reported_lsn = lsn
        self._check_quorum("Durable", ghost, lsn, name)
        self.commits[node_id] = lsn
        for later in self.ghosts.values():
            self._check_acked(node_id, lsn, later)
        self.world.count("commits")

    def _check_quorum(self, law: str, ghost: Ghost, lsn: int, name: str) -> None:
        """By the membership that the leader uses now, or has used until this step."""
        process = ghost.owner
        assert process is not None
        holds = self.holders.holds(process, lsn)
        for membership in (process.core.membership, process.counted_by):
            if membership and has_quorum(self.world.nodes, membership, holds):
                return
        check(law, False, name, "is on no quorum of", process.core.membership)
