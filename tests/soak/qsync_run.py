"""`QsyncSoak`: a process is killed at each step between a PREPARE and its last answer.

    a client stops at a step -> its victim is killed -> the client continues -> the victim restarts

`qsync_strikes.py` chooses the next strike. Now and then all clients pause: pending transactions
must end, and everything is compared.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from quorum_wal.pg_fixtures.errors import FixtureError
from quorum_wal.pg_fixtures.fork_server import ForkServer
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_server.errors import DeadlineExceeded

from .chronicle import Chronicle, is_over
from .qsync_book import COMMITTED, ROLLED_BACK, UNKNOWN, Name, QsyncBook
from .qsync_client import ACCOUNTS, BALANCE, LED
from .qsync_clients import PROGRAM, ClientProcess
from .qsync_orders import BEFORE, DIE, DROP, DURING, STOP
from .qsync_plain import Control, PlainClient, Trouble
from .qsync_plants import OF_CLIENTS, plant_into_inquirer
from .qsync_strikes import CLIENT, VICTIMS, Minima, Strike, Tally, Victim, deal
from .qsync_watchers import Inquirer, NewestTimeline, Reader
from .qsync_world import CONFIGURING_STEPS, PROMOTION_STEPS, QsyncWorld
from .world import Loss

CLIENTS = 4
READERS = ("read-write", "read-write", "primary", "standby")
#: Some steps need another fault first: if no client reaches the step, another strike is chosen.
STEP_SECONDS = 5.0
RECOVERY_SECONDS = 90.0
#: Of transactions that only the coordinator can end.
REST_SECONDS = 30.0
#: With a planted bug, which shows when they do not end.
PLANTED_REST_SECONDS = 10.0
DOWN_SECONDS_MAX = 0.8
#: Longer than the longest wait of a transaction, which is then reported as pending.
LONG_DOWN_SECONDS = 2.5
LONG_DOWN_SHARE = 0.2
REST_EVERY = 12  # strikes
#: With a planted bug, which shows at a rest.
PLANTED_REST_EVERY = 4
BROKEN_OFF_SHARE = 0.5  # of the failovers: sk promote is killed, and run again
#: Steps that a client reaches only without a quorum.
RARE_STEPS = ("rollback", "outcome")
#: Of transactions reported as committed: so many are asked for again at each rest.
ASKED_AGAIN = 60
#: Outcomes that OUTCOME may not know, of transactions without a reported end: if a client dies
#: before it learns the position of its PREPARE, and the coordinator dies, nothing distinguishes it
#: from a foreign one.
UNKNOWN_SHARE_MAX = 0.05
UNKNOWN_ALLOWED = 6

_TABLES = (
    "CREATE TABLE accounts (id int PRIMARY KEY, balance bigint NOT NULL)",
    f"INSERT INTO accounts SELECT id, {BALANCE} FROM generate_series(0, {ACCOUNTS - 1}) AS id",
    "CREATE TABLE moves (client int, seq int, source int, target int, amount int,"
    " inserted_at timestamptz DEFAULT clock_timestamp(), PRIMARY KEY (client, seq))",
    "CREATE INDEX ON moves (inserted_at)",
    "CREATE TABLE plain (id bigserial PRIMARY KEY)",
)


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a run. `victims`: the processes to kill, besides failovers."""

    minutes: float
    minima: Minima = field(default_factory=Minima)
    victims: Sequence[Victim] = VICTIMS
    plant: str = ""


