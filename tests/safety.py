"""The invariants of the protocol, checked after every step of a scripted or a random run.

    ElectionSafety   a NodeId is won at most once, ever
    LogIsMonotonic   on a safekeeper, the NodeId of byte i is never greater than that of byte j > i
    LogSafety        two commits at one position, at any two times, have the same bytes
    AckedIsSafe      what was reported flushed is in the donor's log of every greater election
    OneHistory       equal (NodeId, lsn) on two safekeepers means equal logs below
    CommitRule       a commit is at or above the start of the term that reports it (figure 8)
    Monotone         commit_lsn, truncate_lsn and the promise never go back
    Durable          no answer speaks of what a power loss could take back
    RecordBoundary   flush_lsn and the start of a term are ends of records

Who wrote which byte is not taken from the term histories under test: it is followed here, from the
ballot that first brought a byte to the bytes copied from it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from memory_node import MemoryNode
from wal_builder import START_LSN, WalBuilder, named_records

from consensus.ids import NodeId
from consensus.membership import Membership
from consensus.messages import Append, AppendResponse, SafekeeperGreeting, VoteResponse
from consensus.quorum import has_quorum
from safekeeper.events import Action as NodeAction
from safekeeper.events import Event as NodeEvent
from safekeeper.events import Received, Reply, TruncateWal, WriteWal
from walproposer.events import Action, Event, ReportFlushed
from walproposer.proposer import Proposer, State

#: (first byte, ballot that brought it), ascending: who wrote a log from where.
Origins = list[tuple[int, NodeId]]


class BrokenLaw(AssertionError):
    """An invariant does not hold; the text begins with its name."""


class Incarnation(Protocol):
    """What is looked at in a proposer's process."""

    name: str
    core: Proposer
    primary: WalBuilder | None


def check(law: str, holds: bool, problem: object) -> None:
    if not holds:
        raise BrokenLaw(f"{law}: {problem}")


