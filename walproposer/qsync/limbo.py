"""The core of the coordinator: decides when to report that the quorum has a transaction. Pure.

`step(event) -> list[Action]` is the only mutator. Laws (docs/qsync.md, "Invariants"):

1. a verdict `confirmed`, and COMMIT PREPARED, only when commit_lsn >= the end of PREPARE;
5. the janitor never rolls back what commit_lsn covers;
6. when fenced, the only answer to any question is that;
7. nothing is decided before commit_lsn has reached the term_start_lsn of the incarnation that
   leads: before that it may be smaller than what an older term has reported. Nor before the quorum
   has the first byte of the primary's timeline: before that the previous primary may return, and
   continue as if this one had never existed.

Other modules decide what a promotion commits (2), and the outcome of a transaction (3, 4;
`outcome_answer.py`). Late events of an older incarnation are dropped here.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import Enum
from typing import assert_never

from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.pgwire.logical import CommitPrepared, Prepare, RollbackPrepared
from quorum_wal.pgwire.replication import POSTGRES_EPOCH_UNIX_S
from quorum_wal.qsync.gid import Gid
from quorum_wal.walproposer.primary.primary import describe_server
from quorum_wal.walproposer.qsync.bounds import Bounds
from quorum_wal.walproposer.qsync.clients import Clients
from quorum_wal.walproposer.qsync.finishing import BUSY, UNDEFINED_OBJECT, Finishing, Resolve
from quorum_wal.walproposer.qsync.janitor import Decision, decide
from quorum_wal.walproposer.qsync.limbo_events import (
    NEVER_LSN,
    Action,
    Alarm,
    Answer,
    BarrierAsked,
    CommitAdvanced,
    Decoded,
    Event,
    Fenced,
    FinishEnded,
    Led,
    LimboRead,
    LimboSettings,
    Order,
    QuorumChanged,
    Read,
    Refusal,
    RefuseWait,
    ResolveAsked,
    RoundAnswered,
    Tick,
    Verdict,
    WaitAsked,
    WaitCancelled,
    WaiterGone,
)
from quorum_wal.walproposer.qsync.limbo_table import Entry, Fate, LimboTable
from quorum_wal.walproposer.qsync.limbo_waits import Wait, Waits

ADMIN_SHUTDOWN = "57P01"
CANNOT_CONNECT_NOW = "57P03"
WRONG_STATE = "55000"
INVALID_VALUE = "22023"

_HINT_LATER = "Try again later, or ask another proposer."


class EntryState(Enum):
    """The value is the word in QSYNC_LIST."""

    CLIENT = "client"  # its client is connected
    WAITING = "waiting"  # no client is connected; it has time left, or the quorum must answer
    FINISHING = "finishing"


@dataclass(frozen=True, slots=True)
class LimboRow:
    """A row of QSYNC_LIST. `is_confirmed`: the quorum has its PREPARE."""

    entry: Entry
    age_ms: int
    is_confirmed: bool
    state: EntryState


class Limbo:
    """One object per process. Led and Fenced begin and end an incarnation."""

    def __init__(self, settings: LimboSettings) -> None:
        self.settings = settings
        self.table = LimboTable()
        #: A commit_lsn of 0 means none.
        self.led: Led | None = None
        self.commit_lsn = 0
        self.is_quorum_ok = True
        self.has_read = False
        #: Number of verdicts, by their wire words; and "janitor committed" and "janitor rolled
        #: back".
        self.counts: Counter[str] = Counter()
        self._waits = Waits()
        self._clients = Clients()
        self._finishing = Finishing()
        self._round = -1
        self._now_ms = 0
        self._read_asked_ms = self._read_ms = 0
        #: The primary's clock minus ours.
        self._ahead_ms = 0
        self._bounds = Bounds(settings.limbo_max, settings.age_max_ms)
        self._actions: list[Action] = []

    # ---- for the shell

    @property
    def is_deciding(self) -> bool:
        """Law 7."""
        return self.led is not None and self.commit_lsn >= self.led.decides_lsn

    @property
    def wake_lsn(self) -> int:
        """The lowest commit_lsn that anything waits for; NEVER_LSN if nothing waits."""
        if self.led is None:
            return NEVER_LSN
        least_lsn = self._waits.least_lsn
        return least_lsn if self.is_deciding else min(least_lsn, self.led.decides_lsn)

    @property
    def age_ms(self) -> int:
        """The age of the oldest transaction of qsync; 0 if there is none."""
        return max(map(self._age_ms, self.table.entries.values()), default=0)

    def admission(self) -> Refusal | None:
        """Why no transaction should be prepared now, or None."""
        if self.led is None:
            return Refusal(CANNOT_CONNECT_NOW, "the coordinator does not lead", _HINT_LATER)
        if not self.is_quorum_ok:
            hint = "Start the missing safekeepers."
            return Refusal(CANNOT_CONNECT_NOW, "no quorum of safekeepers answers", hint)
        if not self.is_deciding or not self.has_read:
            text = "the coordinator has just begun to lead, and gives no verdicts yet"
            return Refusal(CANNOT_CONNECT_NOW, text, "Try again in a moment.")
        if self._now_ms - self._read_ms > self.settings.unread_max_ms:
            unread = f"for {(self._now_ms - self._read_ms) / 1000:.0f} s"
            text = f"the primary could not be asked for its prepared transactions {unread}"
            return Refusal(CANNOT_CONNECT_NOW, text, "See the proposer's log.")
        return self._bounds.problem(len(self.table.entries), self.age_ms)

    def rows(self) -> list[LimboRow]:
        """The entries of the limbo, in the order of the log."""
        return [self._row(entry) for entry in self.table.in_order()]

    def _row(self, entry: Entry) -> LimboRow:
        gid = str(entry.gid)
        state = EntryState.CLIENT if self._clients.of(gid).is_here else EntryState.WAITING
        if self._finishing.is_under_way(gid):
            state = EntryState.FINISHING
        return LimboRow(entry, self._age_ms(entry), self._is_confirmed(entry), state)

    def _age_ms(self, entry: Entry) -> int:
        prepared_ms = entry.prepared_at_us // 1000 + POSTGRES_EPOCH_UNIX_S * 1000
        return max(self._now_ms + self._ahead_ms - prepared_ms, 0)

    def _is_confirmed(self, entry: Entry) -> bool:
        """Law 1."""
        return self.is_deciding and self.commit_lsn >= entry.high_lsn

    # ---- the step

    def step(self, event: Event) -> list[Action]:
        self._actions = []
        match event:
            case Tick(now_ms):
                self._now_ms = max(self._now_ms, now_ms)
                self._answer_waits()
                self._tick()
                return self._actions
            case Led():
                self._lead(event)
            case Fenced(reason):
                self._fence(reason)
            case QuorumChanged(ok):
                self.is_quorum_ok = ok
            case WaitAsked():
                self._wait_asked(event)
            case BarrierAsked():
                self._barrier_asked(event)
            case ResolveAsked():
                self._resolve_asked(event)
            case WaitCancelled(waiter):
                self._cancel(waiter)
            case WaiterGone(waiter):
                self._cancel(waiter)
                self._clients.disconnected(waiter, self._now_ms)
            case _:
                if self.led is not None and event.node_id == self.led.node_id:
                    self._handle_of_term(event)
        self._answer_waits()
        return self._actions

    def _handle_of_term(
        self,
        event: CommitAdvanced | RoundAnswered | Decoded | LimboRead | FinishEnded,
    ) -> None:
        match event:
            case CommitAdvanced():
                self.commit_lsn = max(self.commit_lsn, event.commit_lsn)
            case RoundAnswered():
                self._round = max(self._round, event.round_number)
            case Decoded():
                self._decoded(event)
            case LimboRead():
                self._was_read(event)
            case FinishEnded():
                self._finish_ended(event)
            case _:
                assert_never(event)

    # ---- leading

    def _lead(self, led: Led) -> None:
        self._fence("another incarnation leads")
        self.led, self.commit_lsn, self._round = led, 0, -1
        self.is_quorum_ok, self.has_read, self._read_ms = True, False, self._now_ms
        self._read()

    def _fence(self, reason: str) -> None:
        """Law 6: the last answers of this term."""
        if self.led is None:
            return
        for wait in self._waits.all():
            text = f"the coordinator no longer leads: {reason}"
            self._actions.append(RefuseWait(wait.waiter, ADMIN_SHUTDOWN, text, _HINT_LATER))
            self._waits.remove(wait.waiter)
        self.led = None
        self.table.forget(self.commit_lsn)
        self._finishing.clear()
        self.commit_lsn = 0

    # ---- questions

    def _wait_asked(self, asked: WaitAsked) -> None:
        if asked.gid is not None:
            self._clients.connected(asked.waiter, str(asked.gid), self._now_ms)
        if not self._may_ask(asked.waiter):
            return
        if asked.gid is not None and asked.lsn <= asked.gid.begin_lsn:
            begin = format_lsn(asked.gid.begin_lsn)
            text = (
                f"{format_lsn(asked.lsn)} is not the end of a PREPARE that begins at {begin} or "
                "above"
            )
            hint = "Ask for pg_current_wal_flush_lsn(), read after PREPARE."
            self._actions.append(RefuseWait(asked.waiter, INVALID_VALUE, text, hint))
            return
        if asked.gid is not None and self.has_read and self._is_of_another_server(asked.gid):
            self._answer(asked.waiter, Verdict.PENDING)
            return
        self._add(Wait(asked.waiter, asked.lsn, asked.deadline_ms, asked.gid))

    def _barrier_asked(self, asked: BarrierAsked) -> None:
        if not self._may_ask(asked.waiter):
            return
        assert self.led is not None
        # A deposed primary's log may be part of this one's, but it lacks what came later.
        if asked.server is not None and asked.server != self.led.server:
            text = "the position is not of the primary: "
            text += (
                f"{describe_server(*asked.server)}, expected {describe_server(*self.led.server)}"
            )
            hint = "Read from the primary that the coordinator is attached to."
            self._actions.append(RefuseWait(asked.waiter, WRONG_STATE, text, hint))
            return
        wait = Wait(asked.waiter, asked.lsn, asked.deadline_ms, after_round=asked.after_round)
        self._add(wait)

    def _may_ask(self, waiter: int) -> bool:
        if self.led is None:
            text = "the coordinator does not lead"
            self._actions.append(RefuseWait(waiter, CANNOT_CONNECT_NOW, text, _HINT_LATER))
        return self.led is not None

    def _add(self, wait: Wait) -> None:
        """A wait whose deadline has passed asks only once."""
        self._waits.add(wait)
        self._answer_waits()
        if wait.deadline_ms <= self._now_ms and self._waits.has(wait):
            self._answer(wait.waiter, Verdict.PENDING)
        if wait.gid is None or self.settings.order is Order.ANY:
            return
        entry = self.table.entries.get(str(wait.gid))
        if self._waits.has(wait) and (entry is None or not entry.was_read):
            self._read()

    def _cancel(self, waiter: int) -> None:
        self._waits.remove(waiter)
        self._finishing.without(waiter)

    def _answer(self, waiter: int, verdict: Verdict) -> None:
        assert self.led is not None
        self._cancel(waiter)
        if verdict in (Verdict.CONFIRMED, Verdict.PENDING):
            self.counts[verdict.value] += 1
        self._actions.append(Answer(waiter, verdict, self.commit_lsn, self.led.node_id.term))

    def _answer_waits(self) -> None:
        """Answer all waits that can be answered now."""
        if not self.is_deciding:
            return
        for wait in self._waits.reached(self.commit_lsn):
            verdict = self._verdict(wait)
            if verdict is not None:
                self._answer(wait.waiter, verdict)

    def _verdict(self, wait: Wait) -> Verdict | None:
        """The verdict for a wait whose position the quorum has. None: another condition is not met
        yet."""
        if wait.resolving is not None:
            return wait.resolving
        if wait.after_round is not None:
            return Verdict.CONFIRMED if self._may_read(wait.after_round) else None
        if wait.gid is None:
            return Verdict.CONFIRMED
        gid = str(wait.gid)
        departure = self.table.departures.get(gid)
        if departure is not None and departure.fate is Fate.ROLLED_BACK:
            return Verdict.PENDING
        if self._is_of_another_server(wait.gid):
            return Verdict.PENDING if self.has_read else None
        entry = self.table.entries.get(gid)
        if self._finishing.is_rolling_back(gid) or (entry and not self._is_enough(wait, entry)):
            return None
        if self.settings.order is Order.ANY or departure is not None:
            return Verdict.CONFIRMED
        return Verdict.CONFIRMED if entry is not None and self._is_first(entry) else None

    def _is_of_another_server(self, gid: Gid) -> bool:
        """Whether the gid was prepared on another server than the one that writes our log, and is
        unknown here. The log may have other bytes below the same position, even on a timeline of
        the same number. Transactions of other servers that are in the log were read."""
        assert self.led is not None
        is_of_primary = (gid.tli, gid.server_start_us) == self.led.server
        return not is_of_primary and not self.table.is_in_log(str(gid))

    def _may_read(self, after_round: int) -> bool:
        """No other proposer led when the question came; and everything committed before the last
        failover is visible again, because the limbo has no older transaction."""
        entries = self.table.entries.values()
        assert self.led is not None
        tli = self.led.history.tli
        is_resolved = self.has_read and all(entry.gid.tli == tli for entry in entries)
        return is_resolved and self._round > after_round

    def _is_enough(self, wait: Wait, entry: Entry) -> bool:
        """Law 1. A known end of PREPARE takes precedence over the position that the client gave."""
        is_client_right = not entry.is_exact and wait.lsn > entry.low_lsn
        return is_client_right or self.commit_lsn >= entry.high_lsn

    def _is_first(self, entry: Entry) -> bool:
        """The first of all known entries. A reading that lists it also lists those prepared before
        it."""
        return entry.was_read and self.table.in_order()[0] is entry

    # ---- events of the primary

    def _decoded(self, decoded: Decoded) -> None:
        match decoded.message:
            case Prepare():
                self.table.prepared(decoded.database, decoded.message)
            case CommitPrepared():
                self.table.committed(decoded.message)
            case RollbackPrepared():
                self.table.rolled_back(decoded.message)

    def _was_read(self, reading: LimboRead) -> None:
        self.has_read, self._read_ms = True, self._now_ms
        self._ahead_ms = reading.server_now_ms - self._now_ms
        self.table.read(reading, self._now_ms, self.settings.orphan_grace_ms)
        self._finishing.keep_only(self.table.entries)

    # ---- the janitor

    def _tick(self) -> None:
        self._clients.forget_old(self._now_ms)
        if self.led is None:
            return
        for wait in self._waits.overdue(self._now_ms):
            self._answer(wait.waiter, Verdict.PENDING)
        if self.is_deciding:
            self._clean_up(self.led)
        ages_ms = {gid: self._age_ms(entry) for gid, entry in self.table.entries.items()}
        self._actions += map(Alarm, self._bounds.alarms(ages_ms))
        is_held = self.settings.order is Order.FIFO and self._waits.is_holding
        if is_held or self._now_ms - self._read_asked_ms >= self.settings.read_interval_ms:
            self._read()

    def _clean_up(self, led: Led) -> None:
        """The janitor, and administrators' orders that could not be executed at once."""
        for entry in self.table.in_order():
            gid = str(entry.gid)
            if not self._finishing.may_order(gid, self._now_ms):
                continue
            resolve = self._finishing.resolves.get(gid)
            if resolve is not None:
                self._actions.append(self._finishing.order(entry, resolve.commit))
                continue
            decision = decide(
                entry,
                self._clients.of(gid),
                tli=led.history.tli,
                commit_lsn=self.commit_lsn,
                now_ms=self._now_ms,
                deadline_ms=entry.gid.deadline_ms - self._ahead_ms,
                orphan_grace_ms=self.settings.orphan_grace_ms,
            )
            if decision is Decision.COMMIT and self._may_leave(entry):
                self._actions.append(self._finishing.order(entry, commit=True))
            elif decision is Decision.ROLL_BACK:
                self._actions.append(self._finishing.order(entry, commit=False))

    def _may_leave(self, entry: Entry) -> bool:
        return self.settings.order is Order.ANY or self._is_first(entry)

    def _resolve_asked(self, asked: ResolveAsked) -> None:
        if not self._may_ask(asked.waiter):
            return
        refusal = self._resolve_problem(asked)
        if refusal is not None:
            self._actions.append(RefuseWait(asked.waiter, *refusal))
            return
        resolve = Resolve(asked.waiter, asked.commit, asked.deadline_ms)
        self._waits.add(Wait(asked.waiter, NEVER_LSN, asked.deadline_ms))
        self._finishing.resolves[asked.gid] = resolve
        entry = self.table.entries[asked.gid]
        self._actions.append(self._finishing.order(entry, asked.commit))

    def _resolve_problem(self, asked: ResolveAsked) -> tuple[str, str, str] | None:
        """SQLSTATE, text and hint, or None."""
        assert self.led is not None
        if not Gid.is_ours(asked.gid):
            text = f'prepared transaction "{asked.gid}" is not of qsync'
            return INVALID_VALUE, text, "Finish it with the program that prepared it."
        if not self.is_deciding:
            return CANNOT_CONNECT_NOW, "the coordinator gives no verdicts yet", _HINT_LATER
        entry = self.table.entries.get(asked.gid)
        if entry is None:
            text = f'prepared transaction "{asked.gid}" does not exist'
            return UNDEFINED_OBJECT, text, "Ask for its OUTCOME."
        if self._finishing.is_under_way(asked.gid) or asked.gid in self._finishing.resolves:
            text = f'prepared transaction "{asked.gid}" is being finished'
            return WRONG_STATE, text, "Ask for its OUTCOME."
        if asked.commit and not self._is_confirmed(entry):
            text = f'the quorum does not have prepared transaction "{asked.gid}"'
            return WRONG_STATE, text, "Wait for the quorum, or roll it back."
        # It was visible on the old primary if its client got Committed before the failover.
        if not asked.commit and entry.gid.tli != self.led.history.tli:
            text = f'prepared transaction "{asked.gid}" is older than the last failover'
            return WRONG_STATE, text, "It must be committed: it may have been visible before."
        return None

    def _finish_ended(self, ended: FinishEnded) -> None:
        task = self._finishing.ended(ended.gid)
        if task is None:
            return
        resolve = self._finishing.resolves.get(ended.gid)
        if ended.sqlstate is None:
            self.counts[f"janitor {task.fate.value.replace('_', ' ')}"] += resolve is None
            self.table.finished(ended.gid, task.done(ended.end_lsn))
            self._finishing.left(ended.gid)
            if resolve is not None:
                del self._finishing.resolves[ended.gid]
                verdict = Verdict(task.fate.value)
                self._waits.add(
                    Wait(resolve.waiter, ended.end_lsn, resolve.deadline_ms, resolving=verdict)
                )
            return
        alarm = self._finishing.failed(ended.gid, ended.sqlstate, self._now_ms)
        if alarm:
            self._actions.append(Alarm(alarm))
        if ended.sqlstate != BUSY:
            self._read()
            if resolve is not None:
                del self._finishing.resolves[ended.gid]
                self._waits.remove(resolve.waiter)
                text = f'could not finish prepared transaction "{ended.gid}"'
                hint = "Ask for its OUTCOME."
                self._actions.append(RefuseWait(resolve.waiter, ended.sqlstate, text, hint))

    def _read(self) -> None:
        self._read_asked_ms = self._now_ms
        if Read() not in self._actions:
            self._actions.append(Read())