@dataclass
class QsyncSoak:
    """`run` until the minima are reached, or `minutes` are over, or `stopping` is set."""

    world: QsyncWorld
    folder: Path
    seed: int
    rng: random.Random
    stopping: threading.Event
    plan: Plan
    chronicle: Chronicle = field(default_factory=Chronicle)
    book: QsyncBook = field(default_factory=QsyncBook)
    rests: int = 0
    #: Transactions without a reported end when all rested, and OUTCOME did not know it.
    unknown: int = 0
    _trouble: Trouble = field(default_factory=Trouble)

    def __post_init__(self) -> None:
        for statement in _TABLES:
            self.world.primary.postgres.execute(statement)
        self.tally = Tally(self.plan.victims)
        self._newest = NewestTimeline()
        plant_into_inquirer(self.plan.plant)
        self._start_clients()
        self._start_watchers()

    def _start_clients(self) -> None:
        plant = self.plan.plant if self.plan.plant in OF_CLIENTS else ""
        dsn, coordinator = self.world.clients_dsn("read-write"), self.world.coordinator
        self._client_server = ForkServer(PROGRAM, ())
        self.clients = [
            ClientProcess(
                self._client_server, self.folder, self.seed, dsn, coordinator, self.book, plant
            )
            for _ in range(CLIENTS)
        ]

    def _start_watchers(self) -> None:
        self.readers = [
            Reader(number, self.world.clients_dsn(session), self.book, self._newest)
            for number, session in enumerate(READERS, 1)
        ]
        dsn = self.world.clients_dsn("read-write")
        self.inquirer = Inquirer(self.world.coordinator, self.book, random.Random(self.seed))
        self.control = Control(dsn, self.folder)
        self.plain = PlainClient(
            dsn,
            self.book,
            self._trouble,
            self.control.turns,
            waits_by_names=self.world.configures and self.plan.plant != "names",
        )
        for watcher in (*self.readers, self.inquirer, self.control, self.plain):
            watcher.start()

    def run(self) -> None:
        """Raises PgServerError if transactions do not return, or one stays pending."""
        deadline = time.monotonic() + self.plan.minutes * 60
        minima = self.plan.minima
        rest_every = PLANTED_REST_EVERY if self.plan.plant else REST_EVERY
        self._wait_progress()
        for number, strike in enumerate(deal(self.rng, self.tally, minima), 1):
            self._strike(strike)
            if number % rest_every == 0:
                self.rest()
                for client in self.clients:
                    client.order("resume")
            is_done = minima.any and not self.tally.missing(minima)
            if is_done or is_over(deadline, self.stopping):
                break
            if self.book.violations or self.knows_too_little:
                break
        self.rest()
        self._check_end()

    def _check_end(self) -> None:
        """All clients pause and nothing is written any more: all logs are equal, and no process met
        an unexpected error."""
        self.plain.end()
        self.world.check_logs()
        self.world.check_no_traceback()

    def close(self) -> None:
        for client in self.clients:
            client.kill()
        self._client_server.close()
        for watcher in (*self.readers, self.control, self.plain):
            watcher.end()
        self.inquirer.end()

    # ---- one fault

    def _strike(self, strike: Strike) -> None:
        client = self.rng.choice(self.clients)
        with self.chronicle.during(str(strike)):
            paused = self._lead_to_rare(client) if strike.step in RARE_STEPS else ()
            said = client.arm(strike.step, strike.when, self._act(strike))
            client.order("go")
            came = client.wait_said(said, STEP_SECONDS)
            if came and strike.victim == CLIENT:
                came = client.wait_dead(STEP_SECONDS)
                self._resume(paused)
            elif came:
                self._lose(strike.victim, client, paused)
            client.order("disarm")
            client.order("go")
            self._resume(paused)
        self._note(strike, came=came)
        self._tend()
        self._wait_progress()

    def _act(self, strike: Strike) -> str:
        if strike.victim == CLIENT:
            return DIE
        return self.rng.choice((STOP, DROP)) if strike.when == DURING else STOP

    def _note(self, strike: Strike, *, came: bool) -> None:
        if came:
            self.tally.struck[strike] += 1
            return
        self.tally.missed[strike] += 1
        self.chronicle.note(f"not struck: the client did not come to {strike.step}")

    def _lead_to_rare(self, client: ClientProcess) -> Sequence[int]:
        """It is admitted, and loses its quorum before it prepares; its policy is to roll back."""
        client.order("lead")
        if not client.wait_said(client.arm(LED, BEFORE, STOP), STEP_SECONDS):
            return ()
        paused = self.rng.sample(range(len(self.world.safekeepers)), 2)
        for index in paused:
            self.world.pause_safekeeper(index)
        return paused

    def _resume(self, paused: Sequence[int]) -> None:
        """Allowed if resumed, or killed meanwhile."""
        for index in paused:
            if self.world.safekeepers[index].alive:
                self.world.safekeepers[index].resume()

    def _lose(self, victim: Victim, client: ClientProcess, paused: Sequence[int]) -> None:
        match victim:
            case Loss():
                self._resume(paused)
                self._fail_over(victim, client)
            case "the coordinator":
                assert self.world.primary.proposer is not None
                self.world.primary.proposer.kill()
                self._go_on(client, paused)
                self.world.restart_proposer()
            case "the primary":
                with self._trouble.during("the primary is killed"):
                    self.world.primary.postgres.crash()
                    self._go_on(client, paused)
                    self.world.primary.postgres.start()
            case "a safekeeper":
                self._kill_safekeepers(1, client, paused)
            case "two safekeepers":
                self._kill_safekeepers(2, client, paused)
            case _:
                raise AssertionError(victim)

    def _go_on(self, client: ClientProcess, paused: Sequence[int], longest: float = 0.0) -> None:
        """It continues for a while, with or without its quorum."""
        if self.rng.random() < 0.5:
            self._resume(paused)
        client.order("go")
        self.stopping.wait(longest or self.rng.uniform(0.0, DOWN_SECONDS_MAX))

    def _kill_safekeepers(self, number: int, client: ClientProcess, paused: Sequence[int]) -> None:
        killed = self.rng.sample(paused or range(len(self.world.safekeepers)), number)
        for index in killed:
            self.world.safekeepers[index].kill()
        is_long = number > 1 and self.rng.random() < LONG_DOWN_SHARE
        self._go_on(client, paused, LONG_DOWN_SECONDS if is_long else 0.0)
        for index in killed:
            self.world.safekeepers[index].start()

    # ---- failovers

    def _fail_over(self, loss: Loss, client: ClientProcess) -> None:
        world = self.world
        with self._trouble.during("a failover"):
            ((tli,),) = world.primary.postgres.execute(
                "SELECT ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))"
                "::bit(32)::int"
            )
            self._newest.met(tli + 1)
            world.lose_primary(loss)
            client.order("go")
            self._promote()
            world.depose()  # before: clients that still reach it would stay, and be refused
            self._wait_progress()
        world.rejoin()
        self.tally.failovers[loss] += 1

    def _promote(self) -> None:
        if self.rng.random() >= BROKEN_OFF_SHARE:
            self.world.promote()
            return
        steps = (*PROMOTION_STEPS, *(CONFIGURING_STEPS if self.world.configures else ()))
        step = self.rng.choice(steps)
        if self.world.promote_broken_off(step):
            self.tally.broken_off[step] += 1

    # ---- laws

    def _tend(self) -> None:
        self.world.restart_proposer()
        self.world.tend()
        for client in self.clients:
            client.read_journal()
            if not client.alive:
                if client.exit_code != -9:
                    raise FixtureError(f"client {client.number} ended with {client.exit_code}")
                client.kill()
                client.start()

    def _wait_progress(self) -> None:
        """Some transactions are committed, also plain ones. Raises DeadlineExceeded."""
        before, plain = self._committed(), self.plain.commits

        def progresses() -> bool:
            self._tend()
            return self._committed() >= before + CLIENTS and self.plain.commits > plain

        wait_until(progresses, RECOVERY_SECONDS, "transactions to be committed again")

    def _committed(self) -> int:
        return self.book.count(COMMITTED)

    def rest(self) -> None:
        """Without faults and new transactions: pending ones end, and everything is compared.
        Clients stay paused.

        Raises DeadlineExceeded if a transaction stays pending.
        """
        self._tend()
        for client in self.clients:
            client.order("pause")
        for client in self.clients:
            if not client.wait_said("paused", RECOVERY_SECONDS) and client.alive:
                raise DeadlineExceeded(f"client {client.number} does not come to its end")
            client.read_journal()
            client.forget("paused")
        seconds = PLANTED_REST_SECONDS if self.plan.plant else REST_SECONDS
        wait_until(lambda: not self.world.limbo(), seconds, "the limbo to be empty")
        self._decide()
        with self.world.primary.postgres.connect(
            options="-c synchronous_commit=local"
        ) as connection:
            self.readers[0].look_at_all(connection)
        self.book.reckon()
        self._check_names()
        self.rests += 1
        self.chronicle.note(self.summary())

    def _decide(self) -> None:
        """Each has an end, and the table agrees with it. OUTCOME may not know it if the xid may
        belong to another transaction; the limbo is empty, so the table is final."""
        present = set(self.world.primary.postgres.execute("SELECT client, seq FROM moves"))
        undecided = set(self.book.undecided())
        for name in undecided:
            answer = self._outcome(name, present)
            if answer == UNKNOWN:
                self.unknown += 1
                self.chronicle.note(f"the end of {name}, {self.book.gids[name]} is unknown")
                self.book.told(name, COMMITTED if name in present else ROLLED_BACK)
        committed, others = self.book.take_begun()
        again = self.rng.sample(committed, min(ASKED_AGAIN, len(committed)))
        for name in {*again, *others} - undecided:
            self._outcome(name, present)

    def _outcome(self, name: Name, present: set[Name]) -> str:
        answer = wait_until(
            lambda: self.inquirer.ask(name), REST_SECONDS, f"the end of {self.book.gids[name]}"
        )
        if answer != UNKNOWN and (answer == COMMITTED) != (name in present):
            self.book.violate("UNTRUE", f"{name}, {self.book.gids[name]} is said to be {answer}")
        return answer

    def _check_names(self) -> None:
        """The run is as announced: without synchronous_standby_names, or with."""
        names = self.world.names()
        if bool(names) != self.world.configures:
            raise FixtureError(f'synchronous_standby_names is "{names}"')

    @property
    def knows_too_little(self) -> bool:
        return self.unknown > max(UNKNOWN_ALLOWED, UNKNOWN_SHARE_MAX * self.book.orphans_count)

    def looks(self, kind: str) -> int:
        """How often readers have read all rows on a server of this kind."""
        return sum(reader.looks[kind] for reader in self.readers)

    def summary(self) -> str:
        book = self.book
        return (
            f"{self.tally.faults} faults; {self._committed()} committed, "
            f"{book.count(ROLLED_BACK)} rolled back, {book.seen_count} seen, "
            f"{self.looks('open')} comparisons, {self.inquirer.answers} outcomes asked, "
            f"{self.unknown} of {book.orphans_count} unknown, {self.plain.commits} plain commits, "
            f"the longest {self.plain.longest_seconds:.2f} s; violations: {len(book.violations)}"
        )
