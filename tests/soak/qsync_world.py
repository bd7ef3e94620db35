"""`QsyncWorld`: the world of the soak, whose proposers coordinate transactions of qsync.

Without `has_names` its primaries have no synchronous_standby_names: neither `sk attach` nor `sk
promote` sets them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from psycopg.conninfo import make_conninfo

from quorum_wal.pg_fixtures.data_directory import Setting
from quorum_wal.pg_fixtures.errors import FixtureError
from quorum_wal.pg_fixtures.ports import free_port
from quorum_wal.pg_fixtures.process_table import session_members
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_server.binaries import PostgresBinaries
from quorum_wal.pg_server.errors import DeadlineExceeded
from quorum_wal.qsync.gid import Gid

from .machine import SETTINGS
from .world import READY_TIMEOUT, World

ORPHAN_GRACE_SECONDS = 1.0
NEVER_SECONDS = 100_000.0
#: Enough for the transactions that wait while the quorum is lost: few clients, each with some at a
#: time, and orphans.
ROOM = 200
#: The steps of `sk promote`, as its log names them; it may be killed when it has begun one.
PROMOTION_STEPS = ("elect", "reserve", "close", "promote", "attach")
#: For primaries whose commits wait for the quorum.
CONFIGURING_STEPS = ("configure", "settle")


class QsyncWorld(World):
    """Each machine has its coordinator's port, whether it leads or not."""

    has_slow_disks = False
    settings: ClassVar[Mapping[str, Setting]] = {
        **SETTINGS,
        "max_prepared_transactions": ROOM,
        "wal_level": "logical",
    }

    def __init__(
        self,
        root: Path,
        binaries: PostgresBinaries,
        template: Path | None = None,
        *,
        has_names: bool,
        plant: str = "",
    ) -> None:
        super().__init__(root, binaries, template)
        self.configures = has_names or plant == "names"
        self._grace_seconds = NEVER_SECONDS if plant == "janitor" else ORPHAN_GRACE_SECONDS
        self._ports: dict[str, int] = {}

    def proposer_arguments(self, machine: str) -> Sequence[str]:
        port = self._ports.setdefault(machine, free_port())
        return (
            *("--qsync", f"127.0.0.1:{port}"),
            *("--qsync-orphan-grace", str(self._grace_seconds)),
            *("--qsync-age-max", "20"),
        )

    @property
    def coordinator(self) -> str:
        """As a client knows it: one of the two leads."""
        return ",".join(f"127.0.0.1:{port}" for port in self._ports.values())

    def clients_dsn(self, session: str) -> str:
        """The server for such sessions, as libpq finds it: read-write, primary (which may be closed
        to writes), standby."""
        ports = sorted((self.primary.postgres.port, self.standby.postgres.port))
        return make_conninfo(
            self.primary.postgres.dsn(),
            host="127.0.0.1,127.0.0.1",
            port=",".join(map(str, ports)),
            target_session_attrs=session,
            connect_timeout="3",
        )

    def limbo(self) -> set[str]:
        """Our gids that are prepared on the primary."""
        rows = self.primary.postgres.execute("SELECT gid FROM pg_prepared_xacts")
        return {gid for (gid,) in rows if Gid.is_ours(gid)}

    # ---- failovers, and faults with two parts

    def pause_safekeeper(self, index: int) -> None:
        """Raises FixtureError, with the state of its threads, if it does not stop."""
        safekeeper = self.safekeepers[index]
        try:
            safekeeper.pause()
        except DeadlineExceeded as error:
            members = session_members(safekeeper.pid)
            threads = [
                f"{entry.pid}/{thread.name} {(thread / 'stat').read_text().split(')')[1][:3]} "
                f"{(thread / 'wchan').read_text()} {(thread / 'comm').read_text().strip()}"
                for entry in members
                for thread in Path(f"/proc/{entry.pid}/task").iterdir()
            ]
            raise FixtureError("\n".join((str(error), *threads))) from error

    def restart_proposer(self) -> None:
        """Restart one that was killed."""
        proposer = self.primary.proposer
        assert proposer is not None
        if proposer.exit_code == -9:
            proposer.start()

    def promote_broken_off(self, step: str) -> bool:
        """`sk promote`, killed when it has begun `step`, and run again. False: it did not reach the
        step, and the standby is promoted."""
        self.standby.promote()
        promotion = self.standby.proposer
        assert promotion is not None
        is_begun = f"step={step}"
        wait_until(
            lambda: is_begun in promotion.log_text() or self.standby.is_streaming,
            READY_TIMEOUT,
            f"sk promote to {step}",
        )
        is_broken_off = is_begun in promotion.log_text()
        if is_broken_off:
            promotion.kill()
            promotion.start()
        self._wait_leading(self.standby)
        self.primary, self.standby = self.standby, self.primary
        return is_broken_off

    def names(self) -> str:
        """The synchronous_standby_names of the primary."""
        ((names,),) = self.primary.postgres.execute("SHOW synchronous_standby_names")
        return str(names)
