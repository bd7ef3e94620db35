"""`LimboWorld`: transactions that wait for the quorum, on top of the simulator's proposers and
safekeepers.

Its primaries have sessions, prepared transactions and crashes; each proposer's process has a
coordinator with the real core (`limbo_coordinator.py`). After the faults, every transaction in the
limbo must end, and every outcome be known (`limbo_laws.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from quorum_wal.consensus.ids import NodeId
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.walproposer.qsync.limbo_events import LimboSettings, Order
from quorum_wal.walproposer.stream.events import Outcome, Stop

from .actor import Actor
from .faults import Fault, Plan
from .incarnation import Incarnation
from .invariants import Invariants
from .limbo_clients import Client, admin, asker, barrier_reader, reader, stranger
from .limbo_coordinator import LimboCoordinator
from .limbo_database import Kind, Op, Ops, Transaction
from .limbo_faults import OWN_FAULTS, LimboPlan
from .limbo_laws import LimboLaws
from .limbo_primary import LimboPrimary
from .log import Log
from .node import Address
from .primary import Primary
from .trace import Trace
from .world import World

#: Of the wall clock when a run begins: Postgres' epoch, so that its times are those of the clock.
BEGIN_MS = 946_684_800_000
OPEN_US = 5000


class LimboIncarnation(Incarnation):
    """Its process has a coordinator, maybe that of an earlier incarnation."""

    coordinator: LimboCoordinator | None = None

    def kill(self) -> None:
        super().kill()
        if self.coordinator is not None:
            if self.stop is not None:
                self.coordinator.fence(self.stop.outcome.value)
            if self.stop is None or self.stop.outcome is not Outcome.RESTART:
                self.coordinator.die()

    def lose_primary(self) -> None:
        """The incarnation ends, the process continues."""
        super().kill()
        if self.coordinator is not None:
            self.coordinator.fence("the primary is gone")


class LimboInvariants(Invariants):
    """The invariants of the protocol; the laws of the limbo also get every commit."""

    def reported(self, process: Incarnation, lsn: int) -> None:
        super().reported(process, lsn)
        self.world.laws.committed_grew()

    def completed(self, process: Incarnation) -> None:
        node_id = process.core.node_id
        ghost = self.ghosts[node_id]
        lsn = self.commits[node_id] = ghost.log.lsn
        if lsn > self.committed.lsn:
            self.committed.extend(ghost.log, lsn)
        for later in self.ghosts.values():
            self._check_acked(node_id, lsn, later)
        self.world.laws.committed_grew()


class LimboWorld(World):
    plan_of = staticmethod(LimboPlan.of)
    law_of_rest = "Finished"
    option = "--limbo "

    def __init__(self, seed: int, plan: Plan | None = None, trace: Trace | None = None) -> None:
        random = Random(f"limbo world {seed}")
        self.ops = Ops()
        self.transactions: dict[int, Transaction] = {}
        self.by_name: dict[str, Transaction] = {}
        self.transactions_count = self._waiters = self._servers = 0
        self.settings = LimboSettings(
            limbo_max=random.choice((4, 20, 20)),
            age_max_ms=random.choice((300, 5000)),
            orphan_grace_ms=random.choice((20, 100, 300)),
            order=random.choice((Order.ANY, Order.ANY, Order.FIFO)),
            read_interval_ms=random.choice((50, 300)),
        )
        self.chance_of_death = random.choice((0.0, 0.2, 0.6))
        #: Of a promotion that gives a timeline a number which another one may have.
        self.chance_of_twins = random.choice((0.0, 0.7))
        #: None: there is no stream of that database, as on Postgres 13 and 14.
        self.stream_delays_us = random.choice(
            ((None,), (0,), (0, 0, 100_000, None), (0, 0, 100_000, None))
        )
        self.stream_lag_us = random.choice((500, 500, 20_000, 200_000))
        self.client_us = random.choice((3000, 10_000, 30_000))
        self.clients: list[Client] = []
        self._askers: list[Actor] = []
        #: Promoted by hand: open at once, and to be checked when its limbo is resolved.
        self._by_hand: list[LimboPrimary] = []
        self._limbo_random = random
        super().__init__(seed, plan or LimboPlan.of(seed), trace)
        self.invariants = LimboInvariants(self)
        self.laws = LimboLaws(self)
        actors = [reader, barrier_reader, admin if random.random() < 0.3 else stranger]
        for actor in actors:
            Actor(self.clock, actor(self, random))
        self.clock.call_later(0, self._begin_client)
        self.clock.call_later(0, self._open)

    # ---- state

    @property
    def now_ms(self) -> int:
        return BEGIN_MS + self.clock.now_us // 1000

    def register(self, of: Transaction) -> Transaction:
        self.transactions[of.number] = self.by_name[of.name] = of
        return of

    def next_waiter(self) -> int:
        self._waiters += 1
        return self._waiters

    def next_server(self) -> int:
        self._servers += 1
        return self._servers

    def coordinators(self) -> list[LimboCoordinator]:
        all_of_them = [p.coordinator for p in self.running() if p.coordinator is not None]
        return list(dict.fromkeys(all_of_them))

    def some_coordinator(
        self, random: Random, server: LimboPrimary | None
    ) -> LimboCoordinator | None:
        """Mostly one that is attached to this server; it may be a deposed one, or that of another
        server."""
        found = self.coordinators()
        of_server = [c for c in found if c.primary is server]
        if of_server and random.random() < 0.9:
            return random.choice(of_server)
        return random.choice(found) if found else None

    def some_server(self, random: Random) -> LimboPrimary | None:
        """Mostly the newest."""
        found = [p for p in self.primaries if p.is_open and not p.is_down and not p.is_quiet]
        if not found:
            return None
        return found[-1] if random.random() < 0.7 else random.choice(found)

    def older_in_limbo(self, primary: LimboPrimary) -> list[str]:
        return [
            name
            for name, prepared in primary.database.prepared.items()
            if not prepared.of.is_foreign and prepared.of.gid.tli != primary.tli_history.tli
        ]

    def has_promises(self, process: Incarnation) -> bool:
        """Whether a quorum that it reaches follows it now."""
        node_id = process.core.node_id
        obeying = [
            node
            for node in self.nodes
            if node.is_reachable and process.reaches(node) and node.disk.control.promised == node_id
        ]
        return len(obeying) > len(self.nodes) // 2

    # ---- clients

    def _begin_client(self) -> None:
        random = self._limbo_random
        if not self.is_calm:
            server = self.some_server(random)
            if server is not None:
                self.clients.append(Client(self, server, random))
            delay_us = random.choice((100, self.client_us, self.client_us * 2))
            self.clock.call_later(delay_us, self._begin_client)

    def ask_outcome(self, of: Transaction, lsn: int, random: Random) -> None:
        self._askers.append(Actor(self.clock, asker(self, of, lsn, random)))

    # ---- primaries

    def _new_primary(self) -> Primary:
        name = f"A{len(self.primaries) + 1}"
        return LimboPrimary(self, name, Log(), TimelineHistory(1), 0)

    def _open(self) -> None:
        """As sk promote does once the proposer is attached: clients may write when the older
        transactions are committed."""
        self.clock.call_later(OPEN_US, self._open)
        for coordinator in self.coordinators():
            primary = coordinator.primary
            if primary is None or primary.is_down or not coordinator.limbo.is_deciding:
                continue
            if not primary.is_open and self.may_open(primary):
                primary.is_open = True
                self.laws.let_in(primary, coordinator.led_us, in_order=True)
            if primary in self._by_hand and not self.older_in_limbo(primary):
                self._by_hand.remove(primary)
                self.laws.let_in(primary, coordinator.led_us, in_order=False)

    def may_open(self, primary: LimboPrimary) -> bool:
        return not self.older_in_limbo(primary)

    def promote(self, before: Primary) -> None:
        """In order if `before` has no name: it is the log of an election; otherwise by hand."""
        in_order = not before.name
        self._tli += 1
        tli = self._tli
        if self._limbo_random.random() < self.chance_of_twins:
            tli = before.tli_history.tli + 1  # as a Postgres does that knows of no other one
        if in_order:
            history = before.tli_history
            before = LimboPrimary(self, "", before.log, history, 0)
        name = f"A{len(self.primaries) + 1}"
        primary = before.promoted(name, before.log, tli)
        primary.insert(Op(Kind.COMMIT, primary.database.next_xid, self.clock.now_us), 120)
        primary.flush()
        primary.is_open = not in_order
        if not in_order:
            self._by_hand.append(primary)
        self.primaries.append(primary)
        self.count("timeline switches")
        left = ", ".join(f"{e.tli} at {e.switch_lsn}" for e in primary.tli_history.entries)
        self.trace(name, f"is promoted, left {left}", [], "in order" if in_order else "by hand")
        self.promoted(primary)
        self.attach(primary)

    def promoted(self, primary: LimboPrimary) -> None:
        """Before a proposer is attached."""

    def crash(self, primary: LimboPrimary, back_us: int) -> None:
        """Its proposers' processes lose it, and attach again when it is back."""
        self.trace(primary.name, "crashes", [], "")
        primary.crash()
        self.clock.call_later(back_us, self._restart, primary)
        for process in self.running():
            if process.primary is primary:
                process.lose_primary()
                self.clock.call_later(back_us + 1000, self.attach_again, process)

    def _restart(self, primary: LimboPrimary) -> None:
        self.trace(primary.name, "is up again", [], "")
        primary.restart()

    # ---- proposers

    def strike(self, fault: Fault) -> None:
        own = OWN_FAULTS.get(fault.kind)
        if own is not None:
            own(self, Random(fault.seed))
        else:
            super().strike(fault)

    def new_incarnation(
        self,
        place: int,
        primary: Primary | None,
        addresses: Sequence[Address],
        predecessor: NodeId | None,
    ) -> Incarnation:
        return LimboIncarnation(self, place, primary, addresses, predecessor)

    def attach(self, primary: Primary | None, predecessor: Incarnation | None = None) -> None:
        """A process that continues still has its coordinator; its DSN may lead to another server
        now."""
        count = len(self.incarnations)
        if primary is not None and predecessor is not None and self.random.random() < 0.3:
            primary = self.primaries[-1]
        if primary is None or not primary.is_down:
            super().attach(primary, predecessor)
        old = predecessor.coordinator if isinstance(predecessor, LimboIncarnation) else None
        if len(self.incarnations) == count:
            if old is not None:
                old.die()
            return
        process = self.incarnations[-1]
        if primary is None or not process.is_alive:
            return
        if old is not None and old.is_alive:
            old.process = process
            process.coordinator = old
        else:
            process.coordinator = LimboCoordinator(self, process)

    def stepped(self, process: Incarnation) -> None:
        if process.coordinator is not None:
            process.coordinator.look()

    def incarnation_stopped(self, process: Incarnation, stop: Stop) -> None:
        """One that has completed the log has it on a quorum, and no primary to report it to."""
        if stop.outcome is Outcome.COMPLETED:
            self.invariants.completed(process)
        super().incarnation_stopped(process, stop)

    # ---- the end

    def end_faults(self) -> None:
        for primary in self.primaries:
            primary.is_down = primary.is_quiet = False
        super().end_faults()

    def _last_write(self) -> None:
        for process in self.running():
            primary = process.primary
            if primary is not None:
                op = Op(Kind.COMMIT, primary.database.next_xid, self.clock.now_us)
                primary.insert(op, 100)
                primary.flush()

    def unsettled(self) -> str:
        problem = super().unsettled()
        if problem:
            return problem
        if any(not client.actor.is_over for client in self.clients):
            return "some client is not done"
        leader = next(process for process in self.running() if process.is_leading)
        problem = self.laws.at_rest(leader.primary)
        if not problem and any(not actor.is_over for actor in self._askers):
            return "some outcome is not known"
        return problem
