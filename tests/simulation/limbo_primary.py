"""`LimboPrimary`: a simulated Postgres with transactions: sessions, prepared ones, a crash.

WAL is inserted first and flushed later: a crash loses the rest, and with it the assigned xids.
PREPARE, COMMIT PREPARED and ROLLBACK PREPARED flush before they return.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from quorum_wal.pgwal.history import TimelineHistory

from .limbo_database import Database, Kind, Op, Transaction
from .log import Log
from .primary import WAL_BYTES_MAX, Primary

if TYPE_CHECKING:
    from .limbo_world import LimboWorld

UNDEFINED_OBJECT, BUSY, CANNOT_CONNECT = "42704", "55000", "08006"
RUNS_MAX = 1000
FLUSH_US = (500, 3000, 20_000)
#: How long PREPARE continues after its flush, before it is listed, and before it is unlocked.
PREPARE_US = (0, 0, 0, 500, 20_000)


class LimboPrimary(Primary):
    """`log` is the flushed WAL, `inserted` all of it; sessions belong to a `run` of the server."""

    def __init__(
        self, world: LimboWorld, name: str, log: Log, history: TimelineHistory, before: int
    ) -> None:
        super().__init__(name, log, history, False)
        self.records = before
        self.world = world
        self.inserted = log.cut(log.lsn)
        self.database = Database.replayed(world.ops, log)
        self.is_down = False
        self.run = 0
        self._number = world.next_server()
        #: Clients may begin transactions: a server that sk promote has promoted is closed at first.
        self.is_open = True
        #: It has nothing to write, and its clients use another server.
        self.is_quiet = False
        #: Faults that wait for the next transaction.
        self.crashes_before_prepare = self.stalls_at_prepare = False

    @property
    def start_us(self) -> int:
        """The start time of its postmaster, which is unique."""
        return self._number * RUNS_MAX + self.run

    # ---- WAL

    def insert(self, op: Op, length: int = 64) -> Op:
        """Insert a record with this meaning, which applies at once."""
        self.records += 1
        self.inserted.append(f"{self.name}r{self.records}", length)
        self.world.ops.wrote(self.inserted, op)
        self.database.apply(op)
        return op

    def flush(self) -> None:
        if self.log.lsn < self.inserted.lsn:
            self.log.extend(self.inserted, self.inserted.lsn)
            for process in self.world.running():
                if process.primary is self:
                    process.ship()

    def flush_later(self, random: Random) -> None:
        self.world.clock.call_later(random.choice(FLUSH_US), self._flush_of_run, self.run)

    def _flush_of_run(self, run: int) -> None:
        if run == self.run and not self.is_down:
            self.flush()

    def write(self, random: Random, *, is_bulk: bool = False) -> None:
        """A plain client commits."""
        if self.is_down or self.is_quiet or len(self.log.wal) > WAL_BYTES_MAX:
            return
        if random.random() < 0.01:
            self.inserted.maybe_switch()
        for _ in range(random.choice((1, 1, 2))):
            length = random.choice((64, 64, 64, 200, 1000, 9000 if is_bulk else 64))
            op = Op(Kind.COMMIT, self.database.next_xid, self.world.clock.now_us)
            self.insert(op, length)
        if random.random() < 0.5:
            self.flush()
        else:
            self.flush_later(random)

    # ---- transactions

    def begin(self, random: Random) -> int:
        """A transaction writes its row; its xid."""
        op = Op(Kind.WRITE, self.database.next_xid, self.world.clock.now_us)
        self.insert(op)
        if random.random() < 0.3:
            self.flush()
        else:
            self.flush_later(random)
        return op.xid

    def abort(self, xid: int) -> None:
        """Its session has ended before PREPARE."""
        self.database.in_progress.discard(xid)

    def prepare(self, of: Transaction, xid: int, random: Random) -> int:
        """PREPARE: flushed at once, listed after a moment; the delay of its answer."""
        op = self.insert(Op(Kind.PREPARE, xid, self.world.clock.now_us, of))
        of.prepare_end_lsn = op.end_lsn
        self.world.laws.prepared(self, of, op)
        self.flush()
        delay_us = random.choice(PREPARE_US)
        prepared = self.database.prepared[of.name]
        prepared.valid_us = self.world.clock.now_us + random.choice((0, delay_us))
        prepared.is_busy = True
        self.world.clock.call_later(delay_us, self._let_go, self.run, of.name)
        return delay_us

    def _let_go(self, run: int, name: str) -> None:
        prepared = self.database.prepared.get(name)
        if run == self.run and prepared is not None:
            prepared.is_busy = False

    def finish(self, name: str, *, is_commit: bool) -> str | None:
        """COMMIT PREPARED or ROLLBACK PREPARED; an SQLSTATE if it fails."""
        if self.is_down:
            return CANNOT_CONNECT
        prepared = self.database.prepared.get(name)
        if prepared is None or prepared.valid_us > self.world.clock.now_us:
            return UNDEFINED_OBJECT
        if prepared.is_busy:
            return BUSY
        kind = Kind.COMMIT_PREPARED if is_commit else Kind.ROLLBACK_PREPARED
        op = Op(kind, prepared.xid, self.world.clock.now_us, prepared.of)
        op.prepare_end_lsn, op.prepared_at_us = prepared.end_lsn, prepared.prepared_at_us
        self.insert(op)
        self.flush()
        self.world.laws.finished(self, prepared.of, is_commit)
        return None

    # ---- faults

    def speak_again(self) -> None:
        self.is_quiet = False

    def crash(self) -> None:
        """Unflushed WAL is lost, and so are all sessions."""
        self.is_down = True
        self.run += 1
        self.inserted = self.log.cut(self.log.lsn, self.inserted.tli)
        self.database = Database.replayed(self.world.ops, self.log)

    def restart(self) -> None:
        self.is_down = False

    def promoted(self, name: str, log: Log, tli: int) -> LimboPrimary:
        plain = super().promoted(name, log, tli)
        history = plain.tli_history
        return LimboPrimary(self.world, name, plain.log, history, plain.records)
