"""What a commit waits for: nothing, a quorum of `pg_receivewal` (the peer), or our quorum.

The peer is what a user would use instead: three stock receivers over TCP, each with a slot, of
which any two must have flushed. It gives only durability: no election, no recovery and no fencing,
and replicas cannot read its WAL. So it is the cheapest alternative worth comparing.
"""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.network import COPIES, PROPOSER
from benchmarks.primary import Primary
from quorum_wal.pg_fixtures.errors import FixtureError, ProcessEnded
from quorum_wal.pg_fixtures.processes import SK, ServiceProcess
from quorum_wal.pg_fixtures.proposer import ProposerProcess
from quorum_wal.pg_fixtures.safekeeper import SafekeeperProcess
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_server.errors import PgServerError
from quorum_wal.pg_server.program import run_program

OURS, OTHER = "ours", "other"
PEER, CONTROL, LOCAL = "peer", "peer again", "local only"
ATTACH_TIMEOUT = 60.0  # seconds
INTERPRETED_ENV = {"QUORUM_WAL_INTERPRETED": "1"}


class Setup(ABC):
    """`standby_names` are for synchronous_standby_names. It is started and stopped many times."""

    standby_names = ""

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def start(self, primary: Primary, directory: Path) -> None:
        """Starts everything with empty data in `directory`, without waiting for the primary."""

    @abstractmethod
    def wait_ready(self, primary: Primary) -> None:
        """Returns when every copy follows, not only a quorum. Commits already proceed."""

    @property
    @abstractmethod
    def processes(self) -> list[ServiceProcess]:
        """All running processes; they are killed at the end, and their usage is measured."""


class LocalOnly(Setup):
    """The reference: a commit returns after the primary's own flush."""

    def start(self, primary: Primary, directory: Path) -> None:
        """Nothing to start."""

    def wait_ready(self, primary: Primary) -> None:
        """Nothing to wait for."""

    @property
    def processes(self) -> list[ServiceProcess]:
        return []


