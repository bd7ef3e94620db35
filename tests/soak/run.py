"""`Soak`: injects one fault after another into a world whose clients commit, and checks all rows.

Faults overlap at random. Before a failover all are ended except one of a safekeeper, because a
failover needs a quorum.
"""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass, field

from quorum_wal.pg_server.errors import DeadlineExceeded

from .books import Books
from .chronicle import Chronicle, SilenceWatch, Spell, is_over
from .faults import Fault, deal
from .told import all_is_well, wait_for_truth
from .world import Loss, World

GAP_SECONDS_MAX = 5.0  # between the beginnings of two faults
RECOVERY_SECONDS = 60.0  # without a fault, and without a commit
TICK_SECONDS = 0.05
INSPECTED_SHARE = 0.25  # of the faults: `sk status` is checked meanwhile


@dataclass(slots=True)
class ActiveFault:
    fault: Fault
    spell: Spell
    until: float


@dataclass
class Soak:
    """`run` until `minutes` are over, or `stopping` is set."""

    world: World
    books: Books
    chronicle: Chronicle
    watch: SilenceWatch
    rng: random.Random
    stopping: threading.Event
    failovers: int = 0
    inspections: int = 0
    _active: list[ActiveFault] = field(default_factory=list)
    _lifted_at: float = field(default_factory=time.monotonic)

    def run(self, minutes: float) -> None:
        """Raises PgServerError if commits do not return, and for every other defect."""
        deadline = time.monotonic() + minutes * 60
        strike_at = 0.0
        faults = deal(self.world, self.rng)
        while not is_over(deadline, self.stopping):
            self._lift([a for a in self._active if a.until <= time.monotonic()])
            self._tend()
            if time.monotonic() >= strike_at:
                fault = next(faults)
                if isinstance(fault, Loss):
                    self._fail_over(fault)
                elif fault.alone or (fault.truth and self.rng.random() < INSPECTED_SHARE):
                    self._inspect(fault)
                else:
                    self._strike(fault)
                strike_at = time.monotonic() + self.rng.uniform(0.5, GAP_SECONDS_MAX)
            self.stopping.wait(TICK_SECONDS)
        self._conclude()

    def _tend(self) -> None:
        if not any(active.fault.is_of_proposer for active in self._active):
            self.world.tend()
        self.check_progress()

    def check_progress(self) -> None:
        """Raises DeadlineExceeded if there is no fault, and no commit for long."""
        if self._active:
            self._lifted_at = time.monotonic()
        calm_since = max(self._lifted_at, self.watch.silent_since)
        if time.monotonic() - calm_since > RECOVERY_SECONDS:
            raise DeadlineExceeded(f"no commit for {RECOVERY_SECONDS:g} s without a fault")

    # ---- faults

    def _strike(self, fault: Fault) -> None:
        self._lift([a for a in self._active if a.fault.touches & fault.touches])
        self._tend()
        spell = self.chronicle.begin(str(fault))
        seconds = self.rng.uniform(fault.seconds_max / 8, fault.seconds_max)
        self._active.append(ActiveFault(fault, spell, time.monotonic() + seconds))
        fault.begin()
        if not fault.seconds_max:
            self._lift(self._active[-1:])

    def _inspect(self, fault: Fault) -> None:
        """Inject it while nothing else is wrong, and wait until `sk status` reports it."""
        assert fault.truth is not None
        self._lift(list(self._active))
        tend = self.world.tend
        wait_for_truth(self.world, all_is_well, "no fault is left", tend)
        with self.chronicle.during(f"{fault}, and sk status is asked"):
            fault.begin()
            told = wait_for_truth(
                self.world, fault.truth, str(fault), None if fault.is_of_proposer else tend
            )
            self.chronicle.note(f"sk status: {told}")
            fault.end()
            wait_for_truth(self.world, all_is_well, f"{fault} is over", tend)
        self.chronicle.survived[fault.kind] += 1
        self.inspections += 1

    def _lift(self, lifted: list[ActiveFault]) -> None:
        for active in lifted:
            active.fault.end()
            active.spell.ended = time.monotonic()
            self._active.remove(active)
            self.chronicle.survived[active.fault.kind] += 1

    # ---- failovers

    def _fail_over(self, loss: Loss) -> None:
        staying = [a for a in self._active if a.fault.outlasts_failover][:1]
        self._lift([a for a in self._active if a not in staying])
        self._tend()
        world, books = self.world, self.books
        with self.chronicle.during(f"failover: {loss.value}"):
            world.lose_primary(loss)
            world.promote()
        books.redirect(world.primary.postgres.dsn())
        books.wait_for_progress(RECOVERY_SECONDS)
        self._lift(staying)
        with self.chronicle.during("sk rejoin of the old primary"):
            world.depose()
            world.rejoin()
        self.failovers += 1
        self.chronicle.survived[f"loss of the primary ({loss.value})"] += 1
        self.chronicle.note(f"{world.primary.name} is the primary; {books.reckon()}")
        books.turn_page()

    # ---- the end

    def _conclude(self) -> None:
        """End all faults; commits proceed; nothing is lost; all logs are equal."""
        self.chronicle.note("all faults are lifted")
        self._lift(list(self._active))
        self.world.tend()
        self.books.wait_for_progress(RECOVERY_SECONDS)
        self.watch.stop()
        self.books.rest(RECOVERY_SECONDS)
        self.chronicle.note(self.books.reckon())
        self.world.watch_disk()
        self.world.check_logs()
        self.world.check_no_traceback()
