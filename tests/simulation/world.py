"""`World`: safekeepers, proposers and primaries under one seed, and the operator who runs them.

chaos until the horizon -> every fault ends -> within SETTLE_US a leader, commits, equal logs
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random

from quorum_wal.consensus.ids import NodeId
from quorum_wal.consensus.membership import Member, Membership, Stamp
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.walproposer.stream.events import Outcome, Stop

from .broken_law import BrokenLaw
from .chain import chain_rule_of
from .clock import Clock
from .faults import KINDS, PLACES, Fault, Plan
from .incarnation import Incarnation
from .invariants import Invariants
from .log import START_LSN, WAL_SEG_SIZE, Log
from .network import Network
from .node import Address, Node, address_of, instance_of
from .node_state import NodeState
from .primary import Primary
from .shapes import Shapes
from .trace import Trace

PROPOSERS_MAX = 3
OPERATOR_US = 40_000
#: The time after the last fault until the cluster must be whole.
SETTLE_US = 20_000_000
#: The number of commits of a client when all is quiet.
LAST_WRITES = 3


class World:
    """`run()` raises BrokenLaw, or an error of a core, at the first bad step. Here the members are
    always the same."""

    #: The plan of a seed, for this kind of world.
    plan_of = staticmethod(Plan.of)
    law_of_rest = "Liveness"
    is_changing = False
    #: The option of the command, for worlds of this kind.
    option = ""
    removes_wal = False

    def __init__(self, seed: int, plan: Plan | None = None, trace: Trace | None = None) -> None:
        self.plan = plan or self.plan_of(seed)
        self.random = Random(f"world {seed}")
        #: Whether its processes take the steady path where they can: in every other world.
        self.takes_steady_path = seed % 2 == 0
        self.chain_rule = chain_rule_of(seed)
        self.trace: Trace = trace or Trace(None)
        self.counts: Counter[str] = Counter()
        #: Events stepped in a core.
        self.steps = 0
        self.clock = self.new_clock()
        self.trace.clock = self.clock
        self.network = self.new_network()
        #: Every fifth is of a release that did not store instances and addresses.
        self.membership = first_membership(self.plan.nodes_count, is_old=self._is_old(seed))
        self.nodes: list[Node] = []
        for number in self.membership.members:
            self.nodes.append(self.new_node(number))
        self.incarnations: list[Incarnation] = []
        self.primaries: list[Primary] = []
        self.primaries.append(self._new_primary())
        self.is_calm = False
        if self.plan.is_wild:
            self.network.chance_of_loss = self.network.chance_of_copy = 0.01
        self.invariants = Invariants(self)
        self.shapes = Shapes(self)
        self._tli = 1
        for fault in self.plan.faults:
            self.clock.call_later(fault.at_us, self._strike, fault)
        self.clock.call_later(0, self._operate)
        self.clock.call_later(self.plan.write_us, self._write)

    def _is_old(self, seed: int) -> bool:
        return seed % 5 == 0 and not self.is_changing

    def count(self, what: str) -> None:
        self.counts[what] += 1

    def new_clock(self) -> Clock:
        return Clock()

    def new_network(self) -> Network:
        return Network(self.clock, self.random)

    def new_node(self, number: int) -> Node:
        return Node(self, number, self.membership)

    # ---- the run

    def run(self) -> None:
        self.run_until(self.plan.horizon_us)
        self.end_faults()
        deadline_us = self.clock.now_us + SETTLE_US
        writes = 0
        while True:
            self.run_until(self.clock.now_us + 100_000)
            problem = self.unsettled()
            if not problem and writes == LAST_WRITES:
                self._count_segments()
                return
            if problem and self.is_excused():
                return
            if not problem:
                writes += 1
                self._last_write()
            if self.clock.now_us > deadline_us:
                raise BrokenLaw(self.law_of_rest, f"{SETTLE_US} us after the last fault {problem}")

    def is_excused(self) -> bool:
        """It cannot come to rest, and this is not a defect."""
        return False

    def _count_segments(self) -> None:
        """The segments of the committed log."""
        committed = self.invariants.committed
        self.counts["segments begun"] += (committed.lsn - START_LSN - 1) // WAL_SEG_SIZE
        ends = [lsn for lsn in committed.ends if lsn % WAL_SEG_SIZE == 0]
        self.counts["records that end with their segment"] += len(ends)

    def run_until(self, until_us: int) -> None:
        run_next, clock = self.clock.run_next, self.clock
        while clock.now_us < until_us:
            run_next()

    def _strike(self, fault: Fault) -> None:
        if not self.is_calm:
            self.trace("fault", fault, [], "")
            self.count(f"fault: {fault.kind.replace('_', ' ')}")
            self.strike(fault)

    def strike(self, fault: Fault) -> None:
        KINDS[fault.kind](self, Random(fault.seed))

    def end_faults(self) -> None:
        self.trace("world", "all faults end", [], "")
        self.is_calm = True
        self.calm_network()
        for node in self.nodes:
            node.is_paused, node.actions_left, node.disk.failure = False, None, None
            node.fails_at_truncation = False
            node.calm()
        for process in self.running():
            process.is_paused, process.actions_left = False, None
            process.ship()  # what was written through a rival of the same primary
        self.heal(set(self.network.cuts))

    def unsettled(self) -> str:
        """Why the cluster is not whole yet, or ""."""
        leaders = [p for p in self.running() if p.is_leading]
        if len(leaders) != 1 or len(self.running()) != 1:
            return f"there are {len(leaders)} leaders, {len(self.running())} proposers"
        primary = leaders[0].primary
        if primary is None or primary.log.lsn != self.invariants.committed.lsn:
            return f"{leaders[0].name} has not committed all that its primary wrote"
        return self._unequal()

    def _unequal(self) -> str:
        """Why the logs of all members are not yet the same and committed, or ""."""
        committed = self.invariants.committed
        lsn = committed.lsn
        for node in self.members():
            acceptor = node.acceptor
            if node.disk.is_gone or node.state is NodeState.GONE:
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
            if node.disk.wal != committed.read(node.disk.start_lsn, lsn):
                return f"{node.name} has other bytes"
        return ""

    def members(self) -> list[Node]:
        return self.nodes

    def _last_write(self) -> None:
        for process in self.running():
            if process.primary is not None:
                process.primary.log.append(f"last{self.steps}", 100)
                process.ship()

    # ---- the operator

    def running(self) -> list[Incarnation]:
        return [process for process in self.incarnations if process.is_alive]

    def _operate(self) -> None:
        """Keeps a proposer running; a refused primary is replaced by a promoted one."""
        if not self.running():
            primary = self.primaries[-1]
            if primary.is_deposed and not self.plan.is_restoring:
                self.complete_log()
            else:
                self.attach(self._new_primary() if self.plan.is_restoring else primary)
        self.clock.call_later(OPERATOR_US, self._operate)

    def _new_primary(self) -> Primary:
        name = f"A{len(self.primaries) + 1}"
        return Primary(name, Log(), TimelineHistory(1), self.plan.is_restoring)

    def some_primary(self, random: Random) -> Primary:
        """The newest, a deposed one, or one that is restored from the log of the next election."""
        if self.plan.is_restoring:
            self.primaries.append(self._new_primary())
            return self.primaries[-1]
        return random.choice((self.primaries[-1], random.choice(self.primaries)))

    def attach(self, primary: Primary | None, predecessor: Incarnation | None = None) -> None:
        running = self.running()
        if len(running) >= PROPOSERS_MAX:
            return
        if primary is not None and primary.is_restored and primary not in self.primaries:
            self.primaries.append(primary)
        free = [place for place in PLACES if place not in {p.place for p in running}]
        node_id = predecessor.core.node_id if predecessor is not None else None
        place, addresses = self.random.choice(free), self.addresses_for(predecessor)
        process = self.new_incarnation(place, primary, addresses, node_id)
        self.incarnations.append(process)

    def new_incarnation(
        self,
        place: int,
        primary: Primary | None,
        addresses: Sequence[Address],
        predecessor: NodeId | None,
    ) -> Incarnation:
        return Incarnation(self, place, primary, addresses, predecessor)

    def addresses_for(self, predecessor: Incarnation | None) -> list[Address]:
        """The addresses for a new process."""
        return [address_of(number) for number in self.membership.members]

    def node_at(self, address: Address) -> Node | None:
        """The node that listens there now."""
        here = [node for node in self.nodes if node.address == address]
        return here[-1] if here else None

    def attach_again(self, process: Incarnation) -> None:
        self.attach(process.primary, process)

    def complete_log(self) -> None:
        self.attach(None)

    def incarnation_stopped(self, process: Incarnation, stop: Stop) -> None:
        self.count(f"stop: {stop.outcome.value}")
        match stop.outcome:
            case Outcome.RESTART:
                self.clock.call_later(10_000, self.attach_again, process)
            case Outcome.REFUSED:
                assert process.primary is not None
                process.primary.is_deposed = True
            case Outcome.COMPLETED:
                self._promote(process)
            case Outcome.FENCED:
                return

    def _promote(self, process: Incarnation) -> None:
        """A standby that replayed the whole log becomes the primary, on a timeline of its own."""
        if not self.plan.is_restoring:
            log = self.invariants.won_log(process)
            assert process.core.leader is not None
            self.promote(Primary("", log, process.core.leader.term.tli_history, False))

    def promote(self, before: Primary) -> None:
        """A standby that has all WAL of `before`."""
        self._tli += 1
        name = f"A{len(self.primaries) + 1}"
        primary = before.promoted(name, before.log, self._tli)
        primary.log.append(f"{name}checkpoint", 120)
        self.primaries.append(primary)
        self.count("timeline switches")
        self.attach(primary)

    def load(self, count: int) -> None:
        """Clients of every attached primary, including deposed ones."""
        if not self.is_calm:
            for process in self.running():
                process.load(count)

    def _write(self) -> None:
        self.load(1)
        delay_us = int(self.plan.write_us * (0.5 + self.random.random()))
        self.clock.call_later(delay_us, self._write)

    # ---- healing

    def resume(self, process: Incarnation | Node) -> None:
        process.is_paused = False
        self.network.release()

    def kill_all(self) -> None:
        for process in self.running():
            process.kill()

    def stepped(self, process: Incarnation) -> None:
        """After each step of a proposer that continues."""

    def cut(self, cuts: set[tuple[int, int, bool]]) -> None:
        self.network.cuts |= cuts

    def heal(self, cuts: set[tuple[int, int, bool]]) -> None:
        self.network.cuts -= cuts
        self.network.release()

    def calm_network(self) -> None:
        network = self.network
        network.delay_factor, network.chance_of_loss, network.chance_of_copy = 1, 0.0, 0.0
        network.delay_us.clear()
        network.lost.clear()
        network.doubled.clear()


def first_membership(count: int, *, is_old: bool = False) -> Membership:
    members = [Member(n, instance_of(n - 1), *address_of(n)) for n in range(1, count + 1)]
    ids = tuple(member.id for member in members)
    return Membership(Stamp.FIRST, ids, (), () if is_old else tuple(members))


def plan_with(plan: Plan, kept: Sequence[int], horizon_us: int | None = None) -> Plan:
    """The same run with only some of its faults, or a shorter one."""
    faults = tuple(plan.faults[i] for i in kept)
    return replace(plan, faults=faults, horizon_us=horizon_us or plan.horizon_us)
