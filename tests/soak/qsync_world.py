"""`QsyncWorld`: the world of the soak, whose proposers coordinate transactions of qsync."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from psycopg.conninfo import make_conninfo

from pg_fixtures.data_directory import Setting
from pg_fixtures.ports import free_port
from pg_fixtures.waiting import wait_until
from qsync.gid import Gid

from .machine import SETTINGS
from .world import READY_TIMEOUT, World

ORPHAN_GRACE_SECONDS = 1.0
#: Room for what waits while the quorum is lost: few clients, each with one at a time, and orphans.
ROOM = 200


class QsyncWorld(World):
    """Each machine has its coordinator's port, whoever leads."""

    settings: ClassVar[Mapping[str, Setting]] = {
        **SETTINGS,
        "max_prepared_transactions": ROOM,
        "wal_level": "logical",
    }

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._ports: dict[str, int] = {}

    def proposer_arguments(self, machine: str) -> Sequence[str]:
        port = self._ports.setdefault(machine, free_port())
        return (
            *("--qsync", f"127.0.0.1:{port}"),
            *("--qsync-orphan-grace", str(ORPHAN_GRACE_SECONDS)),
            *("--qsync-age-max", "20"),
        )

    @property
    def coordinator(self) -> str:
        """As a client knows it: of two one leads."""
        return ",".join(f"127.0.0.1:{port}" for port in self._ports.values())

    @property
    def clients_dsn(self) -> str:
        """Of the server that takes writes."""
        ports = sorted((self.primary.postgres.port, self.standby.postgres.port))
        return make_conninfo(
            self.primary.postgres.dsn(),
            host="127.0.0.1,127.0.0.1",
            port=",".join(map(str, ports)),
            target_session_attrs="read-write",
            connect_timeout="5",
        )

    def limbo(self) -> set[str]:
        """Gids of ours that are prepared on the primary."""
        rows = self.primary.postgres.execute("SELECT gid FROM pg_prepared_xacts")
        return {gid for (gid,) in rows if Gid.is_ours(gid)}

    # ---- faults that take two

    def restart_proposer(self) -> None:
        """Of one that was killed."""
        proposer = self.primary.proposer
        assert proposer is not None
        if proposer.exit_code == -9:
            proposer.start()

    def promote_broken_off(self, seconds: float) -> None:
        """`sk promote`, killed after so long and run again."""
        self.standby.promote()
        promotion = self.standby.proposer
        assert promotion is not None
        until = time.monotonic() + seconds
        wait_until(
            lambda: time.monotonic() > until or not promotion.alive, READY_TIMEOUT, "its death"
        )
        promotion.kill()
        promotion.start()
        self._wait_leading(self.standby)
        self.primary, self.standby = self.standby, self.primary
