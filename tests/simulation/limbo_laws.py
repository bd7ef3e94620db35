"""The invariants of the limbo, checked at every statement, verdict and answer; none of it is the
core's. What is true is told by the log that a quorum has, and by what was done on the servers.

    SeenSurvives      COMMIT PREPARED only of what the quorum has; what a reader has seen is in
                      every primary that clients are let into later
    PromotionCommits  one that was promoted in order is opened with nothing older in its limbo
    RolledBackIsGone  what was told to be rolled back never comes into the quorum's log unresolved
    OneOutcome        all answers to all who asked are one; committed means in the quorum's log
    Janitor           it rolls back nothing that its commit_lsn covers, or that this ballot or an
                      older one has confirmed
    Fenced            a fenced coordinator says nothing but that, and orders nothing
    TermStart         nothing is decided before commit_lsn has passed the term's start, and the
                      first byte of the timeline
    Foreign           a gid of somebody else is never touched
    Barrier           who reads after a barrier sees all that was told committed before it
    Order             with order=fifo, what was prepared when another had been prepared is confirmed
                      after that has left
    Finished          in the end nothing of ours is left, and every outcome is known
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorum_wal.consensus.ids import NodeId
from quorum_wal.walproposer.qsync.limbo_events import (
    Action,
    Answer,
    BarrierAsked,
    Event,
    Finish,
    Led,
    Order,
    ResolveAsked,
    Verdict,
    WaitAsked,
)
from quorum_wal.walproposer.qsync.limbo_table import Fate
from quorum_wal.walproposer.qsync.outcome_answer import OutcomeAnswer

from .broken_law import check
from .limbo_database import Kind, Op, Transaction

if TYPE_CHECKING:
    from .limbo_coordinator import LimboCoordinator
    from .limbo_primary import LimboPrimary
    from .limbo_world import LimboWorld


class LimboLaws:
    def __init__(self, world: LimboWorld) -> None:
        self.world = world
        #: Of each transaction, by number: the operations that the quorum's log has.
        self.durable: dict[int, set[Kind]] = {}
        #: Since when it has the PREPARE.
        self._prepared_us: dict[int, int] = {}
        self.prepare_ops: dict[int, Op] = {}
        self.seen_rows: dict[int, str] = {}
        self.fates: dict[int, tuple[Fate, str]] = {}
        #: By the oldest ballot that has.
        self.confirmed: dict[int, NodeId] = {}
        self._foreign_ended: set[int] = set()
        self._rolled_back_by_admin: set[int] = set()
        self._questions: dict[int, Event] = {}
        self._index = 0

    # ---- the log that a quorum has

    def committed_grew(self) -> None:
        """Each new record of it, once, in its order."""
        log = self.world.invariants.committed
        while self._index < len(log.ends):
            op = self.world.ops.at(log, self._index)
            self._index += 1
            if op is None:
                continue
            op.is_durable = True
            if op.of is not None:
                self.durable.setdefault(op.of.number, set()).add(op.kind)
                self._prepared_us.setdefault(op.of.number, self.world.clock.now_us)
                self._entered(op.of, op.kind)

    def _entered(self, of: Transaction, kind: Kind) -> None:
        fate, who = self.fates.get(of.number, (None, ""))
        if fate is Fate.ROLLED_BACK:
            is_gone = kind is Kind.ROLLBACK_PREPARED
            check("RolledBackIsGone", is_gone, of.name, f"was told rolled back by {who}:", kind)
        if kind is Kind.ROLLBACK_PREPARED:
            check("OneOutcome", fate is not Fate.COMMITTED, of.name, f"told committed by {who}")
            is_unseen = of.number not in self.seen_rows
            check("SeenSurvives", is_unseen, of.name, "was seen on", self.seen_rows.get(of.number))

    def has(self, of: Transaction, kind: Kind) -> bool:
        return kind in self.durable.get(of.number, ())

    # ---- statements

    def prepared(self, primary: LimboPrimary, of: Transaction, op: Op) -> None:
        self.prepare_ops[of.number] = op
        self.world.count("limbo: prepared")
        fate, _ = self.fates.get(of.number, (None, ""))
        check("RolledBackIsGone", fate is None, of.name, "is prepared on", primary.name, fate)

    def finished(self, primary: LimboPrimary, of: Transaction, is_commit: bool) -> None:
        """By whomever."""
        if of.is_foreign:
            is_his = of.number in self._foreign_ended
            check("Foreign", is_his, of.name, "was finished by a coordinator")
        elif is_commit:
            has = self.has(of, Kind.PREPARE)
            check("SeenSurvives", has, of.name, "committed on", primary.name, "without a quorum")

    def foreign_finishes(self, of: Transaction) -> None:
        self._foreign_ended.add(of.number)

    # ---- readers

    def seen(self, primary: LimboPrimary) -> None:
        for number in primary.database.rows:
            if number not in self.seen_rows:
                of = self.world.transactions[number]
                if not of.is_foreign:
                    self.seen_rows[number] = primary.name
                    gone = self.has(of, Kind.ROLLBACK_PREPARED)
                    check("SeenSurvives", not gone, of.name, "is seen after its rollback")

    def let_in(self, primary: LimboPrimary, led_us: int, in_order: bool) -> None:
        """Clients begin on it; or, of one that was promoted by hand, its limbo is resolved. It
        leads since then, and maybe not any more."""
        self.seen(primary)
        older = self.world.older_in_limbo(primary)
        check("PromotionCommits", not older, primary.name, "is opened with", older)
        missing = self.seen_rows.keys() - primary.database.rows
        before = [number for number in missing if self._prepared_us[number] < led_us]
        names = [self.world.transactions[number].name for number in before]
        check("SeenSurvives", not names, primary.name, "lacks", names)
        self.world.count("limbo: promoted primaries opened" if in_order else "limbo: by hand")

    def told_committed(self) -> set[int]:
        return {number for number, (fate, _) in self.fates.items() if fate is Fate.COMMITTED}

    def barrier_passed(self, server: LimboPrimary, known: set[int]) -> None:
        """`known`: what somebody knew to be committed before the barrier was asked for."""
        missing = [self.world.transactions[n].name for n in known - server.database.rows]
        check("Barrier", not missing, "a read of", server.name, "lacks", missing)

    # ---- what was told

    def told(self, of: Transaction, fate: Fate, who: str) -> None:
        """To somebody, for good."""
        before, teller = self.fates.get(of.number, (fate, who))
        check("OneOutcome", before is fate, f"{of.name}: {teller} said {before}, {who} {fate}")
        self.fates[of.number] = fate, teller
        if fate is Fate.COMMITTED:
            check("OneOutcome", self.has(of, Kind.PREPARE), of.name, "is not on a quorum", who)
            is_kept = not self.has(of, Kind.ROLLBACK_PREPARED)
            check("OneOutcome", is_kept, of.name, "was rolled back", who)
        elif fate is Fate.ROLLED_BACK:
            is_gone = not self.has(of, Kind.PREPARE) or self.has(of, Kind.ROLLBACK_PREPARED)
            check("RolledBackIsGone", is_gone, of.name, "is on a quorum, said", who)
            check("RolledBackIsGone", not self._may_come(of), of.name, "may come yet, said", who)

    def _may_come(self, of: Transaction) -> bool:
        """Whether some server has its PREPARE in a log that may still win: one that the quorum's
        log is the begin of."""
        op = self.prepare_ops.get(of.number)
        if op is None or self.has(of, Kind.PREPARE):
            return False
        committed = self.world.invariants.committed
        for primary in self.world.primaries:
            log = primary.log
            is_longer = log.wal.startswith(committed.wal)
            if is_longer and self.world.ops.ending_at(log, op.end_lsn) is op:
                return True
        return False

    def outcome_told(
        self, coordinator: LimboCoordinator, of: Transaction, answer: OutcomeAnswer
    ) -> None:
        if answer.fate in (Fate.COMMITTED, Fate.ROLLED_BACK):
            self._decides(coordinator, f"OUTCOME {of.name}")
            self.told(of, answer.fate, coordinator.name)

    # ---- coordinators

    def coordinator_stepped(
        self, coordinator: LimboCoordinator, event: Event, actions: list[Action]
    ) -> None:
        if isinstance(event, WaitAsked | BarrierAsked | ResolveAsked):
            self._questions[event.waiter] = event
        if isinstance(event, ResolveAsked) and not event.commit:
            self._rolled_back_by_admin.add(self.world.by_name[event.gid].number)
        for action in actions:
            if isinstance(action, Answer):
                self._answered(coordinator, action)
            elif isinstance(action, Finish):
                self._ordered(coordinator, action)

    def _decides(self, coordinator: LimboCoordinator, what: str) -> Led:
        led = coordinator.led
        check("Fenced", led is not None, coordinator.name, "does not lead, and says", what)
        assert led is not None
        name, lsn = f"{coordinator.name} {what}", coordinator.commit_lsn
        check("TermStart", lsn >= led.term_start_lsn, name, "before the term's start")
        for entry in led.history.entries:
            check("TermStart", lsn > entry.switch_lsn, name, "before the timeline has a byte")
        return led

    def _answered(self, coordinator: LimboCoordinator, answer: Answer) -> None:
        check("Fenced", coordinator.led is not None, coordinator.name, "answers", answer)
        question = self._questions[answer.waiter]
        if answer.verdict is Verdict.PENDING:
            return
        self._decides(coordinator, f"answers {question}")
        if answer.verdict is not Verdict.CONFIRMED:
            return
        self.world.count("limbo: confirmed")
        assert isinstance(question, WaitAsked | BarrierAsked)
        is_reached = coordinator.commit_lsn >= question.lsn
        check("SeenSurvives", is_reached, question, "is confirmed too early")
        gid = question.gid if isinstance(question, WaitAsked) else None
        if gid is None:
            return
        of = self.world.by_name[str(gid)]
        has = self.has(of, Kind.PREPARE)
        check("SeenSurvives", has, of.name, "is confirmed by", coordinator.name, "without a quorum")
        by = coordinator.led.node_id
        self.confirmed[of.number] = min(by, self.confirmed.get(of.number, by))
        if self.world.settings.order is Order.FIFO:
            self._check_order(coordinator, of)

    def _check_order(self, coordinator: LimboCoordinator, of: Transaction) -> None:
        """Of two that were not prepared at the same time."""
        primary = coordinator.primary
        mine = primary.database.prepared.get(of.name) if primary is not None else None
        if mine is None:
            return
        before = [
            name
            for name, prepared in primary.database.prepared.items()
            if not prepared.of.is_foreign and prepared.valid_us < mine.prepared_at_us
        ]
        check("Order", not before, of.name, "is confirmed before", before)

    def _ordered(self, coordinator: LimboCoordinator, finish: Finish) -> None:
        of = self.world.by_name[finish.gid]
        check("Foreign", not of.is_foreign, coordinator.name, "orders", finish)
        led = self._decides(coordinator, f"orders {finish}")
        if finish.commit:
            check("SeenSurvives", self.has(of, Kind.PREPARE), coordinator.name, "orders", finish)
            return
        if of.number in self._rolled_back_by_admin:
            return
        op = self.prepare_ops[of.number]
        covers = coordinator.commit_lsn >= op.end_lsn
        check("Janitor", not covers, coordinator.name, "orders", finish, "which is covered")
        # A successor may have confirmed it: who does not know of that yet has its policy to go by,
        # and whoever has the gid locked first wins.
        by = self.confirmed.get(of.number)
        is_unsaid = by is None or by > led.node_id
        check("Janitor", is_unsaid, coordinator.name, "orders", finish, "confirmed by", by)

    # ---- the end

    def at_rest(self, primary: LimboPrimary) -> str:
        """Why it has not come to its end on the last primary, or ""."""
        left = [n for n, p in primary.database.prepared.items() if not p.of.is_foreign]
        if left:
            return f"{primary.name} still has {left}"
        rows = primary.database.rows
        for number, name in self.seen_rows.items():
            of = self.world.transactions[number]
            check("SeenSurvives", number in rows, of.name, "was seen on", name, "and is lost")
        for number, (fate, who) in self.fates.items():
            of = self.world.transactions[number]
            is_there = number in rows
            check("OneOutcome", is_there is (fate is Fate.COMMITTED), of.name, fate, "said", who)
        return ""

    def unknown(self, of: Transaction, lsn: int, primary: LimboPrimary) -> None:
        """The answer to somebody who asked when all was quiet, and knew this bound."""
        switches = {entry.tli: entry.switch_lsn for entry in primary.tli_history.entries}
        end_lsn = switches.get(of.gid.tli, primary.log.lsn)
        is_known = self.has(of, Kind.PREPARE) and 0 < lsn <= end_lsn
        check("Finished", not is_known, of.name, "is unknown, which is on a quorum below", hex(lsn))
