"""The Postgres on which all setups are measured, and commits of it that wait."""

from __future__ import annotations

import select
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from psycopg import pq

from benchmarks.network import PRIMARY, Network
from quorum_wal.pg_fixtures.data_directory import Setting
from quorum_wal.pg_fixtures.errors import FixtureError
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_server.binaries import PostgresBinaries
from quorum_wal.pg_server.errors import DeadlineExceeded
from quorum_wal.pgwal.lsn import Lsn

# No checkpoint begins by itself during a measurement, and nothing else writes WAL.
SETTINGS: dict[str, Setting] = {
    "shared_buffers": "512MB",
    "max_wal_size": "32GB",
    "min_wal_size": "80MB",
    "checkpoint_timeout": "1d",
    "wal_compression": False,
    "autovacuum": False,
    "synchronous_commit": True,
    "wal_sender_timeout": "60s",
}
WAIT_TIMEOUT = 30.0  # seconds


class Primary:
    """A context manager. Its own statements never wait for a synchronous standby.

    `network` connects it with its copies.
    """

    def __init__(
        self, binaries: PostgresBinaries, root: Path, network: Network | None = None
    ) -> None:
        self.network = Network() if network is None else network
        self.postgres = NetworkedPostgres(
            binaries, root / "primary", self.network.subnet, settings=SETTINGS
        )

    def __enter__(self) -> Self:
        self.postgres.__enter__()
        try:
            self._connection = self.postgres.connect(options="-c synchronous_commit=local")
            self.execute("CREATE TABLE waiting_commit ()")
        except BaseException:
            self.postgres.crash()
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._connection.close()
        self.postgres.crash()

    def execute(self, statement: str, parameters: Any = None) -> list[Any]:
        """The rows of one statement, which commits locally."""
        cursor = self._connection.execute(statement, parameters)
        return cursor.fetchall() if cursor.description else []

    def wait_for_standbys(self, names: str) -> None:
        """From now on commits wait for these standbys, or for none if `names` is ""."""
        self.postgres.configure(synchronous_standby_names=names)

    def wait_streaming(self, count: int) -> None:
        """Returns when `count` standbys stream and have flushed all WAL. Nothing may write."""
        query = (
            "SELECT count(*) FROM pg_stat_replication"
            " WHERE state = 'streaming' AND flush_lsn >= pg_current_wal_flush_lsn()"
        )
        wait_until(
            lambda: self.execute(query) == [(count,)], WAIT_TIMEOUT, f"{count} standbys to stream"
        )

    def drop_slots(self) -> None:
        """Drops all slots, so that they hold no WAL. The walsenders must have ended, or must end
        soon."""
        wait_until(
            lambda: self.execute("SELECT 1 FROM pg_stat_replication") == [],
            WAIT_TIMEOUT,
            "the walsenders to end",
        )
        self.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")

    def remote_dsn(self, **extra: Any) -> str:
        """The connection string for clients at the other end of the network."""
        return self.postgres.dsn(host=self.network.address(PRIMARY), **extra)

    def walsender_pids(self) -> list[int]:
        return [pid for (pid,) in self.execute("SELECT pid FROM pg_stat_replication")]

    def insert_lsn(self) -> Lsn:
        """The position of the next record."""
        ((lsn,),) = self.execute("SELECT pg_current_wal_insert_lsn()::text")
        return Lsn.parse(lsn)

    @contextmanager
    def waiting_commit(self) -> Iterator[WaitingCommit]:
        """A commit that waits now. wait_for_standbys() must have named standbys that do not run.

        Until all backends have the new setting, a commit may still return at once; then another one
        is tried. So inside of this block commits are known to wait.
        """
        while True:
            with closing(WaitingCommit(self.postgres)) as commit:
                if self._is_waiting(commit):
                    yield commit
                    return

    def _is_waiting(self, commit: WaitingCommit) -> bool:
        """True once it waits, False if it has returned."""
        query = "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event = 'SyncRep'"
        state = wait_until(
            lambda: (
                (self.execute(query, (commit.pid,)) and "waits")
                or (commit.has_returned() and "returned")
            ),
            WAIT_TIMEOUT,
            "a commit to wait for its standbys",
        )
        return state == "waits"


class NetworkedPostgres(Postgres):
    """Also accepts clients from `subnet`, unless that is "". Has all options of Postgres."""

    def __init__(
        self, binaries: PostgresBinaries, data_dir: Path, subnet: str, **options: Any
    ) -> None:
        super().__init__(binaries, data_dir, **options)
        self._subnet = subnet
        if subnet:
            self._server.program.append("--listen_addresses=*")  # the last option counts

    def init(self, *options: str) -> None:
        super().init(*options)
        if self._subnet:
            with open(self.data_dir / "pg_hba.conf", "a") as rules:
                rules.writelines(
                    f"host {databases} all {self._subnet} trust\n"
                    for databases in ("all", "replication")
                )


class WaitingCommit:
    """An INSERT that was sent and is not waited for."""

    def __init__(self, postgres: Postgres) -> None:
        self._connection = postgres.connect()
        self._pgconn = self._connection.pgconn
        self.pid = self._connection.info.backend_pid
        self._pgconn.send_query(b"INSERT INTO waiting_commit DEFAULT VALUES")

    def close(self) -> None:
        self._connection.close()

    def has_returned(self) -> bool:
        """Raises FixtureError if the INSERT failed."""
        self._pgconn.consume_input()
        if self._pgconn.is_busy():
            return False
        result = self._pgconn.get_result()
        if result is not None and result.status != pq.ExecStatus.COMMAND_OK:
            raise FixtureError(f"commit failed: {self._pgconn.get_error_message()}")
        return True

    def wait_returned(self, timeout: float) -> None:
        """Returns at the moment at which the commit returns. Raises DeadlineExceeded."""
        while not self.has_returned():
            if not select.select([self._pgconn.socket], [], [], timeout)[0]:
                raise DeadlineExceeded(f"a commit has waited {timeout:g} s for its standbys")