class ReceiveWalQuorum(Setup):
    """Three `pg_receivewal --synchronous` with slots."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._receivers: list[ServiceProcess] = []
        self.standby_names = f"ANY 2 ({', '.join(_receiver_names())})"

    def start(self, primary: Primary, directory: Path) -> None:
        self._receivers = [self._receiver(primary, directory, name) for name in _receiver_names()]
        for receiver, node in zip(self._receivers, COPIES, strict=True):
            primary.network.place(receiver, node)
            receiver.start()

    def _receiver(self, primary: Primary, directory: Path, name: str) -> ServiceProcess:
        # Without reserving WAL: it begins at the current segment, as ours does.
        primary.execute("SELECT pg_create_physical_replication_slot(%s)", (name,))
        target = directory / name
        target.mkdir()
        return ServiceProcess(
            [
                primary.postgres.binaries.program("pg_receivewal"),
                f"--dbname={primary.remote_dsn(application_name=name)}",
                f"--slot={name}",
                f"--directory={target}",
                "--synchronous",
                "--no-loop",
            ],
            name=f"pg_receivewal {name}",
            log_path=directory / f"{name}.log",
        )

    def wait_ready(self, primary: Primary) -> None:
        primary.wait_streaming(len(COPIES))

    @property
    def processes(self) -> list[ServiceProcess]:
        return self._receivers


class SafekeeperQuorum(Setup):
    """A proposer and three safekeepers, of this checkout or of the one at `checkout`.

    With `interpreted` they run without the compiled module.
    """

    standby_names = "walproposer"

    def __init__(
        self,
        name: str,
        checkout: Path | None = None,
        arguments: Sequence[str] = (),
        *,
        interpreted: bool = False,
        proposer_node: str = PROPOSER,
    ) -> None:
        """`arguments` are added to the command line of the safekeepers."""
        super().__init__(name)
        self._proposer_node = proposer_node
        self.env = checkout_env(checkout) | (INTERPRETED_ENV if interpreted else {})
        self._arguments = arguments
        self.safekeepers: list[SafekeeperProcess] = []
        self.proposer: ProposerProcess | None = None

    def start(self, primary: Primary, directory: Path) -> None:
        network = primary.network
        self.safekeepers = [
            SafekeeperProcess(
                number,
                directory / f"safekeeper-{number}",
                arguments=[*self._arguments, *network.service_options],
                env=self.env,
            )
            for number in range(1, len(COPIES) + 1)
        ]
        for safekeeper, node in zip(self.safekeepers, COPIES, strict=True):
            network.place(safekeeper, node)
        self.proposer = self.new_proposer(primary, directory)
        for safekeeper in self.safekeepers:
            safekeeper.start()
        for safekeeper in self.safekeepers:
            safekeeper.wait_ready()
        # Commits already wait, so a proposer without a timeline would not create one.
        members = ",".join(safekeeper.address for safekeeper in self.safekeepers)
        create = ["timeline", "create", "--primary", primary.postgres.dsn()]
        run_program([*SK, *create, "--safekeepers", members], env=self.env)
        self.proposer.start()

    def new_proposer(
        self, primary: Primary, directory: Path, arguments: Sequence[str] = ()
    ) -> ProposerProcess:
        """Not started."""
        proposer = ProposerProcess(
            primary.remote_dsn(),
            [safekeeper.address for safekeeper in self.safekeepers],
            log_path=directory / "proposer.log",
            arguments=[*primary.network.service_options, *arguments],
            env=self.env,
        )
        primary.network.place(proposer, self._proposer_node)
        return proposer

    def wait_ready(self, primary: Primary) -> None:
        proposer = self.proposer
        assert proposer is not None

        def all_follow() -> bool:
            return all(
                peer["connected"] and not peer["lag_bytes"]
                for peer in proposer.status()["safekeepers"]
            )

        wait_until(all_follow, ATTACH_TIMEOUT, "all safekeepers to follow")

    @property
    def processes(self) -> list[ServiceProcess]:
        return [*self.safekeepers, *([self.proposer] if self.proposer is not None else [])]


def checkouts(against: Path | None) -> dict[str, Path | None]:
    """This checkout, and the one to compare it with."""
    return {OURS: None} if against is None else {OURS: None, OTHER: against}


def checkout_env(checkout: Path | None) -> dict[str, str]:
    """The environment in which `python -m quorum_wal.cli.main` runs the code of another checkout.

    Byte code is cached whatever the caller's environment says, as in every installation. Without it
    each start compiles all modules.
    """
    env = {"PYTHONDONTWRITEBYTECODE": ""}
    if checkout is not None:
        env |= {"PYTHONPATH": str(checkout.resolve()), "PYTHONSAFEPATH": "1"}
    return env


@contextmanager
def attached(primary: Primary, setup: Setup, directory: Path) -> Iterator[None]:
    """Inside the block commits wait only for `setup`, which starts with empty data.

    On entry, a commit has waited and has returned after the setup was started. Raises FixtureError,
    with the logs of the processes, if the setup fails, also during the block.
    """
    directory.mkdir()
    primary.wait_for_standbys(setup.standby_names)
    try:
        with ExitStack() as stack:
            commit = stack.enter_context(primary.waiting_commit()) if setup.standby_names else None
            setup.start(primary, directory)
            if commit is not None:
                commit.wait_returned(ATTACH_TIMEOUT)
        setup.wait_ready(primary)
        yield
        _check_alive(_all_processes(primary, setup))
    except PgServerError as error:
        processes = _all_processes(primary, setup)
        logs = [
            f"{process.name}{'' if process.alive else ' (has ended)'}: {process.log_tail()}"
            for process in processes
        ]
        raise FixtureError("\n".join([f"{setup.name}: {error}", *logs])) from error
    finally:
        primary.wait_for_standbys("")
        for process in setup.processes:
            process.kill()
        primary.drop_slots()
        shutil.rmtree(directory)
        os.sync()  # otherwise the next measurement would include it


def _all_processes(primary: Primary, setup: Setup) -> list[ServiceProcess]:
    return [*setup.processes, *primary.network.processes]


def _check_alive(processes: Sequence[ServiceProcess]) -> None:
    """A process that ended during the measurement makes it invalid. Raises ProcessEnded."""
    for process in processes:
        if not process.alive:
            raise ProcessEnded(f"{process.name} ended with exit code {process.exit_code}")


def _receiver_names() -> tuple[str, ...]:
    return ("a", "b", "c")
