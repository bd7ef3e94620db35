"""`LimboCoordinator`: the process around the real core, in the process of a simulated proposer.

It does what the coordinator of `walproposer/qsync` does, late and in pieces: readings between two
flush positions, streams that begin anywhere and repeat themselves, statements whose answer is lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from quorum_wal.consensus.ids import NodeId
from quorum_wal.pgwire.logical import CommitPrepared, Prepare, RollbackPrepared
from quorum_wal.walproposer.qsync.limbo import Limbo
from quorum_wal.walproposer.qsync.limbo_events import (
    Action,
    Alarm,
    Answer,
    CommitAdvanced,
    Decoded,
    Event,
    Fenced,
    Finish,
    FinishEnded,
    Led,
    LimboEntry,
    LimboRead,
    QuorumChanged,
    Read,
    RefuseWait,
    RoundAnswered,
    Tick,
    WaitCancelled,
)
from quorum_wal.walproposer.qsync.outcome_answer import (
    Evidence,
    OutcomeAnswer,
    XidStatus,
    is_of_server,
    outcome_of,
)
from quorum_wal.walproposer.qsync.prepare_search import search_end_lsn

from .actor import Actor, Reply
from .limbo_database import Kind, Op, Transaction
from .limbo_primary import CANNOT_CONNECT, LimboPrimary

if TYPE_CHECKING:
    from .limbo_world import LimboIncarnation, LimboWorld

TICK_US = 20_000
#: From here to a client, or to a primary.
NET_US = (200, 200, 1000, 5000)
DATABASES = ("a", "b")


@dataclass(slots=True)
class Stream:
    """The logical stream of one database: it has sent `ops` of the primary so far."""

    led: Led
    database: str
    sent: int


class LimboCoordinator:
    """One process: its incarnations change, the core stays."""

    def __init__(self, world: LimboWorld, process: LimboIncarnation) -> None:
        self.world = world
        self.process = process
        self.random: Random = world.random
        self.limbo = Limbo(world.settings)
        self.is_alive = True
        #: The last Led that was delivered without a later Fenced.
        self.led: Led | None = None
        #: The delivered part of its commit_lsn.
        self.commit_lsn = 0
        self.led_us = self.round = 0
        self._inbox: deque[Event] = deque()
        self._asks: dict[int, Reply[Answer | RefuseWait | None]] = {}
        self._announced: Led | None = None
        self._is_reading = self._reads_again = False
        self._tick()

    @property
    def name(self) -> str:
        return f"{self.process.name}q"

    @property
    def primary(self) -> LimboPrimary | None:
        primary = self.process.primary
        assert primary is None or isinstance(primary, LimboPrimary)
        return primary

    # ---- the core

    def tell(self, event: Event) -> None:
        """In order; a paused process handles them later."""
        self._inbox.append(event)
        while self._inbox and self.is_alive and not self.process.is_paused:
            self._step(self._inbox.popleft())

    def _step(self, event: Event) -> None:
        self.world.steps += 1
        if isinstance(event, Led):
            self.led, self.commit_lsn = event, 0
        elif isinstance(event, Fenced):
            self.led = None
        elif isinstance(event, CommitAdvanced) and self.leads_as(event.node_id):
            self.commit_lsn = max(self.commit_lsn, event.commit_lsn)
        actions = self.limbo.step(event)
        self.world.trace(self.name, event, actions, "")
        self.world.laws.coordinator_stepped(self, event, actions)
        for action in actions:
            self._carry_out(action)

    def leads_as(self, node_id: NodeId) -> bool:
        return self.led is not None and self.led.node_id == node_id

    def _carry_out(self, action: Action) -> None:
        match action:
            case Answer() | RefuseWait():
                reply = self._asks.pop(action.waiter, None)
                if reply is not None:
                    self._later(self.random.choice(NET_US), reply.give, action)
            case Finish():
                assert self.led is not None
                Actor(self.world.clock, self._finish(self.led, action))
            case Read():
                self._reads_again = True
                if not self._is_reading and self.led is not None:
                    self._is_reading = True
                    Actor(self.world.clock, self._read())
            case Alarm():
                self.world.count("limbo: alarms")

    def _later(self, delay_us: int, call: Any, *arguments: Any) -> None:
        self.world.clock.call_later(delay_us, call, *arguments)

    # ---- the process around it

    def look(self) -> None:
        """After each step of the proposer: the hook of the incarnation."""
        process, primary = self.process, self.primary
        if not self.is_alive or not process.is_leading or primary is None:
            return
        leader, node_id = process.core.leader, process.core.node_id
        assert leader is not None
        assert node_id is not None
        if self._announced is None or self._announced.node_id != node_id:
            term_start_lsn = leader.term.term_start_lsn
            led = Led(node_id, term_start_lsn, primary.tli_history, primary.start_us)
            self._announced, self.led_us = led, self.world.clock.now_us
            self.tell(led)
            self._start_streams(led, primary)
        if leader.commit_lsn >= self.limbo.wake_lsn:
            delay_us = self.random.choice((0, 0, 500, 3000))
            self._later(delay_us, self.tell, CommitAdvanced(node_id, leader.commit_lsn))

    def _tick(self) -> None:
        if not self.is_alive:
            return
        self._later(TICK_US, self._tick)
        if self.process.is_paused:
            return
        process = self.process
        if process.is_leading and self.led is not None:
            leader, node_id = process.core.leader, process.core.node_id
            assert leader is not None
            assert node_id is not None
            self.tell(CommitAdvanced(node_id, leader.commit_lsn))
            self.round += 1
            is_ok = self.world.has_promises(process)
            self._later(self.random.choice((500, 300_000)), self.tell, QuorumChanged(is_ok))
            if is_ok:
                answered = RoundAnswered(node_id, self.round)
                self._later(self.random.choice((500, 3000, 30_000)), self.tell, answered)
        self.tell(Tick(self.world.now_ms))

    def fence(self, reason: str) -> None:
        """The incarnation is over; the process may continue with another one."""
        self._announced = None
        self.tell(Fenced(reason))

    def die(self) -> None:
        """The process ends, and all its connections break."""
        self.is_alive = False
        for reply in self._asks.values():
            self._later(self.random.choice(NET_US), reply.give, None)
        self._asks.clear()

    # ---- clients

    def ask(self, waiter: int, question: Any) -> Reply[Answer | RefuseWait | None]:
        """`question(coordinator)` creates the event when it has arrived. None: connection lost."""
        reply: Reply[Answer | RefuseWait | None] = Reply()
        self._later(self.random.choice(NET_US), self._asked, waiter, question, reply)
        return reply

    def _asked(self, waiter: int, question: Any, reply: Reply[Any]) -> None:
        if not self.is_alive:
            reply.give(None)
            return
        self._asks[waiter] = reply
        self.tell(question(self))

    def cancel(self, waiter: int) -> None:
        """A cancel request, which may hit the question after the intended one: 57014."""
        reply = self._asks.pop(waiter, None)
        if self.is_alive and reply is not None:
            self.tell(WaitCancelled(waiter))
            reply.give(None)

    def send(self, event: Event) -> None:
        self._later(self.random.choice(NET_US), self.tell, event)

    def outcome(self, of: Transaction, lsn: int) -> Reply[OutcomeAnswer | None]:
        """OUTCOME; None is an error, or no answer."""
        reply: Reply[OutcomeAnswer | None] = Reply()
        Actor(self.world.clock, self._outcome(of, lsn, reply), bury=lambda: reply.give(None))
        return reply

    def _outcome(
        self, of: Transaction, lsn: int, reply: Reply[OutcomeAnswer | None]
    ) -> Generator[int, None, None]:
        yield self.random.choice(NET_US)
        led, primary = self.led, self.primary
        if led is None or primary is None:
            return
        run, pauses = primary.run, self.random.choice((NET_US, (0,), (20_000,)))
        yield self.random.choice(pauses)
        prepared = primary.database.prepared.get(of.name)
        is_prepared = prepared is not None and prepared.valid_us <= self.world.clock.now_us
        is_lost = primary.is_down or primary.run != run
        yield self.random.choice(pauses)
        status = primary.database.status_of(of.gid.xid)
        yield self.random.choice(pauses)
        flushed_lsn = primary.log.lsn
        is_found = self._look_for(led, primary, of, lsn, status, flushed_lsn)
        is_lost = is_lost or primary.is_down or primary.run != run
        yield self.random.choice(pauses)
        if is_lost or not self.is_alive or self.led is not led or not self.limbo.is_deciding:
            return
        table = self.limbo.table
        departure = table.departures.get(of.name)
        answer = outcome_of(
            Evidence(
                gid=of.gid,
                lsn=lsn,
                led=led,
                departure=departure,
                is_in_log=table.is_in_log(of.name) or is_found,
                is_prepared=is_prepared,
                xid_status=status,
                flushed_lsn=flushed_lsn,
                commit_lsn=self.limbo.commit_lsn,
            )
        )
        self.world.laws.outcome_told(self, of, answer)
        yield self.random.choice(NET_US)
        reply.give(answer)

    def _look_for(
        self,
        led: Led,
        primary: LimboPrimary,
        of: Transaction,
        lsn: int,
        status: XidStatus,
        flushed_lsn: int,
    ) -> bool | None:
        """Search its PREPARE in the log of the primary; old WAL may be removed."""
        end_lsn = search_end_lsn(of.gid, lsn, led.history, flushed_lsn)
        is_sure = is_of_server(of.gid, lsn, led.server)
        if status is not XidStatus.COMMITTED or end_lsn is None or is_sure:
            return None
        if not self.world.is_calm and self.random.random() < 0.2:
            return None
        self.world.count("limbo: searches")
        return any(
            op.of is of and op.kind is Kind.PREPARE and of.gid.begin_lsn <= op.end_lsn <= end_lsn
            for op in self.world.ops.of(primary.log)
        )

    # ---- the primary

    def begin_slow_reading(self) -> None:
        """Its first flush position is that of this moment."""
        if not self._is_reading and self.led is not None:
            self._reads_again = self._is_reading = True
            Actor(self.world.clock, self._read((0, 20_000)))

    def _read(self, pauses: tuple[int, ...] = ()) -> Generator[int, None, None]:
        """Late, but one after the other."""
        while self._reads_again and self.is_alive:
            self._reads_again = False
            led, primary = self.led, self.primary
            if led is None or primary is None:
                break
            run = primary.run
            pauses = pauses or self.random.choice((NET_US, NET_US, (0,), (50_000,)))
            yield pauses[0]
            before_lsn = primary.log.lsn
            yield pauses[-1]
            now_us = self.world.clock.now_us
            entries = tuple(
                LimboEntry(name, p.of.database, "owner", p.xid, p.prepared_at_us)
                for name, p in primary.database.prepared.items()
                if p.valid_us <= now_us
            )
            yield self.random.choice(pauses)
            after_lsn = primary.log.lsn
            is_lost = primary.is_down or primary.run != run
            yield self.random.choice(pauses)
            if not is_lost:
                self.world.count("limbo: readings")
                now_ms = self.world.now_ms
                self.tell(LimboRead(led.node_id, entries, before_lsn, after_lsn, now_ms))
            pauses = ()
        self._is_reading = False

    def _finish(self, led: Led, finish: Finish) -> Generator[int, None, None]:
        """The statement may be executed although no session waits for its answer any more."""
        primary, random = self.primary, self.random
        assert primary is not None
        yield random.choice(NET_US)
        if not self.is_alive and random.random() < 0.5:
            return
        sqlstate = primary.finish(finish.gid, is_commit=finish.commit)
        run = primary.run
        yield random.choice(NET_US)
        if primary.run != run or random.random() < 0.05:
            sqlstate = CANNOT_CONNECT
        self.world.count(f"limbo: finished: {sqlstate or finish.commit}")
        end_lsn = 0 if sqlstate else primary.log.lsn
        yield random.choice(NET_US)
        self.tell(FinishEnded(led.node_id, finish.gid, sqlstate, end_lsn))

    # ---- the logical streams

    def _start_streams(self, led: Led, primary: LimboPrimary) -> None:
        """At once, later, or never; from a past position, as its slot says, or from now."""
        for database in DATABASES:
            delay_us = self.random.choice(self.world.stream_delays_us)
            if delay_us is not None:
                self._later(delay_us, self._start_stream, led, primary, database)

    def _start_stream(self, led: Led, primary: LimboPrimary, database: str) -> None:
        back = self.random.choice((0, 0, 3, 10, 100))
        stream = Stream(led, database, max(len(primary.database.ops) - back, 0))
        Actor(self.world.clock, self._streams(stream, primary, primary.run))

    def _streams(
        self, stream: Stream, primary: LimboPrimary, run: int
    ) -> Generator[int, None, None]:
        begun = stream.sent
        while self.is_alive and self._announced is stream.led and primary.run == run:
            batch = []
            ops = primary.database.ops
            while stream.sent < len(ops) and ops[stream.sent].end_lsn <= primary.log.lsn:
                op = ops[stream.sent]
                stream.sent += 1
                if op.of is not None and op.of.database == stream.database:
                    batch += self._messages(ops, op, begun)
            if self.random.random() < 0.02:  # it is interrupted, and begins again
                stream.sent = max(stream.sent - self.random.choice((1, 5, 20)), begun)
            yield self.random.choice((0, 500, 2000, self.world.stream_lag_us))
            for message in batch:
                self.world.count(f"limbo: decoded {type(message).__name__}")
                self.tell(Decoded(stream.led.node_id, stream.database, message))
            yield self.random.choice((2000, 10_000))

    def _messages(
        self, ops: list[Op], op: Op, begun: int
    ) -> list[Prepare | CommitPrepared | RollbackPrepared]:
        """The messages for a record. For a PREPARE before the stream's begin nothing was sent; some
        servers send it right before its COMMIT PREPARED."""
        assert op.of is not None
        name = op.of.name
        if op.kind is Kind.PREPARE:
            return [Prepare(op.start_lsn, op.end_lsn, op.at_us, op.xid, name)]
        if op.kind is Kind.ROLLBACK_PREPARED:
            times = (op.prepared_at_us, op.at_us)
            return [RollbackPrepared(op.prepare_end_lsn, op.end_lsn, *times, op.xid, name)]
        committed = CommitPrepared(op.start_lsn, op.end_lsn, op.at_us, op.xid, name)
        for prepare in ops[:begun]:
            is_its = prepare.kind is Kind.PREPARE and prepare.end_lsn == op.prepare_end_lsn
            if is_its and self.random.random() < 0.5:
                head = (prepare.start_lsn, prepare.end_lsn, prepare.at_us, prepare.xid)
                return [Prepare(*head, name), committed]
        return [committed]
