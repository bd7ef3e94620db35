"""`MembersSoak`: one change of the members after another, while clients commit, with random kills.

    1 -> 3 -> 5 -> 3, each of the three replaced, each wiped and replaced, 3 -> 1, and again

In most changes a process is killed: the command, the proposer, a member, the new member, the
primary (sometimes followed by a failover); or a member hangs until the change is complete. Then the
same command is repeated until it succeeds.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from quorum_wal.pg_fixtures.errors import FixtureError
from quorum_wal.pg_fixtures.processes import ServiceProcess
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_server.errors import DeadlineExceeded

from .books import PROGRESS_ROWS, Books
from .chronicle import Chronicle, SilenceWatch, is_over
from .members_world import MembersWorld
from .world import Loss

CHANGE_SECONDS_MAX = 180.0
RECOVERY_SECONDS = 90.0
TICK_SECONDS = 0.05
#: The longest wait of a commit for a change itself, before any process was killed.
CALM_SECONDS_MAX = 2.0
STRUCK_SHARE = 0.7  # of the changes
FAILOVER_SHARE = 0.15  # of the strikes
STRIKE_DELAY_SECONDS_MAX = 3.0  # about as long as a change takes
SAME_ADDRESS_SHARE = 0.5  # of those that are wiped
FORGOTTEN_SHARE = 0.7  # of those that have left
LOSSES = (Loss.KILLED, Loss.MACHINE, Loss.STOPPED)


@dataclass(frozen=True, slots=True)
class Change:
    """`members` are the members at its end, `newcomers` the new ones among them."""

    what: str
    arguments: tuple[object, ...]
    members: tuple[int, ...]
    newcomers: tuple[int, ...] = ()
    is_wiped: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """The wait of a commit."""

    seconds: float = 0.0
    during: str = ""


@dataclass
class MembersSoak:
    """`run` until `minutes` are over, or `stopping` is set."""

    world: MembersWorld
    books: Books
    chronicle: Chronicle
    watch: SilenceWatch
    rng: random.Random
    stopping: threading.Event
    changes: int = 0
    #: Changes without a kill.
    calm_changes: int = 0
    kills: int = 0
    failovers: int = 0
    #: Kills while `sk member` was running.
    struck_under_way: int = 0
    #: The longest wait for a change itself.
    longest_wait: Wait = Wait()

    def run(self, minutes: float) -> None:
        """Raises PgServerError if commits do not return, and for every other defect."""
        deadline = time.monotonic() + minutes * 60
        for change in self._deal():
            self._carry_out(change)
            if self.changes % 10 == 0:
                self.chronicle.note(self.books.reckon())
                self.books.turn_page()
            if is_over(deadline, self.stopping):
                break
        self._conclude()

    # ---- which changes

    def _deal(self) -> Iterator[Change]:
        """Without end; each is chosen when the previous one is complete."""
        while True:
            yield self._grown()
            yield self._grown()
            yield self._shrunk()
            for member in tuple(self.world.members):
                yield self._replaced(member)
            for member in tuple(self.world.members):
                yield self._wiped(member)
            yield self._shrunk()

    def _grown(self) -> Change:
        world = self.world
        new = [world.new_keeper(), world.new_keeper()]
        ids = tuple(keeper.id for keeper in new)
        return Change(
            f"{len(world.members)} -> {len(world.members) + 2}",
            ("add", *(keeper.address for keeper in new)),
            tuple(sorted((*world.members, *ids))),
            ids,
        )

    def _shrunk(self) -> Change:
        members = self.world.members
        leavers = self.rng.sample(members, 2)
        return Change(
            f"{len(members)} -> {len(members) - 2}",
            ("remove", *leavers),
            tuple(id for id in members if id not in leavers),
        )

    def _replaced(self, member: int, *, port: int | None = None, is_wiped: bool = False) -> Change:
        new = self.world.new_keeper(port)
        return Change(
            f"{'wiped and ' if is_wiped else ''}replaced",
            ("replace", member, new.address),
            tuple(sorted({*self.world.members, new.id} - {member})),
            (new.id,),
            is_wiped,
        )

    def _wiped(self, member: int) -> Change:
        """The disk is lost; the new one has the old address, or another."""
        address = self.world.keepers[member].address
        self.chronicle.note(f"safekeeper {member} is wiped")
        self.world.wipe(member)
        stays = self.rng.random() < SAME_ADDRESS_SHARE
        port = int(address.rpartition(":")[2]) if stays else None
        return self._replaced(member, port=port, is_wiped=True)

    # ---- one change

    def _carry_out(self, change: Change) -> None:
        """The wait of a commit for the change itself is measured up to the kill, or, without one,
        until commits proceed with the new members."""
        struck = self.rng.random() < STRUCK_SHARE
        line = f"{change.what}: sk member {' '.join(map(str, change.arguments))}"
        with self.chronicle.during(line):
            begun = time.monotonic()
            command = self.world.begin(*map(str, change.arguments))
            if struck:
                self.stopping.wait(self.rng.uniform(0.0, STRIKE_DELAY_SECONDS_MAX))
                self._note_wait(begun, line)
                self._strike(change, command)
            self._finish(change, command)
            self._settle(change)
            if not struck:
                self.calm_changes += 1
                self._note_wait(begun, line)
        self.changes += 1
        self.chronicle.survived[change.what] += 1

    def _note_wait(self, since: float, during: str) -> None:
        seconds = self.books.longest_wait(since)
        if seconds > self.longest_wait.seconds:
            self.longest_wait = Wait(seconds, during)

    def _finish(self, change: Change, command: ServiceProcess) -> None:
        """Repeat the command until it succeeds. Raises FixtureError, DeadlineExceeded."""
        deadline = time.monotonic() + CHANGE_SECONDS_MAX
        while command.alive or command.exit_code != 0:
            if time.monotonic() > deadline:
                raise DeadlineExceeded(f"sk member was not done in time\n{command.log_tail()}")
            self.world.tend()
            if not command.alive and command.exit_code != 0:
                self.chronicle.note(f"again, after exit code {command.exit_code}")
                command = self.world.begin(*map(str, change.arguments))
            time.sleep(TICK_SECONDS)  # between two checks of processes
        self.world.thaw()
        members = self.world.membership()
        if tuple(members["members"]) != change.members or members["new_members"]:
            raise FixtureError(f"sk member was content, and the membership is {members}")

    def _settle(self, change: Change) -> None:
        """The next steps of an operator; then commits proceed."""
        world = self.world
        left = [id for id in world.members if id not in change.members]
        world.members = list(change.members)
        world.point_standby()
        for id in left:
            if change.is_wiped or self.rng.random() < FORGOTTEN_SHARE:
                world.forget(id)
        self._await_commits()

    def _await_commits(self) -> None:
        """A proposer may end meanwhile, too, and is started again. Raises DeadlineExceeded,
        FixtureError."""
        before = self.books.acknowledged

        def progressed() -> bool:
            self.world.tend()
            return self.books.acknowledged - before >= PROGRESS_ROWS

        wait_until(progressed, RECOVERY_SECONDS, f"{PROGRESS_ROWS} more commits")

    # ---- kills

    def _strike(self, change: Change, command: ServiceProcess) -> None:
        self.struck_under_way += command.alive
        if self.rng.random() < FAILOVER_SHARE:
            self._fail_over()
            return
        what, strike = self.rng.choice(self._strikes(change, command))
        self.chronicle.note(what)
        strike()
        self.kills += strike != self._freeze_member
        self.chronicle.survived[what] += 1
        if self.rng.random() < 0.5:
            command.kill()

    def _strikes(
        self, change: Change, command: ServiceProcess
    ) -> list[tuple[str, Callable[[], None]]]:
        """A frozen member answers nothing until the change is complete; its set has a quorum
        without it."""
        keepers, members = self.world.keepers, self.world.members
        bears_loss = min(len(members), len(change.members)) > 2 and not change.is_wiped
        return [
            ("kill -9 of the command", command.kill),
            ("kill -9 of the proposer", self._kill_proposer),
            ("kill -9 of the primary", self._restart_primary),
            *(("kill -9 of a member", keepers[id].kill) for id in members if keepers[id].alive),
            *(("kill -9 of a newcomer", keepers[id].kill) for id in change.newcomers),
            *([("a member hangs", self._freeze_member)] if bears_loss else []),
        ]

    def _freeze_member(self) -> None:
        self.world.freeze(self.rng.choice(self.world.members))

    def _kill_proposer(self) -> None:
        assert self.world.primary.proposer is not None
        self.world.primary.proposer.kill()

    def _restart_primary(self) -> None:
        self.world.primary.postgres.crash()
        self.world.primary.postgres.start()

    def _fail_over(self) -> None:
        world, loss = self.world, self.rng.choice(LOSSES)
        world.revive()
        with self.chronicle.during(f"failover: {loss.value}"):
            world.fail_over(loss)
            self.books.redirect(world.primary.postgres.dsn())
            self.books.wait_for_progress(RECOVERY_SECONDS)
            world.rejoin()
        self.failovers += 1
        self.chronicle.survived[f"loss of the primary ({loss.value})"] += 1

    # ---- the end

    def _conclude(self) -> None:
        self._await_commits()
        self.watch.stop()
        self.books.rest(RECOVERY_SECONDS)
        self.chronicle.note(self.books.reckon())
        self.world.check_logs()
        self.world.check_no_traceback()
        wait = self.longest_wait
        if wait.seconds > CALM_SECONDS_MAX:
            raise FixtureError(f"a commit waited {wait.seconds:.1f} s for {wait.during}")
