"""The limbo under any order of events: hypothesis plays a primary whose gids are used again,
streams and readings that are late or repeated, and clients that connect and disconnect.

The model knows the true end of each PREPARE, and checks the core's answers and orders against it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from limbo_steps import BEGIN_MS, NODE, SETTINGS, gid_of, led

from quorum_wal.pgwire.logical import CommitPrepared, Prepare, RollbackPrepared
from quorum_wal.qsync.gid import Gid, Policy
from quorum_wal.walproposer.qsync.limbo import Limbo
from quorum_wal.walproposer.qsync.limbo_events import (
    Action,
    Answer,
    CommitAdvanced,
    Decoded,
    Event,
    Finish,
    FinishEnded,
    LimboEntry,
    LimboRead,
    Order,
    RefuseWait,
    Tick,
    Verdict,
    WaitAsked,
    WaitCancelled,
    WaiterGone,
)

RECORD_BYTES = 50
GRACE_MS = SETTINGS.orphan_grace_ms
#: Every other one may be rolled back; all begin below all that is prepared.
GIDS = [
    gid_of(n, begin_lsn=1000, policy=Policy.ROLLBACK if n % 2 else Policy.DETACH) for n in range(3)
]


@dataclass(slots=True)
class Use:
    """One PREPARE of a gid, where it ends, and which xid it had."""

    gid: Gid
    xid: int
    at_us: int
    end_lsn: int

    def row(self) -> LimboEntry:
        return LimboEntry(str(self.gid), "a", "owner", self.xid, self.at_us)


class LimboMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.limbo = Limbo(SETTINGS)
        self.lsn = self.commit_lsn = 1000
        self.now_ms = BEGIN_MS
        self.limbo_truth: dict[str, Use] = {}
        self.records: list[Prepare | CommitPrepared | RollbackPrepared] = []
        self.sent = 0
        self.waits: dict[int, WaitAsked] = {}
        self.connected: dict[int, str] = {}
        self.waiters = self.xid = 0
        self.reading: LimboRead | None = None
        #: Gid, the order, and the intended use.
        self.orders: list[tuple[Finish, Use | None]] = []

    @initialize(order=st.sampled_from(Order))
    def begin(self, order: Order) -> None:
        self.limbo = Limbo(replace(SETTINGS, order=order))
        self.step(led())
        self.step(Tick(self.now_ms))

    # ---- the core, and what is held against it

    def step(self, event: Event) -> None:
        for action in self.limbo.step(event):
            self.check(action)

    def check(self, action: Action) -> None:
        if isinstance(action, Answer):
            wait = self.waits.pop(action.waiter)
            use = self.limbo_truth.get(str(wait.gid))
            if action.verdict is Verdict.CONFIRMED:
                assert self.commit_lsn >= wait.lsn
                if use is not None and wait.lsn >= use.end_lsn:
                    assert self.commit_lsn >= use.end_lsn
            else:
                departure = self.limbo.table.departures.get(str(wait.gid))
                assert wait.deadline_ms <= self.now_ms or departure is not None
        elif isinstance(action, RefuseWait):
            self.waits.pop(action.waiter)
        elif isinstance(action, Finish):
            self.check_finish(action)

    def check_finish(self, finish: Finish) -> None:
        use = self.limbo_truth.get(finish.gid)
        assert finish.gid not in [other.gid for other, _ in self.orders], "one at a time"
        self.orders.append((finish, use))
        grace_ends_ms = Gid.parse(finish.gid).deadline_ms + GRACE_MS
        is_here = finish.gid in self.connected.values() and self.now_ms < grace_ends_ms
        assert not is_here, "its client is here"
        if use is None:
            return  # it has ended meanwhile: an error, 42704
        known = self.limbo.table.entries[finish.gid]
        if (known.xid, known.prepared_at_us) != (use.xid, use.at_us):
            return  # used again, and not reported yet
        if finish.commit:
            assert self.commit_lsn >= use.end_lsn
        else:
            assert use.gid.policy is Policy.ROLLBACK
            assert self.now_ms >= use.gid.deadline_ms
            assert self.commit_lsn < use.end_lsn

    # ---- the primary

    @rule(gid=st.sampled_from(GIDS))
    def prepare(self, gid: Gid) -> None:
        if str(gid) in self.limbo_truth:
            return
        self.xid += 1
        begin_lsn, self.lsn = self.lsn, self.lsn + RECORD_BYTES
        use = Use(gid, self.xid, self.xid * 10, self.lsn)
        self.limbo_truth[str(gid)] = use
        self.records.append(Prepare(begin_lsn, self.lsn, use.at_us, use.xid, str(gid)))

    @rule(gid=st.sampled_from(GIDS), commit=st.booleans())
    def finish(self, gid: Gid, commit: bool) -> None:
        """By its client, or by any session."""
        use = self.limbo_truth.pop(str(gid), None)
        if use is None:
            return
        begin_lsn, self.lsn = self.lsn, self.lsn + RECORD_BYTES
        head = (use.xid, str(gid))
        if commit:
            self.records.append(CommitPrepared(begin_lsn, self.lsn, 1, *head))
        else:
            ends = (use.end_lsn, self.lsn)
            self.records.append(RollbackPrepared(*ends, use.at_us, 1, *head))

    @rule(of_all=st.floats(0, 1))
    def commit(self, of_all: float) -> None:
        """A quorum has more of it, up to the end of a record."""
        behind = (self.lsn - self.commit_lsn) // RECORD_BYTES
        self.commit_lsn += round(behind * of_all) * RECORD_BYTES
        self.step(CommitAdvanced(NODE, self.commit_lsn))

    # ---- reports about it

    @precondition(lambda self: self.sent < len(self.records))
    @rule()
    def stream(self) -> None:
        self.sent += 1
        self.step(Decoded(NODE, "a", self.records[self.sent - 1]))

    @precondition(lambda self: self.sent > 0)
    @rule(back=st.integers(1, 6))
    def break_stream(self, back: int) -> None:
        """It begins again a little before."""
        self.sent = max(self.sent - back, 0)

    @precondition(lambda self: self.reading is None)
    @rule()
    def begin_reading(self) -> None:
        rows = tuple(use.row() for use in self.limbo_truth.values())
        self.reading = LimboRead(NODE, rows, self.lsn, self.lsn, self.now_ms)

    @precondition(lambda self: self.reading is not None)
    @rule()
    def end_reading(self) -> None:
        assert self.reading is not None
        reading, self.reading = (
            replace(self.reading, flushed_after_lsn=self.lsn, server_now_ms=self.now_ms),
            None,
        )
        self.step(reading)

    @precondition(lambda self: self.orders)
    @rule(is_lost=st.booleans())
    def end_order(self, is_lost: bool) -> None:
        finish, meant = self.orders.pop(0)
        use = self.limbo_truth.get(finish.gid)
        if use is None or use is not meant:
            self.step(FinishEnded(NODE, finish.gid, "42704", 0))
            return
        self.finish(use.gid, finish.commit)
        sqlstate = "08006" if is_lost else None
        self.step(FinishEnded(NODE, finish.gid, sqlstate, 0 if is_lost else self.lsn))

    # ---- clients, and time

    @rule(gid=st.sampled_from([*GIDS, None]), timeout_ms=st.sampled_from((0, 500, 20_000)))
    def wait(self, gid: Gid | None, timeout_ms: int) -> None:
        self.waiters += 1
        deadline_ms = self.now_ms + timeout_ms if timeout_ms else 0
        asked = WaitAsked(self.waiters, self.lsn + 1, deadline_ms, gid)
        self.waits[self.waiters] = asked
        if gid is not None:
            self.connected[self.waiters] = str(gid)
        self.step(asked)

    @precondition(lambda self: self.connected)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        waiter = data.draw(st.sampled_from(sorted(self.connected)))
        del self.connected[waiter]
        self.waits.pop(waiter, None)
        self.step(WaiterGone(waiter))

    @precondition(lambda self: self.waits)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        waiter = data.draw(st.sampled_from(sorted(self.waits)))
        del self.waits[waiter]
        self.step(WaitCancelled(waiter))

    @rule(ms=st.sampled_from((10, 1000, GRACE_MS)))
    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        self.step(Tick(self.now_ms))
        assert all(w.deadline_ms > self.now_ms for w in self.waits.values()), "a deadline is over"

    # ---- always

    @invariant()
    def no_interval_lies(self) -> None:
        for gid, entry in self.limbo.table.entries.items():
            use = self.limbo_truth.get(gid)
            if use is not None and (entry.xid, entry.prepared_at_us) == (use.xid, use.at_us):
                assert entry.low_lsn < use.end_lsn <= entry.high_lsn

    def teardown(self) -> None:
        """After all events, and a final reading, it has the true entries."""
        if self.limbo.led is None:
            return
        while self.sent < len(self.records):
            self.stream()
        if self.reading is not None:
            self.end_reading()
        for _ in range(3):
            self.begin_reading()
            self.end_reading()
            self.pass_time(GRACE_MS)
        assert self.limbo.table.entries.keys() == self.limbo_truth.keys()


LimboMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestLimbo = LimboMachine.TestCase
