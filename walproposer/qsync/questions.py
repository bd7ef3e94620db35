"""The open questions, and how each verb is answered: by the core, by the primary, or at once.

    ADMIT, QSYNC_STATUS, QSYNC_LIST    from the state of the core
    WAIT_LSN, BARRIER, RESOLVE         the core answers, now or later
    OUTCOME                            the primary is asked, and outcome_answer.py decides

It runs on the port's thread, like the core. Law: a question is answered once, and never by an
incarnation that has ended.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, assert_never

from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.pgwire.replication import POSTGRES_EPOCH_UNIX_S
from quorum_wal.walproposer.qsync import limbo_events as core
from quorum_wal.walproposer.qsync.answers import (
    Admission,
    Confirmation,
    FoundOutcome,
    LimboRow,
    Outcome,
    StatusPage,
)
from quorum_wal.walproposer.qsync.limbo import CANNOT_CONNECT_NOW
from quorum_wal.walproposer.qsync.limbo import LimboRow as CoreRow
from quorum_wal.walproposer.qsync.limbo_reader import PrimaryEvidence
from quorum_wal.walproposer.qsync.outcome_answer import Evidence, outcome_of
from quorum_wal.walproposer.qsync.primary_sessions import PrimarySessions, PrimaryUnavailable
from quorum_wal.walproposer.qsync.question import Question
from quorum_wal.walproposer.qsync.verbs import (
    Admit,
    AskOutcome,
    Barrier,
    Resolve,
    ShowList,
    ShowStatus,
    WaitLsn,
)

if TYPE_CHECKING:
    from quorum_wal.walproposer.qsync.coordinator import Coordinator

_HINT_LATER = "Try again later, or ask another proposer."
_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_POSTGRES_EPOCH = _UNIX_EPOCH + timedelta(seconds=POSTGRES_EPOCH_UNIX_S)


class Questions:
    """The `Verdicts` of the port."""

    def __init__(self, coordinator: Coordinator) -> None:
        #: The time that the last confirmed WAIT_LSN or BARRIER had waited.
        self.confirm_lag_seconds = 0.0
        self._coordinator = coordinator
        #: The questions passed to the core and their start times, by waiter.
        self._open: dict[int, tuple[Question, float]] = {}

    def __len__(self) -> int:
        return len(self._open)

    # ---- for the port

    def ask(self, question: Question) -> None:
        coordinator = self._coordinator
        match question.verb:
            case Admit():
                self._admit(question)
            case WaitLsn(lsn, timeout_ms, gid):
                deadline_ms = coordinator.deadline_ms(timeout_ms)
                self._wait(question, core.WaitAsked(question.waiter, lsn, deadline_ms, gid))
            case Barrier():
                self._barrier(question, question.verb)
            case Resolve(gid, commit, timeout_ms):
                deadline_ms = coordinator.deadline_ms(timeout_ms)
                order = core.ResolveAsked(question.waiter, str(gid), commit, deadline_ms)
                self._wait(question, order)
            case AskOutcome():
                self._outcome(question, question.verb)
            case ShowStatus():
                question.answer(StatusPage(coordinator.new_status()))
            case ShowList():
                self._list(question)
            case _:
                assert_never(question.verb)

    def cancel_question(self, waiter: int) -> None:
        if self._open.pop(waiter, None) is not None:
            self._coordinator.step(core.WaitCancelled(waiter))

    def leave(self, waiter: int) -> None:
        self._open.pop(waiter, None)
        self._coordinator.step(core.WaiterGone(waiter))

    # ---- for the core

    def answered(self, answer: core.Answer) -> None:
        question, asked_at = self._open.pop(answer.waiter)
        if answer.verdict is core.Verdict.CONFIRMED:
            self.confirm_lag_seconds = time.monotonic() - asked_at
        question.answer(Confirmation(answer.verdict, Lsn(answer.commit_lsn), answer.term))

    def refused(self, refusal: core.RefuseWait) -> None:
        question, _ = self._open.pop(refusal.waiter)
        question.refuse(refusal.sqlstate, refusal.text, refusal.hint)

    # ---- verbs

    def _wait(
        self, question: Question, event: core.WaitAsked | core.BarrierAsked | core.ResolveAsked
    ) -> None:
        self._open[question.waiter] = (question, time.monotonic())
        self._coordinator.advance()  # the newest position: it may be enough
        self._coordinator.step(event)

    def _admit(self, question: Question) -> None:
        limbo = self._coordinator.limbo
        refusal, led = limbo.admission(), limbo.led
        if refusal is not None:
            question.refuse(refusal.sqlstate, refusal.text, refusal.hint)
            return
        assert led is not None
        question.answer(Admission(led.node_id.term, len(limbo.table.entries)))

    def _list(self, question: Question) -> None:
        """An unknown limbo is not an empty one. The client goes on to the next coordinator."""
        limbo = self._coordinator.limbo
        if limbo.led is None:
            question.refuse(CANNOT_CONNECT_NOW, "the coordinator does not lead", _HINT_LATER)
        elif not limbo.has_read:
            text = "the coordinator has not read the prepared transactions yet"
            question.refuse(CANNOT_CONNECT_NOW, text, "Try again in a moment.")
        else:
            question.answer(*map(_limbo_row, limbo.rows()))

    def _barrier(self, question: Question, barrier: Barrier) -> None:
        coordinator, waiter = self._coordinator, question.waiter
        deadline_ms, after_round = coordinator.deadline_ms(barrier.timeout_ms), coordinator.round
        self._wait(
            question,
            core.BarrierAsked(waiter, barrier.lsn, deadline_ms, after_round, barrier.server),
        )
        if waiter in self._open:
            coordinator.want_round()

    def _outcome(self, question: Question, asked: AskOutcome) -> None:
        coordinator = self._coordinator
        sessions = coordinator.sessions
        if sessions is None:
            question.refuse(CANNOT_CONNECT_NOW, "the coordinator does not lead", _HINT_LATER)
            return

        def done(found: PrimaryEvidence | PrimaryUnavailable) -> None:
            coordinator.post(partial(self._answer_outcome, sessions, question, asked, found))

        is_in_log = coordinator.limbo.table.is_in_log(str(asked.gid))
        sessions.ask(asked.gid, None if is_in_log else asked.lsn or 0, done)

    def _answer_outcome(
        self,
        sessions: PrimarySessions,
        question: Question,
        asked: AskOutcome,
        found: PrimaryEvidence | PrimaryUnavailable,
    ) -> None:
        coordinator = self._coordinator
        limbo = coordinator.limbo
        led, table, gid = limbo.led, limbo.table, str(asked.gid)
        if sessions is not coordinator.sessions or led is None:
            text = "the coordinator no longer leads"
            question.refuse(CANNOT_CONNECT_NOW, text, _HINT_LATER)
            return
        if isinstance(found, PrimaryUnavailable):
            question.refuse(CANNOT_CONNECT_NOW, found.reason)
            return
        coordinator.advance()
        answer = outcome_of(
            Evidence(
                gid=asked.gid,
                lsn=asked.lsn or 0,
                led=led,
                departure=table.departures.get(gid),
                is_in_log=table.is_in_log(gid) or found.is_in_log,
                is_prepared=found.is_prepared,
                xid_status=found.xid_status,
                flushed_lsn=found.flushed_lsn,
                commit_lsn=limbo.commit_lsn,
            )
        )
        lsn = Lsn(answer.lsn) if answer.lsn else None
        question.answer(FoundOutcome(Outcome(answer.fate.value), lsn))


def _limbo_row(row: CoreRow) -> LimboRow:
    entry = row.entry
    return LimboRow(
        gid=str(entry.gid),
        database=entry.database,
        owner=entry.owner,
        prepared_at=_POSTGRES_EPOCH + timedelta(microseconds=entry.prepared_at_us),
        age_seconds=row.age_ms / 1000,
        prepare_end_lsn=Lsn(entry.high_lsn),
        is_exact=entry.is_exact,
        confirmed=row.is_confirmed,
        policy=entry.gid.policy.name.lower(),
        deadline=_time_of(entry.gid.deadline_ms),
        state=row.state.value,
    )


def _time_of(unix_ms: int) -> datetime:
    """The time of a deadline, which a client may set to any number. The latest date if it is out of
    range."""
    try:
        return _UNIX_EPOCH + timedelta(milliseconds=unix_ms)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)