class Safety:
    """Told of every step of every node and every proposer."""

    def __init__(self, membership: Membership, nodes: Iterable[MemoryNode]) -> None:
        self.membership = membership
        self.nodes = list(nodes)
        #: The bytes of all commits, from START_LSN on, and who reported which position.
        self.committed = bytearray()
        self.commits: list[tuple[NodeId, int]] = []
        self._won: dict[NodeId, str] = {}
        self.won_logs: dict[NodeId, bytes] = {}
        #: What each voter had when it answered; it may lose it to a greater ballot afterwards.
        self._votes: dict[tuple[NodeId, int], tuple[bytes, Origins]] = {}
        self._won_origins: dict[NodeId, Origins] = {}
        self._origins: dict[int, Origins] = {n.safekeeper_id: [] for n in self.nodes}
        #: The longest log seen whose last byte is of this ballot.
        self._logs: dict[NodeId, bytes] = {}
        self._promises: dict[int, NodeId] = {}
        self._positions: dict[int, tuple[int, int]] = {}
        self._flush_lsns: dict[int, int] = {}

    @property
    def committed_lsn(self) -> int:
        return START_LSN + len(self.committed)

    # ---- safekeepers

    def replied(self, node: MemoryNode, reply: Reply) -> None:
        """Called before the answer leaves, after the actions ordered before it."""
        match reply.message:
            case AppendResponse(node_id=promised, flush_lsn=flush_lsn, durable_lsn=durable_lsn):
                check("Durable", durable_lsn <= node.disk.flushed_lsn, reply.message)
            case VoteResponse(promised=promised, flush_lsn=flush_lsn):
                log = node.disk.read(START_LSN, flush_lsn - START_LSN)
                origins = clipped(self._origins[node.safekeeper_id], flush_lsn)
                self._votes[promised, node.safekeeper_id] = (log, origins)
            case SafekeeperGreeting(promised=promised):
                flush_lsn = 0
        check("Durable", flush_lsn <= node.disk.flushed_lsn, f"{node.name} says {reply.message}")
        check("Durable", promised == node.disk.control.promised, f"{node.name}: {promised}")

    def node_stepped(self, node: MemoryNode, event: NodeEvent, actions: list[NodeAction]) -> None:
        self._follow_origins(node, event, actions)
        acceptor = node.acceptor
        assert acceptor is not None
        law = "Order of positions"
        check(law, acceptor.flush_lsn <= acceptor.record_end_lsn <= acceptor.written_lsn, node.name)
        check(law, acceptor.flush_lsn <= acceptor.durable_lsn <= acceptor.written_lsn, node.name)
        check(law, acceptor.written_lsn == node.disk.written_lsn, node.name)
        check("Durable", acceptor.durable_lsn <= node.disk.flushed_lsn, node.name)
        self._check_monotone(node)
        self._check_commit(node)
        if acceptor.flush_lsn != self._flush_lsns.get(node.safekeeper_id):
            self._flush_lsns[node.safekeeper_id] = acceptor.flush_lsn
            check_boundary(node.disk.read(START_LSN, acceptor.flush_lsn - START_LSN), node.name)

    def node_restarted(self, node: MemoryNode) -> None:
        """The hints may lag: positions begin anew, the promise does not."""
        self._positions.pop(node.safekeeper_id, None)
        origins = self._origins[node.safekeeper_id]
        self._origins[node.safekeeper_id] = clipped(origins, node.disk.written_lsn)
        self._check_monotone(node)

    def _check_monotone(self, node: MemoryNode) -> None:
        acceptor, number = node.acceptor, node.safekeeper_id
        assert acceptor is not None
        promised = acceptor.control.promised
        before = self._promises.get(number, NodeId.ZERO)
        check("Monotone", before <= promised, f"{node.name} promised {before}, then {promised}")
        self._promises[number] = promised
        commit_lsn, truncate_lsn = self._positions.get(number, (0, 0))
        check("Monotone", commit_lsn <= acceptor.commit_lsn, f"commit_lsn of {node.name}")
        check("Monotone", truncate_lsn <= acceptor.truncate_lsn, f"truncate_lsn of {node.name}")
        self._positions[number] = (acceptor.commit_lsn, acceptor.truncate_lsn)

    def _check_commit(self, node: MemoryNode) -> None:
        """What consumers may read is committed, and is what was committed."""
        assert node.acceptor is not None
        commit_lsn = node.acceptor.commit_lsn
        check("LogSafety", commit_lsn <= self.committed_lsn, f"{node.name} invented a commit")
        check("Durable", commit_lsn <= node.disk.flushed_lsn, f"commit_lsn of {node.name}")
        length = commit_lsn - START_LSN
        check(
            "LogSafety",
            node.disk.wal[:length] == self.committed[:length],
            f"{node.name} serves other bytes than were committed",
        )

    def _follow_origins(
        self, node: MemoryNode, event: NodeEvent, actions: list[NodeAction]
    ) -> None:
        number = node.safekeeper_id
        for action in actions:
            if isinstance(action, TruncateWal):
                self._origins[number] = clipped(self._origins[number], action.end_lsn)
            if isinstance(action, WriteWal):
                assert isinstance(event, Received)
                assert isinstance(event.message, Append)
                end_lsn = action.begin_lsn + len(action.wal)
                self._wrote(node, event.message.node_id, action.begin_lsn, end_lsn)

    def _wrote(self, node: MemoryNode, leader: NodeId, begin_lsn: int, end_lsn: int) -> None:
        origins = self._origins[node.safekeeper_id]
        known = [(s, origin) for s, origin in self._won_origins[leader] if s < end_lsn]
        first = max(
            i for i, (start_lsn, _) in enumerate([(0, leader), *known]) if start_lsn <= begin_lsn
        )
        for start_lsn, origin in known[max(first - 1, 0) :]:
            last = origins[-1][1] if origins else NodeId.ZERO
            check("LogIsMonotonic", last <= origin, f"{node.name}: {origin} after {last}")
            if last < origin:
                origins.append((max(start_lsn, begin_lsn), origin))
        self._check_one_history(node, origins[-1][1])

    def _check_one_history(self, node: MemoryNode, origin: NodeId) -> None:
        log, known = bytes(node.disk.wal), self._logs.get(origin, b"")
        length = min(len(log), len(known))
        check("OneHistory", log[:length] == known[:length], f"{node.name} below a byte of {origin}")
        if len(log) > len(known):
            self._logs[origin] = log

    # ---- proposers

    def proposer_stepped(self, process: Incarnation, event: Event, actions: list[Action]) -> None:
        core = process.core
        if core.leader is not None and core.node_id not in self.won_logs:
            self._elected(process)
        for action in actions:
            if isinstance(action, ReportFlushed):
                self._committed(process, action.commit_lsn)

    def _elected(self, process: Incarnation) -> None:
        core = process.core
        assert core.leader is not None
        node_id, term = core.leader.term.node_id, core.leader.term
        check("ElectionSafety", node_id not in self._won, f"{node_id} won twice")
        self._won[node_id] = process.name
        log, origins = self._votes[node_id, self.nodes[term.donor].safekeeper_id]
        check("Donor", START_LSN + len(log) == term.term_start_lsn, f"{node_id} misread its donor")
        check_boundary(log, str(node_id))
        self.won_logs[node_id] = log
        self._won_origins[node_id] = [*origins, (term.term_start_lsn, node_id)]
        for winner, lsn in self.commits:
            self._check_acked(winner, lsn, node_id)

    def _check_acked(self, winner: NodeId, lsn: int, later: NodeId) -> None:
        """The commit of `winner` is in the log that `later` started from."""
        log, length = self.won_logs[later], lsn - START_LSN
        is_there = len(log) >= length and log[:length] == self.committed[:length]
        check("AckedIsSafe", later <= winner or is_there, f"{later} lacks a commit of {winner}")

    def _committed(self, process: Incarnation, lsn: int) -> None:
        node_id, state = process.core.node_id, process.core.state
        assert node_id is not None
        check("LogSafety", state is State.LEADING, f"{node_id} commits while {state.value}")
        log = self.won_logs[node_id]
        term_start_lsn = START_LSN + len(log)
        check("CommitRule", lsn >= term_start_lsn, f"{node_id} commits what it did not write")
        if process.primary is not None:
            log += process.primary.read(term_start_lsn, lsn)
        log = log[: lsn - START_LSN]
        check("LogSafety", len(log) == lsn - START_LSN, f"{node_id} commits what nobody wrote")
        length = min(len(log), len(self.committed))
        check("LogSafety", log[:length] == self.committed[:length], f"{node_id} committed others")
        holders = {
            node.safekeeper_id
            for node in self.nodes
            if node.disk.flushed_lsn >= lsn and node.disk.wal[: len(log)] == log
        }
        check("Durable", has_quorum(self.membership, holders), f"{node_id} on {holders} only")
        self.commits.append((node_id, lsn))
        if len(log) > len(self.committed):
            self.committed = bytearray(log)
        for later in self.won_logs:
            self._check_acked(node_id, lsn, later)


def clipped(origins: Origins, end_lsn: int) -> Origins:
    return [(start_lsn, origin) for start_lsn, origin in origins if start_lsn < end_lsn]


def check_boundary(log: bytes, whose: str) -> None:
    records = named_records(log)
    end_lsn = records[-1].end_lsn if records else START_LSN
    check("RecordBoundary", end_lsn == START_LSN + len(log), f"log of {whose} ends inside a record")
