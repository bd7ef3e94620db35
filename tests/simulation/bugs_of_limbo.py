"""Planted bugs of the limbo: its core, the janitor, outcomes, and clients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from quorum_wal.pgwire.logical import Prepare
from quorum_wal.qsync.gid import Gid, GidError, Policy
from quorum_wal.walproposer.qsync import limbo, limbo_events, limbo_table, outcome_answer
from quorum_wal.walproposer.qsync.janitor import Decision, decide, is_orphan
from quorum_wal.walproposer.qsync.limbo import Limbo
from quorum_wal.walproposer.qsync.limbo_events import Led, LimboRead
from quorum_wal.walproposer.qsync.limbo_table import Entry, Fate, LimboTable
from quorum_wal.walproposer.qsync.limbo_waits import Waits
from quorum_wal.walproposer.qsync.outcome_answer import (
    Evidence,
    OutcomeAnswer,
    XidStatus,
    outcome_of,
)

from .limbo_clients import Client
from .limbo_primary import LimboPrimary
from .limbo_world import LimboWorld
from .planting import Patch, plant_limbo, plant_rare_limbo

# ---- verdicts


@plant_limbo
def confirm_on_local_flush(patch: Patch) -> None:
    """PREPARE has returned, and that is taken as enough."""
    patch(Waits, "reached", lambda self, _: self.all())
    patch(Limbo, "_is_enough", lambda *_: True)


@plant_limbo
def confirm_of_an_older_term(patch: Patch) -> None:
    """The commits of an earlier incarnation count for the next one."""
    lead, fence = Limbo._lead, Limbo._fence

    def kept(step: Any) -> Any:
        def stepped(self: Limbo, argument: Any) -> None:
            before_lsn = max(self.commit_lsn, getattr(self, "kept_lsn", 0))
            step(self, argument)
            self.kept_lsn = self.commit_lsn = before_lsn  # type: ignore[attr-defined]

        return stepped

    patch(Limbo, "_lead", kept(lead))
    patch(Limbo, "_fence", kept(fence))
    patch(limbo_events.Led, "decides_lsn", 1)


@plant_rare_limbo
def late_messages_of_an_older_incarnation(patch: Patch) -> None:
    """commit_lsn, streams and readings that arrive after its end."""
    step = Limbo.step

    def stepped(self: Limbo, event: Any) -> Any:
        if self.led is not None and hasattr(event, "node_id") and not isinstance(event, Led):
            event = replace(event, node_id=self.led.node_id)
        return step(self, event)

    patch(Limbo, "step", stepped)


@plant_limbo
def verdicts_before_the_term_start(patch: Patch) -> None:
    patch(Limbo, "is_deciding", property(lambda self: self.led is not None))


@plant_limbo
def verdicts_before_the_timeline_has_a_byte(patch: Patch) -> None:
    patch(limbo_events.Led, "decides_lsn", property(lambda self: self.term_start_lsn))


@plant_limbo
def verdicts_after_fencing(patch: Patch) -> None:
    """It refuses the waiting clients, and continues."""
    fence = Limbo._fence

    def fenced(self: Limbo, reason: str) -> None:
        led, commit_lsn = self.led, self.commit_lsn
        entries = dict(self.table.entries)
        fence(self, reason)
        self.led, self.commit_lsn, self.table.entries = led, commit_lsn, entries

    patch(Limbo, "_fence", fenced)


@plant_limbo
def positions_of_another_timeline_confirmed(patch: Patch) -> None:
    """The number is below commit_lsn, but it belongs to a log that was truncated."""
    patch(Limbo, "_is_of_another_server", lambda *_: False)


@plant_rare_limbo
def positions_of_a_twin_confirmed(patch: Patch) -> None:
    """Its timeline has the same number, but it was promoted separately and has another log."""

    is_a_strangers = Limbo._is_of_another_server

    def is_of_another_timeline(self: Limbo, gid: Gid) -> bool:
        return gid.tli != self.led.history.tli and is_a_strangers(self, gid)

    patch(Limbo, "_is_of_another_server", is_of_another_timeline)


@plant_limbo
def order_not_kept(patch: Patch) -> None:
    patch(Limbo, "_is_first", lambda *_: True)


@plant_rare_limbo
def barrier_without_a_round(patch: Patch) -> None:
    """commit_lsn has its position, but another proposer may lead."""
    may_read = Limbo._may_read
    patch(Limbo, "_may_read", lambda self, _: may_read(self, -2))


@plant_limbo
def barrier_of_a_deposed_primary(patch: Patch) -> None:
    """Its successor is asked, because the position is in both logs."""
    asked = Limbo._barrier_asked
    patch(Limbo, "_barrier_asked", lambda self, event: asked(self, replace(event, server=None)))


@plant_limbo
def barrier_before_the_limbo_is_resolved(patch: Patch) -> None:
    patch(Limbo, "_may_read", lambda self, after_round: self._round > after_round)


# ---- knowledge of a PREPARE


@plant_limbo
def begin_of_prepare_taken_for_its_end(patch: Patch) -> None:
    """It compares prepare_lsn, not prepare_end_lsn."""
    prepared = LimboTable.prepared

    def wrong(self: LimboTable, database: str, message: Prepare) -> None:
        prepared(self, database, replace(message, end_lsn=message.prepare_lsn))

    patch(LimboTable, "prepared", wrong)


@plant_limbo
def flush_position_read_before_the_limbo(patch: Patch) -> None:
    """The row came after it."""
    read = LimboTable.read

    def wrong(self: LimboTable, reading: LimboRead, *times: int) -> None:
        read(self, replace(reading, flushed_after_lsn=reading.flushed_before_lsn), *times)

    patch(LimboTable, "read", wrong)


@plant_rare_limbo
def memory_outlives_a_failover(patch: Patch) -> None:
    """It remembers an end that the log has lost."""

    def forget(self: LimboTable, _: int) -> None:
        self.entries.clear()

    patch(LimboTable, "forget", forget)


@plant_rare_limbo
def limbo_outlives_a_failover(patch: Patch) -> None:
    patch(LimboTable, "forget", lambda *_: None)


@plant_limbo
def foreign_gids_are_taken(patch: Patch) -> None:
    class Anybodys(Gid):
        text = ""

        def __str__(self) -> str:
            return self.text

    class AnyGid:
        @staticmethod
        def is_ours(_: str) -> bool:
            return True

        @staticmethod
        def parse(text: str) -> Gid:
            try:
                return Gid.parse(text)
            except GidError:
                gid = Anybodys(Policy.ROLLBACK, 0, 1, 0, 0, 0, "")
                object.__setattr__(gid, "text", text)
                return gid

    patch(limbo_table, "Gid", AnyGid)


# ---- the janitor


def _janitor(patch: Patch, decision: Any) -> None:
    """`decision(entry, client, **now)`; if it returns None, the real one is called."""

    def decided(entry: Entry, client: Any, **now: Any) -> Decision:
        early = decision(entry, client, **now)
        return decide(entry, client, **now) if early is None else early

    patch(limbo, "decide", decided)


@plant_limbo
def janitor_ignores_commit_lsn(patch: Patch) -> None:
    """The deadline has passed, and the policy applies."""

    def decision(entry: Entry, client: Any, **now: Any) -> Decision | None:
        is_due = is_orphan(client, now["now_ms"], now["deadline_ms"], now["orphan_grace_ms"])
        return Decision.ROLL_BACK if is_due and entry.gid.policy is Policy.ROLLBACK else None

    _janitor(patch, decision)


@plant_limbo
def janitor_commits_at_the_deadline(patch: Patch) -> None:
    """It commits because the transaction must end."""

    def decision(entry: Entry, client: Any, **now: Any) -> Decision | None:
        is_due = is_orphan(client, now["now_ms"], now["deadline_ms"], now["orphan_grace_ms"])
        return Decision.COMMIT if is_due else None

    _janitor(patch, decision)


@plant_limbo
def janitor_takes_the_lower_bound(patch: Patch) -> None:
    """It takes begin_lsn, which commit_lsn has reached, for the end."""

    def decision(entry: Entry, client: Any, **now: Any) -> Decision | None:
        return decide(replace(entry, high_lsn=entry.low_lsn + 1), client, **now)

    _janitor(patch, decision)


@plant_limbo
def rolled_back_at_promotion(patch: Patch) -> None:
    """Its client was connected to the old primary and is gone."""

    def decision(entry: Entry, client: Any, **now: Any) -> Decision | None:
        return Decision.ROLL_BACK if entry.gid.tli != now["tli"] else None

    _janitor(patch, decision)


@plant_limbo
def never_finished_after_promotion(patch: Patch) -> None:
    def decision(entry: Entry, client: Any, **now: Any) -> Decision | None:
        return Decision.LEAVE if entry.gid.tli != now["tli"] else None

    _janitor(patch, decision)


# ---- outcomes


def _outcome(patch: Patch, answer: Any) -> None:
    """`answer(evidence)` replaces the real one, which it may call."""
    from . import limbo_coordinator

    patch(limbo_coordinator, "outcome_of", answer)


@plant_limbo
def rolled_back_reported_on_a_local_abort(patch: Patch) -> None:
    """pg_xact_status reports it on this primary at present."""

    def answer(evidence: Evidence) -> OutcomeAnswer:
        if evidence.xid_status is XidStatus.ABORTED and not evidence.is_prepared:
            return OutcomeAnswer(Fate.ROLLED_BACK)
        return outcome_of(evidence)

    _outcome(patch, answer)


@plant_limbo
def outcome_covers_nothing(patch: Patch) -> None:
    """The outcome is reported before the quorum has the WAL that proves it."""
    patch(outcome_answer, "_once_covered", lambda fate, lsn, _: OutcomeAnswer(fate, lsn))


@plant_limbo
def xid_of_another_transaction_believed(patch: Patch) -> None:
    def answer(evidence: Evidence) -> OutcomeAnswer:
        return outcome_of(replace(evidence, is_in_log=True))

    _outcome(patch, answer)


@plant_limbo
def xid_of_a_twin_believed(patch: Patch) -> None:
    """Its client knows the end of the PREPARE on a timeline of that number."""

    def answer(evidence: Evidence) -> OutcomeAnswer:
        is_there = evidence.gid.begin_lsn < evidence.lsn <= evidence.flushed_lsn
        return outcome_of(replace(evidence, is_in_log=True) if is_there else evidence)

    _outcome(patch, answer)


@plant_limbo
def timeline_of_a_gid_not_checked(patch: Patch) -> None:
    """The xid is looked up on a primary that never had the transaction."""

    def answer(evidence: Evidence) -> OutcomeAnswer:
        gid = replace(evidence.gid, tli=evidence.led.history.tli)
        return outcome_of(replace(evidence, gid=gid, is_in_log=True))

    _outcome(patch, answer)


@plant_limbo
def deposed_primary_is_believed(patch: Patch) -> None:
    """A gid of a newer timeline cannot exist there, so it is reported as never prepared."""

    def answer(evidence: Evidence) -> OutcomeAnswer:
        is_newer = evidence.gid.tli > evidence.led.history.tli
        return OutcomeAnswer(Fate.ROLLED_BACK) if is_newer else outcome_of(evidence)

    _outcome(patch, answer)


@plant_limbo
def missing_means_rolled_back(patch: Patch) -> None:
    """It is not in the limbo, and its end was not seen."""

    def answer(evidence: Evidence) -> OutcomeAnswer:
        found = outcome_of(evidence)
        return OutcomeAnswer(Fate.ROLLED_BACK) if found.fate is Fate.UNKNOWN else found

    _outcome(patch, answer)


# ---- clients


@plant_limbo
def client_reports_its_own_rollback(patch: Patch) -> None:
    """ROLLBACK PREPARED has returned, but only this primary knows it."""
    finish = Client._finish

    def finished(self: Client, *, is_commit: bool) -> Any:
        sqlstate = yield from finish(self, is_commit=is_commit)
        if sqlstate is None and not is_commit:
            self.tell(Fate.ROLLED_BACK)
        return sqlstate

    patch(Client, "_finish", finished)


@plant_limbo
def client_commits_a_pending_transaction(patch: Patch) -> None:
    act_on = Client._act_on
    patch(Client, "_act_on", lambda self, _: act_on(self, limbo_events.Verdict.CONFIRMED))


@plant_limbo
def traffic_before_the_limbo_is_resolved(patch: Patch) -> None:
    patch(LimboWorld, "may_open", lambda *_: True)


@plant_limbo
def resolved_before_the_quorum_has_the_timeline(patch: Patch) -> None:
    """Right after pg_promote(), but the old primary may return and continue with its own log."""

    def promoted(self: LimboWorld, primary: LimboPrimary) -> None:
        for name in [] if primary.is_open else self.older_in_limbo(primary):
            primary.finish(name, is_commit=True)

    patch(LimboWorld, "promoted", promoted)
