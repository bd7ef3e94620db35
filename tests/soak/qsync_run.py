"""`QsyncSoak`: somebody is killed at each step between a PREPARE and its last answer.

    a client stops at a step -> its victim is killed -> the client goes on -> the victim comes back

Every victim is struck at every step, before and after it, like a deck that is shuffled again when
it is used up; among them, at even distances, the primary is lost in one of four ways, at a step
too. Now and then all rest: what is pending must end, and everything is compared.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pg_fixtures.errors import FixtureError
from pg_fixtures.waiting import wait_until
from pg_server.errors import DeadlineExceeded

from .chronicle import Chronicle
from .qsync_book import COMMITTED, NEVER, ROLLED_BACK, UNKNOWN, QsyncBook
from .qsync_client import ACCOUNTS, BALANCE, STEPS
from .qsync_clients import ClientProcess
from .qsync_watchers import Inquirer, NewestTimeline, PlainClient, Reader
from .qsync_world import QsyncWorld
from .world import Loss

CLIENTS = 4
READERS = 2
#: No client comes to some steps before something else is wrong: then another one's turn comes.
STEP_SECONDS = 8.0
RECOVERY_SECONDS = 90.0
DOWN_SECONDS_MAX = 3.0
#: Longer than what a transaction waits at most: it is told to be pending.
LONG_DOWN_SECONDS = 7.0
REST_EVERY = 12  # faults
FAILOVER_EVERY = 10  # faults
BROKEN_OFF_SHARE = 0.5  # of the failovers: sk promote is killed, and run again

CLIENT, COORDINATOR, PRIMARY = "the client", "the coordinator", "the primary"
SAFEKEEPER, QUORUM = "a safekeeper", "two safekeepers"
VICTIMS = (CLIENT, COORDINATOR, PRIMARY, SAFEKEEPER, QUORUM)
#: Steps that a client comes to only when there is no quorum.
RARE_STEPS = ("rollback", "outcome")

_TABLES = (
    "CREATE TABLE accounts (id int PRIMARY KEY, balance bigint NOT NULL)",
    f"INSERT INTO accounts SELECT id, {BALANCE} FROM generate_series(0, {ACCOUNTS - 1}) AS id",
    "CREATE TABLE moves (client int, seq int, source int, target int, amount int,"
    " inserted_at timestamptz DEFAULT clock_timestamp(), PRIMARY KEY (client, seq))",
    "CREATE INDEX ON moves (inserted_at)",
    "CREATE TABLE plain (id bigserial PRIMARY KEY)",
)


@dataclass(frozen=True, slots=True)
class Strike:
    """Whom, when a client is at which step."""

    victim: str | Loss
    step: str
    when: str

    def __str__(self) -> str:
        name = self.victim.value if isinstance(self.victim, Loss) else f"kill -9 of {self.victim}"
        return f"{name} {self.when} {self.step}"


def deal(rng: random.Random, only: Loss | None = None) -> Iterator[Strike]:
    """For ever. `only`: nothing but such failovers."""
    losses: list[Loss] = []
    while only is not None:
        yield Strike(only, rng.choice(STEPS[:4]), rng.choice(("before", "after")))
    while True:
        deck = [Strike(v, s, w) for v in VICTIMS for s in STEPS for w in ("before", "after")]
        rng.shuffle(deck)
        for number, strike in enumerate(deck):
            if number % FAILOVER_EVERY == FAILOVER_EVERY // 2:
                losses = losses or rng.sample(list(Loss), len(Loss))
                yield Strike(losses.pop(), strike.step, strike.when)
            yield strike


@dataclass
class QsyncSoak:
    """`run` until `minutes` are over, or `stopping` is set."""

    world: QsyncWorld
    folder: Path
    seed: int
    rng: random.Random
    stopping: threading.Event
    planted: str = ""
    only: Loss | None = None
    chronicle: Chronicle = field(default_factory=Chronicle)
    book: QsyncBook = field(default_factory=QsyncBook)
    faults: int = 0
    failovers: int = 0
    rests: int = 0
    #: Transactions of which OUTCOME could not tell.
    unknown: int = 0
    #: What the primary is in, that may delay plain commits; "" for nothing.
    _trouble: str = ""

    def __post_init__(self) -> None:
        for statement in _TABLES:
            self.world.primary.postgres.execute(statement)
        self._newest = NewestTimeline()
        dsn, coordinator = self.world.clients_dsn, self.world.coordinator
        self.clients = [
            ClientProcess(self.folder, self.seed, dsn, coordinator, self.book, self.planted)
            for _ in range(CLIENTS)
        ]
        self.readers = [
            Reader(number, dsn, self.book, self._newest) for number in range(1, READERS + 1)
        ]
        self.inquirer = Inquirer(coordinator, self.book, random.Random(self.seed))
        self.plain = PlainClient(dsn, self.book, lambda: self._trouble)
        for watcher in (*self.readers, self.inquirer, self.plain):
            watcher.start()

    def run(self, minutes: float) -> None:
        """Raises PgServerError when transactions do not come back, or one stays pending."""
        deadline = time.monotonic() + minutes * 60
        self._wait_progress()
        for strike in deal(self.rng, self.only):
            self._strike(strike)
            if self.faults % REST_EVERY == 0:
                self.rest()
            if self.book.violations or self.stopping.is_set() or time.monotonic() > deadline:
                break
        self.rest()

    def close(self) -> None:
        for client in self.clients:
            client.kill()
        for watcher in (*self.readers, self.plain):
            watcher.end()
        self.inquirer.end()

    # ---- one fault

    def _strike(self, strike: Strike) -> None:
        client = self.rng.choice(self.clients)
        act = "die" if strike.victim == CLIENT else "stop"
        with self.chronicle.during(str(strike)):
            down = self._lead_to_rare(client) if strike.step in RARE_STEPS else ()
            client.order("arm", strike.step, strike.when, act)
            client.order("go")
            came = client.wait_said("at", STEP_SECONDS) or (act == "die" and not client.alive)
            if strike.victim != CLIENT:
                self._lose(strike.victim, client, down)
            client.order("go")
            if down:
                self.stopping.wait(self.rng.uniform(0.0, DOWN_SECONDS_MAX))
                self._start_safekeepers(down)
        if not came:
            self.chronicle.note(f"the client did not come to {strike.step}")
            client.order("arm", "nowhere", "", "")
        self.faults += 1
        name = strike.victim.value if isinstance(strike.victim, Loss) else strike.victim
        self.chronicle.survived[f"kill: {name}"] += 1
        self.chronicle.survived[f"step: {strike.when} {strike.step}"] += came
        self._tend()
        self._wait_progress()

    def _lead_to_rare(self, client: ClientProcess) -> Sequence[int]:
        """It is admitted, and loses its quorum before it prepares; its policy is to roll back."""
        client.order("next", "rollback")
        client.order("arm", "prepare", "before", "stop")
        client.wait_said("at", STEP_SECONDS)
        return self._kill_safekeepers(2)

    def _lose(self, victim: str | Loss, client: ClientProcess, down: Sequence[int]) -> None:
        seconds = self.rng.uniform(0.0, DOWN_SECONDS_MAX)
        match victim:
            case Loss():
                self._start_safekeepers(down)
                self._fail_over(victim, client)
            case "the coordinator":
                assert self.world.primary.proposer is not None
                self.world.primary.proposer.kill()
                self._go_on(client, seconds)
                self.world.restart_proposer()
            case "the primary":
                self._trouble = "the primary is killed"
                self.world.primary.postgres.crash()
                self._go_on(client, seconds)
                self.world.primary.postgres.start()
                self._trouble = ""
            case "a safekeeper" if not down:
                killed = self._kill_safekeepers(1)
                self._go_on(client, seconds)
                self._start_safekeepers(killed)
            case "two safekeepers" if not down:
                killed = self._kill_safekeepers(2)
                self._go_on(client, self.rng.choice((seconds, LONG_DOWN_SECONDS)))
                self._start_safekeepers(killed)
            case _:
                self._go_on(client, seconds)

    def _go_on(self, client: ClientProcess, seconds: float) -> None:
        """Into what it finds, for so long."""
        client.order("go")
        self.stopping.wait(seconds)

    def _kill_safekeepers(self, number: int) -> list[int]:
        killed = self.rng.sample(range(len(self.world.safekeepers)), number)
        for index in killed:
            self.world.safekeepers[index].kill()
        return killed

    def _start_safekeepers(self, killed: Sequence[int]) -> None:
        for index in killed:
            if not self.world.safekeepers[index].alive:
                self.world.safekeepers[index].start()

    # ---- failovers

    def _fail_over(self, loss: Loss, client: ClientProcess) -> None:
        world = self.world
        self._trouble = "a failover"
        ((tli,),) = world.primary.postgres.execute(
            "SELECT ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::int"
        )
        self._newest.met(tli + 1)
        world.lose_primary(loss)
        client.order("go")
        if self.rng.random() < BROKEN_OFF_SHARE:
            world.promote_broken_off(self.rng.uniform(0.0, 3.0))
        else:
            world.promote()
        world.depose()  # before: clients that still reach it would stay, and be refused
        self._wait_progress()
        world.rejoin()
        self.failovers += 1
        self._trouble = ""

    # ---- what holds

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
        """Some transactions are committed by clients of each kind. Raises DeadlineExceeded."""
        before, plain = self._committed(), self.plain.commits

        def progresses() -> bool:
            self._tend()
            return self._committed() >= before + CLIENTS and self.plain.commits > plain

        wait_until(progresses, RECOVERY_SECONDS, "transactions to be committed again")

    def _committed(self) -> int:
        return self.book.count(COMMITTED)

    def rest(self) -> None:
        """Nothing is wrong and nobody begins anything: what is pending ends, and all is compared.

        Raises DeadlineExceeded when a transaction stays pending.
        """
        self._tend()
        for client in self.clients:
            client.order("pause")
        for client in self.clients:
            if not client.wait_said("paused", RECOVERY_SECONDS) and client.alive:
                raise DeadlineExceeded(f"client {client.number} does not come to its end")
            client.read_journal()
        wait_until(lambda: not self.world.limbo(), RECOVERY_SECONDS, "the limbo to be empty")
        self._decide()
        for reader in self.readers[:1]:
            with self.world.primary.postgres.connect(
                options="-c synchronous_commit=local"
            ) as connection:
                reader.compare(connection)
        self.book.reckon()
        self.rests += 1
        self.chronicle.note(self.summary())
        for client in self.clients:
            client.order("resume")

    def _decide(self) -> None:
        """Every one has an end, and the table agrees with it. Of one whose xid may be a stranger's
        OUTCOME may not know; the limbo is empty, so the table says it for good."""
        rows = self.world.primary.postgres.execute("SELECT client, seq FROM moves")
        present = set(rows)
        for name in self.book.undecided():
            answer = wait_until(
                lambda name=name: self.inquirer.ask(name),  # type: ignore[misc]
                RECOVERY_SECONDS,
                f"the end of {name}, {self.book.gids[name]}",
            )
            if answer == UNKNOWN:
                self.unknown += 1
                self.book.told(name, COMMITTED if name in present else ROLLED_BACK)
            elif (answer == COMMITTED) != (name in present):
                self.book.violate("UNTRUE", f"{name} is said to be {answer}")

    def summary(self) -> str:
        book = self.book
        return (
            f"{self._committed()} committed, {book.count(ROLLED_BACK)} rolled back, "
            f"{book.seen_count} seen, {sum(r.comparisons for r in self.readers)} comparisons, "
            f"{self.inquirer.answers} outcomes asked, {self.plain.commits} plain commits, the "
            f"longest {self.plain.longest.seconds:.2f} s; violations: {len(book.violations)}"
        )


def print_qsync_outcome(soak: QsyncSoak) -> None:
    print(f"\nafter {(time.monotonic() - soak.chronicle.begun) / 60:.1f} minutes")
    for what, count in sorted(soak.chronicle.survived.items()):
        print(f"{count:9}  {what}")
    book = soak.book
    figures = {
        "faults": soak.faults,
        "failovers": soak.failovers,
        "rests, in which all that was pending ended": soak.rests,
        "transactions begun": len(book.gids),
        "committed": book.count(COMMITTED),
        "rolled back": book.count(ROLLED_BACK),
        "refused, or failed before their PREPARE": book.count(NEVER),
        "rows seen": book.seen_count,
        "comparisons": sum(reader.comparisons for reader in soak.readers),
        "outcomes asked for": soak.inquirer.answers,
        "outcomes that nothing could tell but the table": soak.unknown,
        "plain commits": soak.plain.commits,
        "violations": len(book.violations),
    }
    for what, count in figures.items():
        print(f"{count:9}  {what}")
    print(f"the longest plain commit on a healthy primary: {soak.plain.longest.seconds:.2f} s")
    for violation in book.violations[:20]:
        print(violation)
