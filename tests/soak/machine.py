"""`Machine`: one database host: a Postgres, its wires to the safekeepers, maybe a proposer.

Its proposer and its standby's WAL receiver reach the safekeepers only through these wires, so that
cutting them isolates the host.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from quorum_wal.cli.output import ExitCode
from quorum_wal.pg_fixtures.data_directory import Setting
from quorum_wal.pg_fixtures.errors import FixtureError
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.process_table import family, signal_entry
from quorum_wal.pg_fixtures.processes import SK, ServiceProcess
from quorum_wal.pg_fixtures.proposer import ProposerProcess
from quorum_wal.pg_fixtures.proxy import TcpProxy
from quorum_wal.pg_server.errors import DeadlineExceeded

STOP_TIMEOUT = 10.0  # seconds; a fast shutdown waits for the standby, which may have failed
REJOIN_TIMEOUT = 120.0
SETTINGS: dict[str, Setting] = {
    # pg_rewind needs the hints, and the WAL since the checkpoint before the fork.
    "wal_log_hints": True,
    "wal_keep_size": "64MB",
    "max_wal_size": "64MB",
    "checkpoint_timeout": "30s",
    # A stalled wire and new WAL are noticed soon.
    "wal_receiver_timeout": "5s",
    "wal_retrieve_retry_interval": "100ms",
    # To compile a check of all rows costs more than to run it.
    "jit": False,
}

_numbers = count(1)


class Machine:
    """`proposer` is the process that was attached last; None on a standby. `arguments` are for each
    of its proposers; `configures`: `sk attach` makes commits wait for the quorum."""

    def __init__(
        self,
        name: str,
        postgres: Postgres,
        wires: Sequence[TcpProxy],
        arguments: Sequence[str] = (),
        *,
        configures: bool = True,
    ) -> None:
        self.name = name
        self.postgres = postgres
        self.wires = wires
        self._arguments = arguments
        self._configures = configures
        self.proposer: ProposerProcess | None = None

    @property
    def addresses(self) -> list[str]:
        """The safekeepers, as this machine reaches them."""
        return [wire.address for wire in self.wires]

    # ---- its proposer

    def attach(self) -> None:
        """`sk attach`, as a supervisor would start it."""
        self._propose(promotes=False)

    def promote(self) -> None:
        """`sk promote`: this standby becomes the primary; the process stays as its proposer."""
        self._propose(promotes=True)

    def _propose(self, *, promotes: bool) -> None:
        self.proposer = self._new_proposer(promotes=promotes)
        self.proposer.start()

    def _new_proposer(self, *, promotes: bool) -> ProposerProcess:
        no_configure = ["--no-configure"] if promotes and not self._configures else []
        return ProposerProcess(
            self.postgres.dsn(),
            self.addresses,
            log_path=self._log_path("promote" if promotes else "attach"),
            configure=self._configures and not promotes,
            promotes=promotes,
            arguments=(*self._arguments, *no_configure),
        )

    def tend_proposer(self) -> None:
        """A proposer that started before the other processes is started again. Raises FixtureError
        if it ended for another reason: no other proposer may take its term."""
        proposer = self.proposer
        if proposer is None or proposer.alive:
            return
        if proposer.exit_code != ExitCode.UNREACHABLE:
            raise FixtureError(
                f"the proposer of {self.name} ended with {proposer.exit_code}\n"
                + proposer.log_tail()
            )
        proposer.start()

    @property
    def is_streaming(self) -> bool:
        """Its proposer leads a quorum."""
        return self.proposer is not None and self.proposer.state == "streaming"

    # ---- its Postgres

    def pause_postgres(self) -> None:
        """SIGSTOP: the postmaster first, so that it starts no process meanwhile."""
        self._signal_postgres(signal.SIGSTOP)

    def resume_postgres(self) -> None:
        self._signal_postgres(signal.SIGCONT)

    def _signal_postgres(self, number: signal.Signals) -> None:
        for entry in family(self.postgres.pid):
            signal_entry(entry, number)

    def stop_postgres(self) -> None:
        """A fast shutdown; a crash if a process that it waits for has failed."""
        try:
            self.postgres.stop("fast", STOP_TIMEOUT)
        except DeadlineExceeded:
            self.postgres.crash()

    def rejoin(self, new_primary: Machine) -> None:
        """`sk rejoin`, and a start: the deposed primary becomes a standby. Raises FixtureError."""
        assert not self.postgres.is_running
        rejoin = ServiceProcess(  # in its own session: Ctrl-C must not reach pg_rewind
            [
                *(*SK, "rejoin", "--old-primary", self.postgres.data_dir),
                *("--new-primary", new_primary.postgres.dsn()),
                *("--safekeepers", ",".join(self.addresses)),
                *("--replica-conninfo", "user=postgres connect_timeout=5"),
            ],
            name="sk rejoin",
            log_path=self._log_path("rejoin"),
        )
        with rejoin:
            exit_code = rejoin.wait(REJOIN_TIMEOUT)
        if exit_code != 0:
            raise FixtureError(
                f"sk rejoin of {self.name} ended with {exit_code}\n{rejoin.log_tail()}"
            )
        self.proposer = None
        self.postgres.start()

    def close(self) -> None:
        """Kill -9 of all its processes."""
        if self.proposer is not None:
            self.proposer.kill()
        self.postgres.crash()

    def _log_path(self, command: str) -> Path:
        return self.postgres.data_dir.with_name(f"{self.name}-{next(_numbers)}-{command}.log")
