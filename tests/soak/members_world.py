"""`MembersWorld`: safekeepers that join and leave, and two machines, one the primary, one the
standby.

A process that is started again knows the present addresses, or a single one that may be old.
"""

from __future__ import annotations

import random
import shutil
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from psycopg import sql

from quorum_wal.cli.output import ExitCode
from quorum_wal.pg_fixtures.cluster import flush_lsn
from quorum_wal.pg_fixtures.errors import FixtureError
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.processes import SK, ServiceProcess
from quorum_wal.pg_fixtures.proxy import TcpProxy
from quorum_wal.pg_fixtures.safekeeper import SafekeeperProcess
from quorum_wal.pg_fixtures.standby import make_standby, replica_conninfo
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_fixtures.wal_comparison import compare_wal
from quorum_wal.pg_server.binaries import PostgresBinaries

from .machine import SETTINGS, Machine
from .world import ARGUMENTS, READY_TIMEOUT, WAL_SEG_SIZE, Loss

#: For a proposer that is started again: it did not find all safekeepers at once; or `sk member`
#: found no proposer, acted as one, and took the term from a proposer that had just started.
MAY_END_WITH = (ExitCode.UNREACHABLE, ExitCode.FENCED, -9, None)
OUTVOTED = "Another proposer took over"  # the same, from an election


class MemberMachine(Machine):
    """Reaches the safekeepers without wires, at their present addresses."""

    def __init__(self, name: str, postgres: Postgres, world: MembersWorld) -> None:
        super().__init__(name, postgres, list[TcpProxy]())
        self._world = world
        self._is_promoting = False

    @property
    def addresses(self) -> list[str]:
        return self._world.known_addresses()

    def promote(self) -> None:
        self._is_promoting = True
        super().promote()

    def tend_proposer(self) -> None:
        """A proposer that was killed, or started too early, is started again. Raises FixtureError
        if it ended for another reason."""
        proposer = self.proposer
        if proposer is None or proposer.alive:
            return
        if proposer.exit_code not in MAY_END_WITH and OUTVOTED not in proposer.log_tail():
            raise FixtureError(
                f"the proposer of {self.name} ended with {proposer.exit_code}\n"
                + proposer.log_tail()
            )
        self._world.outvoted += proposer.exit_code != -9 and OUTVOTED in proposer.log_tail()
        if self._is_promoting and self._is_standby():
            self.promote()
        else:
            self._is_promoting = False
            self.attach()

    def _is_standby(self) -> bool:
        return bool(self.postgres.execute("SELECT pg_is_in_recovery()")[0][0])


