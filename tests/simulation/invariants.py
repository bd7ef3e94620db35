"""The invariants of the protocol, checked after every step, over the global state.

    ElectionSafety   a NodeId is won at most once, ever
    LogIsMonotonic   on a safekeeper, the NodeId of byte i is never greater than that of byte j > i
    LogSafety        two commits at one position, at any two times, have the same bytes
    AckedIsSafe      what was reported flushed is in the donor's log of every greater election
    OneHistory       equal (NodeId, lsn) on two safekeepers means equal logs below
    ConfigSafety     an equal generation means an equal configuration
    Monotone         commit_lsn, truncate_lsn, the promise, the generation never go back
    CommitRule       a commit is at or above the start of the term that reports it (figure 8)
    Durable          no answer speaks of what a power loss could take back; a commit is on a quorum
    RecordBoundary   flush_lsn and the start of a term are ends of records
    Donor            a donor's stream is its ballot's log, and ends with the donor's promise to it
    Primary          one whose WAL ends below the log's end is refused at once
    Window           what a leader forgets of its primary's WAL is flushed on a quorum
    Fenced           a proposer stops at the first greater ballot that any message tells it of
    Timelines        all that follow a ballot have its one timeline history, which every page names
    Truncate         truncate_lsn is on the disk of every member
    Recovery         after a start the log ends at the last whole record that is valid, no earlier
    History          the history in a vote names every ballot that wrote the log below, and no later

No code is shared with the cores but the names of messages, events and states. Of every ballot a
ghost is kept: the log of its election's donor, then what its primary sent. Each safekeeper's disk
is compared with the ghost of the ballot it follows, so OneHistory is checked in a stronger form:
byte by byte.

A step changes one process. Only what it changed is looked at again; what was compared before and
did not change is not compared anew, which makes the checks cost less than the cores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consensus.ids import NodeId
from consensus.membership import Membership
from consensus.messages import AppendResponse, SafekeeperGreeting, VoteResponse
from safekeeper.control_state import ControlState
from safekeeper.events import Action as NodeAction
from safekeeper.events import Event as NodeEvent
from safekeeper.events import Reply
from walproposer.stream.events import Event, PeerMessage, WalReceived
from walproposer.stream.proposer import Proposer, State

from .ghost import Ghost, clipped
from .log import START_LSN, WAL_SEG_SIZE, Log, common_bytes
from .timelines import foreign_page

if TYPE_CHECKING:
    from .incarnation import Incarnation
    from .node import Node
    from .world import World


class BrokenLaw(AssertionError):
    """An invariant does not hold."""

    def __init__(self, law: str, problem: object) -> None:
        super().__init__(f"{law}: {problem}")
        self.law = law


def check(law: str, holds: bool, *problem: object) -> None:
    if not holds:
        raise BrokenLaw(law, " ".join(map(str, problem)))


class Invariants:
    """Told of everything that changes; `committed` is the longest log ever reported to anybody."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.committed = Log()
        self._members = world.membership.members
        self._quorum = len(self._members) // 2 + 1
        self.ghosts: dict[NodeId, Ghost] = {}
        #: The greatest position each ballot has committed.
        self.commits: dict[NodeId, int] = {}
        root = Ghost(NodeId.ZERO, Log(), [], START_LSN)
        self._followed: dict[int, Ghost] = dict.fromkeys(self._members, root)
        #: Up to where each disk was compared with its ghost, and with what is committed.
        self._compared: dict[int, int] = dict.fromkeys(self._members, START_LSN)
        self._served: dict[int, int] = dict.fromkeys(self._members, START_LSN)
        self._promises: dict[int, NodeId] = dict.fromkeys(self._members, NodeId.ZERO)
        self._positions: dict[int, tuple[int, int]] = {}
        self._flush_lsns: dict[int, int] = {}
        #: What those had flushed that lost a part of it since.
        self._lost_lsns: dict[int, int] = {}
        self._votes: dict[tuple[NodeId, int], Ghost] = {}
        self._configurations: dict[int, Membership] = {}

    # ---- safekeepers

    def replied(self, node: Node, reply: Reply) -> None:
        """Before the answer leaves, after the actions that were ordered before it."""
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
            known = self._configurations.setdefault(
                message.membership.generation, message.membership
            )
            check("ConfigSafety", known == message.membership, node.name, message)
        check("Durable", flush_lsn <= disk.flushed_lsn, node.name, message)
        check("Durable", promised == disk.control.promised, node.name, "answers", promised)

    def _voted(self, node: Node, vote: VoteResponse) -> None:
        """Keep what the voter has: it may lose it to a greater ballot before the election ends."""
        if not vote.granted:
            return
        self._check_disk(node)
        followed = self._followed[node.number]
        ghost = followed.at(vote.flush_lsn)
        entries = {(e.start_lsn, e.node_id) for e in vote.term_history.entries}
        check("History", set(ghost.origins) <= entries, node.name, vote.term_history)
        last = max((start for start, _ in entries), default=0)
        check("History", last <= vote.flush_lsn, node.name, vote.term_history)
        self._votes[vote.promised, node.number] = ghost

    def truncating(self, node: Node, end_lsn: int) -> None:
        """The bytes from `end_lsn` on are about to go."""
        served_lsn = self._served[node.number]
        check("LogSafety", end_lsn >= served_lsn, node.name, "truncates below its commit_lsn")
        self.world.count("truncations")
        followed = self._followed[node.number]
        record_end_lsn = followed.log.boundary_after(end_lsn)
        record = followed.log.read(end_lsn, record_end_lsn)
        holders = [
            other
            for other in self.world.nodes
            if end_lsn < record_end_lsn <= other.disk.flushed_lsn
            and other.disk.as_written(end_lsn, record_end_lsn) == record
            and self._followed[other.number].origin_of(end_lsn) == followed.origin_of(end_lsn)
        ]
        if node in holders and len(holders) >= self._quorum:
            self.world.count("figure-8 truncations")
        self._compared[node.number] = min(self._compared[node.number], end_lsn)

    def node_stepped(self, node: Node, event: NodeEvent, actions: list[NodeAction]) -> None:
        acceptor, disk = node.acceptor, node.disk
        assert acceptor is not None
        number = node.number
        self._follow(node)  # an Elected that changes nothing on disk orders no action
        if actions:
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
        self._check_positions(node)
        flush_lsn = acceptor.flush_lsn
        if flush_lsn != self._flush_lsns.get(number):
            self._flush_lsns[number] = flush_lsn
            boundary_lsn = self._followed[number].log.boundary_at(flush_lsn)
            check("RecordBoundary", flush_lsn == boundary_lsn, node.name, hex(flush_lsn))
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
        """Has it obeyed another leader? Then its log must be that leader's, up to its end."""
        acceptor, number = node.acceptor, node.number
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
        self._compared[number] = START_LSN

    def _check_disk(self, node: Node) -> None:
        """What was written since the last look is what the leader has there."""
        number, disk = node.number, node.disk
        begin_lsn, end_lsn = self._compared[number], disk.valid_lsn
        if begin_lsn < end_lsn:
            log = self._followed[number].log
            same = disk.as_written(begin_lsn, end_lsn) == log.read(begin_lsn, end_lsn)
            check("OneHistory", same, f"{node.name} differs in [{begin_lsn:X}, {end_lsn:X})")
            self._compared[number] = end_lsn

    def _check_positions(self, node: Node) -> None:
        acceptor, number, disk = node.acceptor, node.number, node.disk
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
        for other in self.world.nodes:
            on_disk = truncate_lsn <= max(other.disk.flushed_lsn, self._lost_lsn(other))
            check("Truncate", on_disk, node.name, hex(truncate_lsn), "is not on", other.name)
        begin_lsn = self._served[number]
        if commit_lsn > begin_lsn:
            same = disk.as_written(begin_lsn, commit_lsn) == self.committed.read(
                begin_lsn, commit_lsn
            )
            check("LogSafety", same, node.name, "serves other bytes than were committed")
            self._served[number] = commit_lsn

    # ---- ends and starts of safekeepers

    def node_ended(self, node: Node) -> None:
        before, promised = self._promises[node.number], node.disk.control.promised
        check("Monotone", before <= promised, f"{node.name}: {before}, then {promised}")
        self._promises[node.number] = promised
        self._flush_lsns.pop(node.number, None)

    def log_of(self, node: Node) -> Log:
        """What its disk holds, and maybe more, as its leader sent it."""
        return self._followed[node.number].log

    def expected_end(self, node: Node) -> int:
        """The last record end below the first byte that is not what the leader sent."""
        log, wal = self._followed[node.number].log, node.disk.wal
        whole_segments = wal + bytes(-len(wal) % WAL_SEG_SIZE)
        log.complete_switch(START_LSN + common_bytes(whole_segments, log.wal))
        return log.boundary_at(START_LSN + common_bytes(whole_segments, log.wal))

    def node_recovered(
        self, node: Node, before: ControlState, expected_lsn: int, end_lsn: int
    ) -> None:
        """`before` is what the control file said when the safekeeper started."""
        disk = node.disk
        check("Recovery", end_lsn == expected_lsn, f"{node.name} {end_lsn:X} {expected_lsn:X}")
        flushed_lsn = max(before.commit_lsn, before.flush_lsn)
        lost_lsn = max(before.lost_lsn, flushed_lsn if end_lsn < flushed_lsn else 0)
        check("Recovery", disk.control.lost_lsn == lost_lsn, node.name, "forgets what it lost")
        check("Durable", self._served[node.number] <= disk.flushed_lsn, node.name)
        self._compared[node.number] = min(self._compared[node.number], end_lsn)
        if end_lsn < flushed_lsn:
            before_lsn = self._lost_lsns[node.number] if before.lost_lsn else 0
            self._lost_lsns[node.number] = max(disk.flushed_lsn, before_lsn)

    def _lost_lsn(self, node: Node) -> int:
        """0 once it is whole again."""
        return self._lost_lsns.get(node.number, 0) if node.disk.control.lost_lsn else 0

    def node_started(self, node: Node, *, is_new: bool = True) -> None:
        if is_new:
            self._positions.pop(node.number, None)  # the hints may lag
            self._served[node.number] = START_LSN
        self._check_positions(node)

    # ---- proposers

    def proposer_stepping(self, process: Incarnation, event: Event) -> None:
        """The core has decided; its actions are not carried out yet."""
        core = process.core
        self._check_fenced(core, event)
        if core.leader is None:
            return
        node_id = core.node_id
        assert node_id is not None
        ghost = self.ghosts.get(node_id)
        if ghost is None or ghost.owner is not process:
            ghost = self._elected(process, node_id)
        if type(event) is WalReceived or not ghost.is_leading:
            self._grow(process, ghost)

    def _check_fenced(self, core: Proposer, event: Event) -> None:
        ours = core.node_id or core.candidacy.predecessor
        if type(event) is not PeerMessage or ours is None:
            return
        message = event.message
        seen = message.node_id if type(message) is AppendResponse else message.promised
        is_over = seen <= ours or core.state is State.STOPPED
        check("Fenced", is_over, ours, "goes on after", message)

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
        check("ElectionSafety", len(votes) >= self._quorum, node_id, "was won without a quorum")
        voted = votes.get(term.donor + 1)
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
        """What a server has that was restored from the log this process was elected with."""
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
        """It has looked, and neither ended the stream nor will before the next look."""
        promised, node_id = node.disk.control.promised, process.core.node_id
        check("Donor", promised == node_id, f"{node.name} serves {node_id}, promised {promised}")

    def donor_sends(self, process: Incarnation, node: Node, begin_lsn: int, wal: bytes) -> None:
        """To a proposer that reads for itself, or for another member."""
        self.donor_goes_on(process, node)
        node_id = process.core.node_id
        assert node_id is not None
        same = wal == self.ghosts[node_id].log.read(begin_lsn, begin_lsn + len(wal))
        check("Donor", same, f"{node.name} sends other bytes than those of {node_id}")

    def proposer_stepped(self, process: Incarnation) -> None:
        leader = process.core.leader
        if leader is None:
            return
        was = process.positions
        now = process.positions = (leader.commit_lsn, leader.truncate_lsn)
        if was != now:
            check("Monotone", was[0] <= now[0] and was[1] <= now[1], process.name, was, now)
        begin_lsn = leader.window.begin_lsn
        if begin_lsn > max(process.window_begin_lsn, leader.term.term_start_lsn):
            process.window_begin_lsn = begin_lsn
            self._check_window(process, begin_lsn)

    def _check_window(self, process: Incarnation, begin_lsn: int) -> None:
        """What is forgotten is on a quorum, as far as it is whole records: a restart takes the rest
        from a safekeeper. Unless another, unknown to the leader, has begun to truncate."""
        node_id = process.core.node_id
        assert node_id is not None
        if all(promised <= node_id for promised in self._promises.values()):
            ghost = self.ghosts[node_id]
            name = f"{process.name} {begin_lsn:X}"
            self._check_quorum("Window", ghost, ghost.log.boundary_at(begin_lsn), name)

    def upstream_started(self, process: Incarnation) -> None:
        """Said where its WAL ends, and the core has decided."""
        leader, primary = process.core.leader, process.primary
        if process.is_alive and leader is not None and primary is not None:
            has_all = primary.log.lsn >= leader.term.term_start_lsn
            check(
                "Primary", has_all, f"{process.name} goes on with {primary.name}, which lacks WAL"
            )

    def reported(self, process: Incarnation, lsn: int) -> None:
        """The primary is told that a quorum has everything below `lsn`; its clients go on."""
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
        """A member counts as long as it has not told this proposer that it lost its data; what it
        lost and has not told, it had flushed."""
        assert ghost.owner is not None
        holders = 0
        for node in self.world.nodes:
            followed = self._followed[node.number]
            if lsn <= self._lost_lsn(node):
                holders += 1
            elif node.disk.flushed_lsn >= lsn and node.number not in ghost.owner.lost_members:
                is_same = followed is ghost or followed.log.read(START_LSN, lsn) == ghost.log.read(
                    START_LSN, lsn
                )
                holders += is_same
        check(law, holders >= self._quorum, name, f"is on {holders} only")

    # ---- at the end

    def unequal(self) -> str:
        """Why the logs of all members are not yet the same and committed, or ""."""
        lsn = self.committed.lsn
        for node in self.world.nodes:
            acceptor = node.acceptor
            if node.disk.is_gone:
                continue
            if acceptor is None:
                return f"{node.name} is {node.state.value}"
            if node.disk.is_rotten:
                return f"{node.name} is not whole again"
            if not acceptor.commit_lsn == acceptor.flush_lsn == acceptor.written_lsn == lsn:
                return (
                    f"{node.name} has written {acceptor.written_lsn:X}, flushed "
                    f"{acceptor.flush_lsn:X}, committed {acceptor.commit_lsn:X} of {lsn:X}"
                )
            if node.disk.wal != self.committed.wal:
                return f"{node.name} has other bytes"
        return ""
