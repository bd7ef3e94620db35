"""Clients of the limbo: clients that may die at each step, clients that ask, readers,
administrators, foreign programs.

A client does what `qsync/` does: admit, write, PREPARE, WAIT_LSN, COMMIT PREPARED. The laws check
its reports to its user, and everything that readers see.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from quorum_wal.qsync.gid import Gid, Policy
from quorum_wal.walproposer.qsync.limbo_events import (
    Answer,
    BarrierAsked,
    RefuseWait,
    ResolveAsked,
    Verdict,
    WaitAsked,
    WaiterGone,
)
from quorum_wal.walproposer.qsync.limbo_table import Fate

from .actor import Actor, Script
from .limbo_coordinator import DATABASES, NET_US, LimboCoordinator
from .limbo_database import Kind, Op, Transaction
from .limbo_faults import stall
from .limbo_primary import BUSY, CANNOT_CONNECT, LimboPrimary

if TYPE_CHECKING:
    from .limbo_world import LimboWorld

TIMEOUTS_MS = (0, 20, 60, 200, 600)
STEPS_MAX = 14
FINAL = (Fate.COMMITTED, Fate.ROLLED_BACK)


class Client:
    """One transaction on a session with `server`."""

    def __init__(self, world: LimboWorld, server: LimboPrimary, random: Random) -> None:
        self.world = world
        self.server = server
        self.run = server.run
        self.random = random
        self.waiter = world.next_waiter()
        self.of: Transaction | None = None
        #: Its knowledge of the end of its PREPARE; 0: none.
        self.lsn = 0
        self.told: Fate | None = None
        self.policy = random.choice((Policy.DETACH, Policy.DETACH, Policy.ROLLBACK))
        self.timeout_ms = random.choice(TIMEOUTS_MS)
        self.xid = 0
        self._connected: set[LimboCoordinator] = set()
        dies_at = random.randrange(STEPS_MAX) if random.random() < world.chance_of_death else None
        self.actor = Actor(world.clock, self._script(), dies_at, self._end)

    @property
    def is_session_alive(self) -> bool:
        return self.server.run == self.run and not self.server.is_down

    def _net(self) -> int:
        return self.random.choice(NET_US)

    def _end(self) -> None:
        """It has ended, with success or by dying; a client that needs the outcome asks for it."""
        later = self.world.clock.call_later
        is_prepared = self.of is not None and self.of.prepare_end_lsn > 0
        if self.xid and not is_prepared and self.is_session_alive:
            self.server.abort(self.xid)
        for coordinator in self._connected:
            delay_us = self.random.choice((200, 200, 30_000, 300_000))
            later(delay_us, coordinator.tell, WaiterGone(self.waiter))
        if self.of is not None and self.told is None:
            self.world.ask_outcome(self.of, self.lsn, self.random)

    # ---- the protocol

    def _script(self) -> Script:
        yield self._net()
        coordinator = self.world.some_coordinator(self.random, self.server)
        if coordinator is None or coordinator.limbo.admission() is not None:
            self.world.count("limbo: refused")
            return
        if not self.is_session_alive:
            return
        self.xid = self.server.begin(self.random)
        yield self.random.choice((0, 0, 1000, 20_000))
        if not self.is_session_alive:
            return
        self.of = self._name_it()
        yield self._net()
        yield from self._befall()
        # Here the connection may break: it knows only the gid.
        if not self.is_session_alive:
            return
        delay_us = self.server.prepare(self.of, self.xid, self.random)
        yield delay_us + self._net()
        if not self.is_session_alive:
            return
        self.lsn = self.server.log.lsn
        yield self._net()
        verdict = None
        for _ in range(self.random.choice((1, 1, 2))):
            verdict = yield from self._wait(self.lsn)
            if verdict is not None:
                break
        yield from self._act_on(verdict)

    def _befall(self) -> Script:
        """The faults that wait for this moment."""
        server = self.server
        if server.crashes_before_prepare:
            server.crashes_before_prepare = False
            self.world.count("limbo: crashes before a PREPARE")
            self.world.crash(server, 1000)
        elif server.stalls_at_prepare:
            server.stalls_at_prepare, server.is_quiet = False, True
            self.world.count("limbo: stalls at a PREPARE")
            server.insert(Op(Kind.COMMIT, server.database.next_xid, self.world.clock.now_us))
            server.flush()
            yield 60_000
            for coordinator in self.world.coordinators():
                if coordinator.primary is server:
                    coordinator.begin_slow_reading()
                    stall(self.world, coordinator.process, self.random)
            self.world.clock.call_later(700_000, server.speak_again)
            yield 1000

    def _name_it(self) -> Transaction:
        self.world.transactions_count += 1
        number = self.world.transactions_count
        gid = Gid(
            self.policy,
            self.world.now_ms + self.timeout_ms,
            self.server.tli_history.tli,
            self.server.inserted.lsn,
            self.xid,
            self.server.start_us,
            f"{number:032x}",
        )
        return self.world.register(Transaction(number, gid, self.random.choice(DATABASES)))

    def _wait(self, lsn: int) -> Script:
        """WAIT_LSN; None: an error, or the connection broke."""
        coordinator = self.world.some_coordinator(self.random, self.server)
        if coordinator is None:
            yield 10_000
            return None
        self._connected.add(coordinator)
        waiter, gid = self.waiter, self.of.gid
        deadline_ms = self.world.now_ms + self.timeout_ms if self.timeout_ms else 0
        question = WaitAsked(waiter, lsn, deadline_ms, gid)
        reply = coordinator.ask(waiter, partial(_as_it_is, question))
        if self.random.random() < 0.03:
            self.world.clock.call_later(10_000, coordinator.cancel, waiter)
        answer = yield reply
        if isinstance(answer, Answer):
            return answer.verdict
        return None

    def _act_on(self, verdict: Verdict | None) -> Script:
        yield self.random.choice((0, 0, 0, 1000, 400_000))
        if verdict is Verdict.CONFIRMED:
            sqlstate = yield from self._finish(is_commit=True)
            if sqlstate is None:
                self.tell(Fate.COMMITTED)
                yield from self._wait(self.server.log.lsn)
        elif self.policy is Policy.ROLLBACK:
            left_ms = self.of.gid.deadline_ms - self.world.now_ms
            yield max(left_ms, 0) * 1000
            yield from self._finish(is_commit=False)
        # Whatever it found, it asks for the outcome at its end.

    def _finish(self, *, is_commit: bool) -> Script:
        """The statement of its own session; an SQLSTATE or None."""
        for _ in range(3):
            yield self._net()
            if not self.is_session_alive:
                return CANNOT_CONNECT
            sqlstate = self.server.finish(self.of.name, is_commit=is_commit)
            self.world.count(f"limbo: client's end: {sqlstate or is_commit}")
            yield self._net()
            if sqlstate != BUSY:
                return sqlstate
        return BUSY

    def tell(self, fate: Fate) -> None:
        self.told = fate
        self.world.laws.told(self.of, fate, "its client")


def asker(world: LimboWorld, of: Transaction, lsn: int, random: Random) -> Script:
    """OUTCOME, from any coordinator, repeatedly until it is final."""
    while True:
        yield random.choice((1000, 20_000, 100_000, 300_000))
        coordinator = world.some_coordinator(random, None)
        if coordinator is None:
            continue
        was_calm = world.is_calm
        answer = yield coordinator.outcome(of, lsn)
        if answer is not None:
            world.count(f"limbo: outcome {answer.fate.value}")
            if answer.fate in FINAL and (world.is_calm or random.random() < 0.7):
                return  # the others ask again, and a new one
            if answer.fate is Fate.UNKNOWN and was_calm:
                world.laws.unknown(of, lsn, coordinator.primary)
                return


def reader(world: LimboWorld, random: Random) -> Script:
    """Reads every server, also deposed ones, and records what it has seen."""
    while True:
        yield random.choice((1000, 3000, 10_000))
        for primary in world.primaries:
            if not primary.is_down:
                world.laws.seen(primary)


def barrier_reader(world: LimboWorld, random: Random) -> Script:
    """A linearizable read: a barrier, and then a read in the same session."""
    waiter = world.next_waiter()
    while not world.is_calm:
        yield random.choice((5000, 50_000))
        server = random.choice((world.some_server(random), world.primaries[-1]))
        if server is None or server.is_down:
            continue
        run, known = server.run, world.laws.told_committed()
        lsn, place = server.log.lsn, (server.tli_history.tli, server.start_us)
        yield random.choice(NET_US)
        coordinator = world.some_coordinator(random, None)
        if coordinator is None:
            continue
        deadline_ms = world.now_ms + random.choice((20, 200))
        question = BarrierAsked(waiter, lsn, deadline_ms, 0, place)
        answer = yield coordinator.ask(waiter, partial(_at_round, question))
        if isinstance(answer, Answer) and answer.verdict is Verdict.CONFIRMED:
            yield random.choice((0, *NET_US, 50_000))
            if server.run == run and not server.is_down:
                world.count("limbo: barriers")
                world.laws.barrier_passed(server, known)
        if not isinstance(answer, Answer | RefuseWait):
            waiter = world.next_waiter()


def _at_round(question: BarrierAsked, coordinator: LimboCoordinator) -> BarrierAsked:
    """The newest round that has begun when it arrives."""
    return replace(question, after_round=coordinator.round)


def _as_it_is(question: WaitAsked | ResolveAsked, _: LimboCoordinator) -> WaitAsked | ResolveAsked:
    return question


def admin(world: LimboWorld, random: Random) -> Script:
    """RESOLVE of a transaction in the limbo."""
    while not world.is_calm:
        yield random.choice((20_000, 300_000))
        coordinator = world.some_coordinator(random, None)
        if coordinator is None or coordinator.primary is None:
            continue
        names = [name for name, p in coordinator.primary.database.prepared.items()]
        if not names:
            continue
        name, waiter = random.choice(names), world.next_waiter()
        is_commit = random.random() < 0.5
        deadline_ms = world.now_ms + random.choice((20, 500))
        question = ResolveAsked(waiter, name, is_commit, deadline_ms)
        answer = yield coordinator.ask(waiter, partial(_as_it_is, question))
        coordinator.send(WaiterGone(waiter))
        if isinstance(answer, Answer) and answer.verdict is not Verdict.PENDING:
            world.count(f"limbo: resolved {answer.verdict.value}")
            world.laws.told(world.by_name[name], Fate(answer.verdict.value), "an administrator")


def stranger(world: LimboWorld, random: Random) -> Script:
    """A two-phase commit of another program, which only that program may end."""
    while not world.is_calm:
        yield random.choice((20_000, 200_000))
        server = world.some_server(random)
        if server is None:
            continue
        run, xid = server.run, server.begin(random)
        world.transactions_count += 1
        number = world.transactions_count
        gid = Gid(Policy.ROLLBACK, 0, 1, 0, xid, 0, f"{number:032x}")
        of = world.register(Transaction(number, gid, random.choice(DATABASES), is_foreign=True))
        server.prepare(of, xid, random)
        yield random.choice((1000, 100_000, 2_000_000))
        if server.run == run and not server.is_down:
            world.laws.foreign_finishes(of)
            server.finish(of.name, is_commit=random.random() < 0.5)
    while True:
        yield from _end_what_is_left(world, random)


def _end_what_is_left(world: LimboWorld, random: Random) -> Script:
    """The foreign transaction manager is back. A transaction of ours whose PREPARE was lost may
    have had the same xid: it is pending until then."""
    yield 100_000
    for process in world.running():
        primary = process.primary
        if not process.is_leading or primary is None:
            continue
        for name, prepared in list(primary.database.prepared.items()):
            if prepared.of.is_foreign:
                world.laws.foreign_finishes(prepared.of)
                primary.finish(name, is_commit=random.random() < 0.5)
