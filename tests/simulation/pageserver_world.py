"""`PageserverWorld`: pageservers of two node ids, one of them twice now and then, their generation
service, one object store, readers and an operator, under one seed.

    chaos until the horizon -> every fault ends -> within SETTLE_US all attached, no garbage left
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from random import Random
from typing import Any

from quorum_wal.consensus.ids import TimelineId
from quorum_wal.generations.suffix import Suffix
from quorum_wal.pageserver.attachments.attachment import Phase
from quorum_wal.pageserver.attachments.attachment_events import Mode
from quorum_wal.pageserver.attachments.timeline_removal import (
    AllListed,
    BatchDeleted,
    CreateTombstone,
    DeleteBatch,
    ListAll,
    RemovalBegun,
    RemovalFailed,
    TimelineRemoval,
    TimelineRemoved,
    TombstoneCreated,
)
from quorum_wal.pageserver.objects.page_keys import IndexName, TombstoneName

from .broken_law import BrokenLaw
from .clock import Clock
from .faults import Fault, Plan
from .pageserver_emergency import Emergency
from .pageserver_faults import KINDS, PageserverPlan
from .pageserver_history import PageHistory
from .pageserver_laws import PageserverLaws
from .pageserver_process import Process
from .pageserver_service import ServiceModel
from .pageserver_store import PageStore, StoredObject
from .trace import Trace

TENANTS = (bytes(15) + b"\1", bytes(15) + b"\2")
TIMELINES = (
    TimelineId(TENANTS[0], bytes(15) + b"\1"),
    TimelineId(TENANTS[0], bytes(15) + b"\2"),
    TimelineId(TENANTS[1], bytes(15) + b"\3"),
)
NODE_IDS = [1, 2, 3]
PROCESSES_MAX = 6
#: The time after the last fault until everything must be at rest.
SETTLE_US = 3_000_000
WAL_BYTES_PER_MS = 50
#: The time until the last request has landed, once there are no faults.
LATEST_MS = 200


class PageserverWorld:
    """`run()` raises BrokenLaw, or an error of a core, at the first bad step."""

    plan_of = staticmethod(PageserverPlan.of)
    option = "--pageserver "

    def __init__(self, seed: int, plan: Plan | None = None, trace: Trace | None = None) -> None:
        self.seed = seed
        self.plan = plan or self.plan_of(seed)
        self.random = random = Random(f"pageserver world {seed}")
        self.trace: Trace = trace or Trace(None)
        self.counts: Counter[str] = Counter()
        self.steps = 0
        self.clock = self.trace.clock = Clock()
        self.is_calm = False
        #: At the end: actions that stop, because they create garbage themselves.
        self._ended_work: tuple[str, ...] = ()
        self._quiet_us = 0
        self.timelines = TIMELINES
        self.grace_ms = random.choice((5, 20, 40))
        self.history_s = random.choice((10, 40))
        self.request_us = random.choice(((200, 500, 1000), (500, 2000, 8000)))
        self.chance_of_fault = random.choice((0.0, 0.05, 0.15))
        #: The delay of a write that takes effect once more, from a proxy.
        self.chance_of_copies = random.choice((0.0, 0.0, 0.3))
        #: The delay of the answers to lists of claims.
        self.claims_unheard_us = 0
        self.period_us = {
            work: random.choice((5_000, 15_000, 40_000))
            for work in ("ingest", "compact", "collect", "scrub", "flush", "validate")
        }
        self.history = PageHistory(Random(f"pageserver history {seed}"))
        self.laws = PageserverLaws(self)
        self.store = PageStore(self)
        self.service = ServiceModel(self, NODE_IDS, list(TENANTS))
        self.processes: list[Process] = []
        self._serial = 0
        for node_id in NODE_IDS:
            self.start(node_id)
        for fault in self.plan.faults:
            self.clock.call_later(fault.at_us, self._strike, fault)
        for work in self.period_us:
            self.clock.call_later(1000, self._work, work)
        self.clock.call_later(5000, self._operate)
        self.clock.call_later(5000, self._read)

    def count(self, what: str, number: int = 1) -> None:
        self.counts[what] += number

    def stepped(self, who: str, event: Any, actions: list[Any]) -> None:
        self.steps += 1
        self.trace(who, event, actions, "")

    @property
    def now_s(self) -> int:
        """History is counted in milliseconds here."""
        return self.clock.now_us // 1000 + 1000

    def wal_lsn(self) -> int:
        return 1000 + self.clock.now_us * WAL_BYTES_PER_MS // 1000

    # ---- the run

    def run(self) -> None:
        self._run_until(self.plan.horizon_us)
        self.end_faults()
        deadline_us = self.clock.now_us + SETTLE_US
        while problem := self._unsettled():
            if self.clock.now_us > deadline_us:
                law, _, text = problem.partition(": ")
                raise BrokenLaw(law, f"{SETTLE_US} us after the last fault {text}")
            self._run_until(self.clock.now_us + 20_000)

    def _run_until(self, until_us: int) -> None:
        run_next, clock = self.clock.run_next, self.clock
        while clock.now_us < until_us:
            run_next()

    def _strike(self, fault: Fault) -> None:
        if not self.is_calm:
            self.trace("fault", fault, [], "")
            self.count(f"fault: {fault.kind.replace('_', ' ')}")
            KINDS[fault.kind](self, Random(fault.seed))

    def end_faults(self) -> None:
        self.trace("world", "all faults end", [], "")
        self.is_calm = True
        self.claims_unheard_us = 0
        self.service.is_down, self.service.delays_us = False, (500, 1000)
        for process in self.running():
            process.actions_left = None
            if process.is_frozen:
                process.wake()
            if process.is_emergency:
                process.kill()
        for tenant in TENANTS:
            self.settle(tenant)
        self.operator_advances()
        newest = {process.node_id: process for process in self.running()}
        for process in self.running():
            if newest[process.node_id] is not process:
                process.kill()

    def _unsettled(self) -> str:
        for timeline in TIMELINES:
            if timeline in self.service.state.deleted:
                continue
            ready = [
                there
                for process in self.running()
                if (there := process.attached.get(timeline)) is not None
                and there.core.phase is Phase.ACTIVE
                and there.core.mode is Mode.SINGLE
            ]
            if len(ready) != 1:
                return f"Advances: {timeline} is attached {len(ready)} times"
            if (
                self.laws.trimmed_lsn.get(timeline, 0)
                < self.plan.horizon_us * WAL_BYTES_PER_MS // 1000
            ):
                return f"Advances: WAL of {timeline} is not given up"
        return self._littered()

    def _littered(self) -> str:
        """First no change happens any more, then no search, then the lists are empty."""
        if not self._ended_work:
            self._ended_work = ("ingest", "compact", "collect")
            self._quiet_us = self.clock.now_us
        quiet_ms = (self.clock.now_us - self._quiet_us) // 1000
        if quiet_ms < LATEST_MS + 8 * self.grace_ms:
            return "GarbageEnds: it has not begun"
        self._ended_work = ("ingest", "compact", "collect", "scrub")
        return self.laws.lists() or self.laws.garbage()

    # ---- what happens by itself

    def running(self) -> list[Process]:
        return [process for process in self.processes if process.is_alive]

    def start(self, node_id: int) -> Process:
        self._serial += 1
        process = Process(self, node_id, self._serial)
        self.processes = [*self.running(), process]
        process.start()
        return process

    def start_in_emergency(self, node_id: int) -> Emergency:
        self._serial += 1
        process = Process(self, node_id, self._serial)
        self.processes = [*self.running(), process]
        return Emergency(process)

    def ended(self, process: Process) -> None:
        """Its objects serve no reads any more."""
        for timeline in process.attached:
            self.laws.multi_ended(timeline)

    def _work(self, work: str) -> None:
        if work in self._ended_work:
            return
        for process in self.running():
            if process.is_frozen:
                continue
            if work in ("flush", "validate"):
                getattr(process, work)()
                continue
            for there in list(process.attached.values()):
                if process.is_alive and process.attached.get(there.id.timeline) is there:
                    getattr(process, work)(there)
        period_us = min(self.period_us[work], 15_000) if self.is_calm else self.period_us[work]
        self.clock.call_later(period_us, self._work, work)

    def _operate(self) -> None:
        """Starts missing processes, announces attachments to pageservers, deletes timelines."""
        self.processes = self.running()
        for node_id in NODE_IDS:
            if all(process.node_id != node_id for process in self.processes):
                self.start(node_id)
        for process in self.processes:
            if process.queue is not None:
                ask = partial(self.service.attached, process.node_id)
                self.service.ask(ask, process.later(process.attach), lambda: None)
        for timeline in sorted(self.service.state.deleted):
            self.remove(timeline)
        self.clock.call_later(20_000, self._operate)

    def operator_reads_refusal(self, process: Process, timeline: TimelineId) -> None:
        """The operator follows the hint, and starts it again."""
        if timeline not in self.service.state.deleted:
            self.operator_advances()
            if process.is_alive and process.queue is not None:
                process.kill()

    def operator_advances(self) -> None:
        """Reports to the service the numbers in the store, which a copy may lack."""
        for timeline in TIMELINES:
            names = [each.name for each in self.store.list(timeline)]
            for name in names:
                if isinstance(name, TombstoneName):
                    self.service.delete_timeline(timeline)
                else:
                    self.service.advance(timeline.tenant_id, name.suffix)
        for node_id in NODE_IDS:
            for found in self.store.list(node_id):
                self.service.advance_node(node_id, found.name.suffix.node_generation)

    def move(self, tenant: bytes, node_id: int, mode: Mode) -> None:
        """The present pageserver continues: with MULTI it serves reads until the move is
        complete."""
        self.settle(tenant)
        at = self.service.state.tenants[tenant]
        if mode is Mode.MULTI:
            suffix = Suffix.pack(at.generation, at.node_id, self.service.state.nodes[at.node_id])
            for process in self.running():
                for timeline, there in process.attached.items():
                    is_current = timeline.tenant_id == tenant and there.core.suffix == suffix
                    if is_current and there.core.may_write:
                        self.laws.multi_began(timeline, there.core.index)
        self.service.move(tenant, node_id, mode)

    def settle(self, tenant: bytes) -> None:
        for timeline in TIMELINES:
            if timeline.tenant_id == tenant:
                self.laws.multi_ended(timeline)
        self.service.settle(tenant)

    # ---- readers

    def _read(self) -> None:
        """A reader begins with the newest index, and reads until the grace ends."""
        timeline = self.random.choice(TIMELINES)
        names = [o for o in self.store.list(timeline) if isinstance(o.name, IndexName)]
        if names and timeline not in self.laws.tombstone_us:
            newest: StoredObject = max(names, key=lambda o: o.name)
            for _ in range(2):
                at_us = self.random.randrange((self.grace_ms - 1) * 1000)
                self.clock.call_later(at_us, self.laws.read, timeline, newest)
            self.count("readers")
        self.clock.call_later(self.random.choice((2000, 10_000)), self._read)

    # ---- deleting a timeline

    def delete_timeline(self, timeline: TimelineId) -> None:
        """The intent; `_operate` does the rest, repeatedly."""
        self.service.delete_timeline(timeline)
        self.remove(timeline)

    def remove(self, timeline: TimelineId) -> None:
        """By any process; half of them end before they are done."""
        core = TimelineRemoval(Suffix(0))
        dies = not self.is_calm and self.random.random() < 0.5

        def step(event: Any) -> None:
            actions = core.step(event)
            self.stepped("removal", event, actions)
            for action in actions:
                if dies and self.random.random() < 0.2:
                    return
                execute(action)

        def execute(action: Any) -> None:
            failed = lambda: step(RemovalFailed(action))  # noqa: E731
            store = self.store
            match action:
                case CreateTombstone():
                    land = lambda: store.create(timeline, TombstoneName(), "", "")  # noqa: E731
                    store.ask(land, lambda _: step(TombstoneCreated()), failed, is_write=True)
                case ListAll():
                    store.ask_list(
                        timeline,
                        lambda f: step(AllListed(tuple(o.name.format() for o in f))),
                        failed,
                    )
                case DeleteBatch(names):
                    delete = lambda: [store.delete(timeline, name) for name in names]  # noqa: E731
                    store.ask(delete, lambda _: step(BatchDeleted(names)), failed, is_write=True)
                case TimelineRemoved():
                    self.count("timelines removed")

        step(RemovalBegun())