class MembersWorld:
    """A context manager: one member, and commits that wait for it, inside the block."""

    def __init__(
        self,
        root: Path,
        binaries: PostgresBinaries,
        rng: random.Random,
        template: Path | None = None,
    ) -> None:
        """`template`: the data folder to copy; without it initdb makes one."""
        self._root = root
        self._binaries = binaries
        self._template = template
        self._rng = rng
        self._stack = ExitStack()
        self._ids = count(1)
        self._commands = count(1)
        #: Those that run or may be started: members, new ones, and some that have left.
        self.keepers: dict[int, SafekeeperProcess] = {}
        self.members: list[int] = []
        self._frozen: list[SafekeeperProcess] = []
        #: Proposers of the primary that lost their term to `sk member`, and were started again.
        self.outvoted = 0

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    def _start(self) -> None:
        self.members = [self.new_keeper().id]
        postgres = Postgres(
            self._binaries,
            self._root / "pg-1",
            settings=SETTINGS,
            wal_seg_size=WAL_SEG_SIZE,
            template=self._template,
        )
        postgres.start()
        self.primary = self._machine("pg-1", postgres)
        self.primary.attach()
        self.wait_leading()
        conninfo = replica_conninfo(self.member_addresses)
        standby = make_standby(postgres, self._root / "pg-2", conninfo)
        self.standby = self._machine("pg-2", standby)
        standby.start()

    def _machine(self, name: str, postgres: Postgres) -> MemberMachine:
        machine = MemberMachine(name, postgres, self)
        self._stack.callback(machine.close)
        return machine

    # ---- safekeepers

    def new_keeper(self, port: int | None = None) -> SafekeeperProcess:
        """Started, ready and empty, with a new id."""
        id = next(self._ids)
        keeper = SafekeeperProcess(
            id, self._root / f"safekeeper-{id}", port=port, arguments=ARGUMENTS
        )
        self._stack.callback(keeper.kill)
        keeper.start()
        keeper.wait_ready()
        self.keepers[id] = keeper
        return keeper

    def wipe(self, id: int) -> None:
        """The machine dies, and its disk is lost."""
        self.keepers[id].kill()
        shutil.rmtree(self.keepers[id].data_dir)

    def forget(self, id: int) -> None:
        """A safekeeper that has left is switched off, and deleted."""
        keeper = self.keepers.pop(id)
        keeper.kill()
        shutil.rmtree(keeper.data_dir, ignore_errors=True)

    def freeze(self, id: int) -> None:
        """It answers nothing until thaw()."""
        self.keepers[id].pause()
        self._frozen.append(self.keepers[id])

    def thaw(self) -> None:
        while self._frozen:
            self._frozen.pop().resume()

    def revive(self) -> None:
        """Start all that were killed, except those whose disk is lost."""
        for keeper in self.keepers.values():
            if not keeper.alive and keeper.data_dir.exists():
                keeper.start()
                keeper.wait_ready()

    @property
    def member_addresses(self) -> list[str]:
        return [self.keepers[id].address for id in self.members]

    def known_addresses(self) -> list[str]:
        """The addresses for a process: all members, or one that runs, which may have left."""
        leading = [k.address for k in self.keepers.values() if k.alive and self._leads_on(k)]
        if self._rng.random() < 0.5 and leading:
            return [self._rng.choice(leading)]
        return self.member_addresses

    def _leads_on(self, keeper: SafekeeperProcess) -> bool:
        """Whether it leads to a present member. It does not if all members that it knows have been
        switched off since."""
        timeline = keeper.timeline()
        named = timeline["membership"]["members"] if timeline is not None else []
        return any(id in named for id in self.members if self.keepers[id].alive)

    # ---- sk member

    def begin(self, command: str, *arguments: object) -> ServiceProcess:
        """`sk member`, started."""
        number = next(self._commands)
        process = ServiceProcess(
            [
                *(*SK, "member", command),
                *("--safekeepers", ",".join(self.member_addresses)),
                *map(str, arguments),
            ],
            name=f"sk member {command}",
            log_path=self._root / f"member-{number}.log",
        )
        self._stack.callback(process.kill)
        process.start()
        return process

    def membership(self) -> dict[str, Any]:
        """The greatest membership of a running safekeeper."""
        shown = [
            timeline["membership"]
            for keeper in self.keepers.values()
            if keeper.alive and (timeline := keeper.timeline()) is not None
        ]

        def stamp(page: dict[str, Any]) -> tuple[int, str, int]:
            term, _, uuid = page["author"].partition("/")
            return int(term), uuid, page["generation"]

        return max(shown, key=stamp)

    # ---- the primary

    def wait_leading(self) -> None:
        def leads() -> bool:
            self.primary.tend_proposer()
            return self.primary.is_streaming

        wait_until(leads, READY_TIMEOUT, f"{self.primary.name} to be the primary of a quorum")

    def tend(self) -> None:
        """The actions of supervisors."""
        self.revive()
        if not self.primary.postgres.is_running:
            self.primary.postgres.start()
        self.primary.tend_proposer()

    def fail_over(self, loss: Loss) -> None:
        """The standby becomes the primary, the old primary a standby. Raises FixtureError."""
        old = self.primary
        assert old.proposer is not None
        match loss:
            case Loss.KILLED:
                old.postgres.crash()
            case Loss.MACHINE:
                old.proposer.kill()
                old.postgres.crash()
            case Loss.STOPPED:
                old.stop_postgres()
            case Loss.CUT_OFF:
                raise FixtureError("there are no wires to cut")
        self.standby.promote()
        self.primary, self.standby = self.standby, self.primary
        self.wait_leading()

    def rejoin(self) -> None:
        """The deposed primary, if it was started again, becomes a standby."""
        old = self.standby
        assert old.proposer is not None
        if old.proposer.alive:
            if not old.postgres.is_running:
                old.postgres.start()
            if old.proposer.wait(READY_TIMEOUT) != ExitCode.FENCED:
                raise FixtureError(f"{old.name} was not fenced\n{old.proposer.log_tail()}")
        old.postgres.crash()
        old.rejoin(self.primary)

    def point_standby(self) -> None:
        """As an operator does after a change: the standby reads from the members. By ALTER SYSTEM,
        as sk promote and sk rejoin do it, because their setting would take precedence."""
        statement = sql.SQL("ALTER SYSTEM SET primary_conninfo = {}").format(
            sql.Literal(replica_conninfo(self.member_addresses))
        )
        with self.standby.postgres.connect() as connection:
            connection.execute(statement)
            connection.execute("SELECT pg_reload_conf()")

    # ---- the end

    def check_logs(self) -> None:
        """The members have the log of the idle primary, in equal bytes. Raises FixtureError."""
        end_lsn = self.primary.postgres.flush_lsn()
        members = [self.keepers[id] for id in self.members]
        wait_until(
            lambda: all(flush_lsn(keeper) >= end_lsn for keeper in members),
            READY_TIMEOUT,
            f"all members to flush {end_lsn}",
        )
        copies = {keeper.name: keeper.data_dir for keeper in members}
        if len(copies) > 1:
            comparison = compare_wal(copies, end_lsn, WAL_SEG_SIZE)
            for name in copies:
                if comparison.range_of(name)[1] != end_lsn:
                    raise FixtureError(f"the log of {name} does not end at {end_lsn}")

    def check_no_traceback(self) -> None:
        """No process met an unexpected error. Raises FixtureError."""
        for path in self._root.glob("*.log"):
            if "Traceback" in path.read_text(errors="replace"):
                raise FixtureError(f"there is a traceback in {path}")
