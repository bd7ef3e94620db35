"""`World`: three safekeepers and two machines, one the primary, one the standby; and failovers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from quorum_wal.cli.output import ExitCode
from quorum_wal.pg_fixtures.cluster import flush_lsn
from quorum_wal.pg_fixtures.data_directory import Setting
from quorum_wal.pg_fixtures.errors import FixtureError
from quorum_wal.pg_fixtures.failing_disk import FailingDisk
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.proxy import TcpProxy
from quorum_wal.pg_fixtures.safekeeper import SafekeeperProcess
from quorum_wal.pg_fixtures.small_disk import FILLER_NAME, SmallDisk
from quorum_wal.pg_fixtures.standby import make_standby, replica_conninfo
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_fixtures.wal_comparison import compare_wal
from quorum_wal.pg_server.binaries import PostgresBinaries
from quorum_wal.pg_server.errors import Unavailable

from .machine import SETTINGS, Machine

WAL_SEG_SIZE = 1 << 20  # so that many segment ends are crossed
SAFEKEEPERS = 3
DISK_BYTES = 512 << 20
#: Of a safekeeper: it keeps the WAL that a rejoined standby lacks, two checkpoints (max_wal_size)
#: and the WAL written while it starts; retention runs every few seconds.
ARGUMENTS = ("--wal-keep-size", "192MB", "--scrub-rate", "64", "--scrub-period", "0.002")
READY_TIMEOUT = 60.0  # seconds; each wait takes a few on an idle machine


class Loss(Enum):
    """How the primary is lost."""

    KILLED = "kill -9 of Postgres, its proposer lives on"
    MACHINE = "kill -9 of Postgres and its proposer"
    STOPPED = "Postgres stops in good order"
    CUT_OFF = "alive, cut off from the safekeepers"


class World:
    """A context manager: commits wait for the quorum inside the block; all processes are killed at
    its end."""

    settings: ClassVar[Mapping[str, Setting]] = SETTINGS
    #: Of the safekeepers, which are then executed instead of forked: that costs more.
    has_slow_disks: ClassVar[bool] = True

    def __init__(
        self, root: Path, binaries: PostgresBinaries, template: Path | None = None
    ) -> None:
        """`template`: the data folder to copy; without it initdb makes one."""
        self._root = root
        self._binaries = binaries
        self._template = template
        self._stack = ExitStack()
        self.disks: list[SmallDisk] = []
        self.disks_reason = ""  # the reason for missing ones
        self.failing_disks: list[FailingDisk] = []
        self.safekeepers: list[SafekeeperProcess] = []
        self.disk_bytes_max = 0
        self.configures = True  # commits wait for the quorum

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
        folders = [self._root / f"safekeeper-{id}" for id in range(1, SAFEKEEPERS + 1)]
        try:
            for folder in folders:
                self.disks.append(self._stack.enter_context(SmallDisk(folder, DISK_BYTES)))
        except Unavailable as error:
            self.disks_reason = str(error).splitlines()[0]
        for id, folder in enumerate(folders, 1):
            env: Mapping[str, str] = {}
            if self.has_slow_disks:
                failing_disk = FailingDisk(self._root / f"slowness-{id}", only_below=folder)
                self.failing_disks.append(failing_disk)
                env = failing_disk.env
            safekeeper = SafekeeperProcess(id, folder, arguments=ARGUMENTS, env=env)
            self.safekeepers.append(self._stack.enter_context(safekeeper))
        postgres = Postgres(
            self._binaries,
            self._root / "pg-1",
            settings=self.settings,
            wal_seg_size=WAL_SEG_SIZE,
            template=self._template,
        )
        postgres.start()
        self.primary = self._machine("pg-1", postgres)
        self.primary.attach()
        self._wait_leading(self.primary)
        wires = self._wires()
        conninfo = replica_conninfo([wire.address for wire in wires])
        standby = make_standby(postgres, self._root / "pg-2", conninfo)
        self.standby = self._machine("pg-2", standby, wires)
        standby.start()

    def _wires(self) -> list[TcpProxy]:
        targets = [safekeeper.address.split(":") for safekeeper in self.safekeepers]
        return [self._stack.enter_context(TcpProxy(host, int(port))) for host, port in targets]

    def _machine(
        self, name: str, postgres: Postgres, wires: list[TcpProxy] | None = None
    ) -> Machine:
        wires = self._wires() if wires is None else wires
        machine = Machine(
            name, postgres, wires, self.proposer_arguments(name), configures=self.configures
        )
        self._stack.callback(machine.close)
        return machine

    def proposer_arguments(self, machine: str) -> Sequence[str]:
        """For each proposer of the machine of this name."""
        return ()

    # ---- supervision

    def tend(self) -> None:
        """The actions of a supervisor. Raises FixtureError if a process ended that must not."""
        self.primary.tend_proposer()
        for safekeeper in self.safekeepers:
            if safekeeper.exit_code not in (None, 0, -9):  # a fault ends it with one of these
                raise FixtureError(f"{safekeeper.name} has ended\n{safekeeper.log_tail()}")

    def _wait_leading(self, machine: Machine) -> None:
        def leads() -> bool:
            machine.tend_proposer()
            return machine.is_streaming

        wait_until(leads, READY_TIMEOUT, f"{machine.name} to be the primary of a quorum")

    # ---- failover

    def lose_primary(self, loss: Loss) -> None:
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
                for wire in old.wires:
                    wire.cut()

    def promote(self) -> None:
        """The standby becomes the primary; the machines have changed places. Raises
        FixtureError."""
        self.standby.promote()
        self._wait_leading(self.standby)
        self.primary, self.standby = self.standby, self.primary

    def depose(self) -> None:
        """The old primary is started again and is fenced; then it is stopped."""
        old = self.standby
        for wire in old.wires:
            wire.restore()
        proposer = old.proposer
        assert proposer is not None
        if proposer.alive:
            if not old.postgres.is_running:
                old.postgres.start()
            if proposer.wait(READY_TIMEOUT) != ExitCode.FENCED:
                raise FixtureError(f"{old.name} was not fenced\n{proposer.log_tail()}")
        old.postgres.crash()

    def rejoin(self) -> None:
        """The old primary becomes the new standby. Raises FixtureError."""
        self.standby.rejoin(self.primary)
        self.watch_disk()

    # ---- checks

    def watch_disk(self) -> None:
        self.disk_bytes_max = max(self.disk_bytes_max, bytes_below(self._root))

    def check_logs(self) -> None:
        """All safekeepers have the log of the idle primary, in equal bytes. Raises FixtureError."""
        end_lsn = self.primary.postgres.flush_lsn()
        wait_until(
            lambda: all(flush_lsn(s) >= end_lsn for s in self.safekeepers),
            READY_TIMEOUT,
            f"all safekeepers to flush {end_lsn}",
        )
        copies = {safekeeper.name: safekeeper.data_dir for safekeeper in self.safekeepers}
        comparison = compare_wal(copies, end_lsn, WAL_SEG_SIZE)
        for name in copies:
            begin_lsn, compared_lsn = comparison.range_of(name)
            if not begin_lsn < compared_lsn == end_lsn:
                raise FixtureError(f"the log of {name} does not end at {end_lsn}")

    def check_no_traceback(self) -> None:
        """No process met an unexpected error. Raises FixtureError."""
        for path in self._root.glob("*.log"):
            if "Traceback" in path.read_text(errors="replace"):
                raise FixtureError(f"there is a traceback in {path}")


def bytes_below(root: Path) -> int:
    """The size of all files, except those that fill a disk."""
    total = 0
    for folder, _, names in os.walk(root):
        for name in names:
            if name != FILLER_NAME:
                try:
                    total += os.lstat(os.path.join(folder, name)).st_blocks * 512
                except FileNotFoundError:
                    pass  # a segment that was removed meanwhile
    return total
