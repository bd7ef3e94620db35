"""A cluster with a coordinator, and clients without our package: plain psycopg."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.data_directory import Setting
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.qsync.gid import Gid, Policy, uuid7
from quorum_wal.walproposer.primary.server_facts import START_US

TIMEOUT = 60.0
SETTINGS: dict[str, Setting] = {"max_prepared_transactions": 20, "wal_level": "logical"}
#: The roles of sessions that finish transactions themselves.
LOCAL = "-c synchronous_commit=local"
GRACE_SECONDS = 0.5
INSERT = "INSERT INTO accounts VALUES ('somebody', 1)"


def qsync_arguments(port: int, *more: str) -> list[str]:
    return ["--qsync", f"127.0.0.1:{port}", "--qsync-orphan-grace", str(GRACE_SECONDS), *more]


@dataclass(frozen=True, slots=True)
class Prepared:
    """`lsn`: an upper bound of the end of its PREPARE."""

    gid: str
    lsn: Lsn


class QsyncWorld:
    """`port`: the coordinator's."""

    def __init__(self, cluster: QuorumCluster, port: int) -> None:
        self.cluster = cluster
        self.port = port

    @property
    def postgres(self) -> Postgres:
        return self.cluster.postgres

    # ---- the client's side

    def prepare(
        self,
        statement: str = INSERT,
        *,
        policy: Policy = Policy.DETACH,
        seconds: float = 5.0,
        database: str = "postgres",
    ) -> Prepared:
        """Run `statement` and PREPARE in a new session, which ends."""
        with self.postgres.connect(dbname=database) as connection:
            connection.execute("BEGIN")
            connection.execute("SET LOCAL synchronous_commit = local")
            connection.execute(statement)
            row = connection.execute(
                f"SELECT pg_current_xact_id()::text, pg_current_wal_insert_lsn()::text, {START_US}"
            ).fetchone()
            assert row is not None
            now_ms = time.time_ns() // 1_000_000
            gid = str(
                Gid(
                    policy,
                    now_ms + round(seconds * 1000),
                    self.tli(),
                    int(Lsn.parse(row[1])),
                    int(row[0]),
                    int(row[2]),
                    uuid7(now_ms, secrets.token_bytes(10)),
                )
            )
            tag = connection.execute(_of("PREPARE TRANSACTION {}", gid)).statusmessage
            assert tag == "PREPARE TRANSACTION"
            row = connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
            assert row is not None
        return Prepared(gid, Lsn.parse(row[0]))

    def commit(self, prepared: Prepared, database: str = "postgres") -> None:
        self.postgres.execute(
            _of("COMMIT PREPARED {}", prepared.gid), options=LOCAL, dbname=database
        )

    @contextmanager
    def connected(self) -> Iterator[psycopg.Connection[Any]]:
        """A connection to the coordinator."""
        with psycopg.connect(
            f"host=127.0.0.1 port={self.port} user=client dbname=qsync sslmode=disable",
            autocommit=True,
        ) as connection:
            yield connection

    def ask(self, text: str) -> tuple[Any, ...]:
        """Send one verb on a new connection; returns the row of the answer."""
        with self.connected() as connection:
            row = connection.execute(text).fetchone()
        assert row is not None
        return row

    def wait(self, prepared: Prepared, seconds: float = 30.0) -> str:
        """Wait for the verdict. The client then disconnects."""
        timeout_ms = round(seconds * 1000)
        return str(
            self.ask(f"WAIT_LSN {prepared.lsn} TIMEOUT {timeout_ms} GID '{prepared.gid}'")[0]
        )

    def outcome(self, prepared: Prepared) -> str:
        return str(self.ask(f"OUTCOME '{prepared.gid}' LSN {prepared.lsn}")[0])

    # ---- visible state

    def tli(self) -> int:
        ((name,),) = self.postgres.execute("SELECT pg_walfile_name(pg_current_wal_lsn())")
        return int(name[:8], 16)

    def limbo(self) -> set[str]:
        return {gid for (gid,) in self.postgres.execute("SELECT gid FROM pg_prepared_xacts")}

    def count(self, table: str = "accounts", database: str = "postgres") -> int:
        ((count,),) = self.postgres.execute(f"SELECT count(*) FROM {table}", dbname=database)
        return int(count)

    def status(self) -> dict[str, Any]:
        """The status of the coordinator, from the proposer's page."""
        status = self.cluster.proposer.status()["qsync"]
        return dict(status)

    def wait_deciding(self) -> None:
        self.cluster.proposer.wait_until(
            lambda: self.status()["refuses"] is None, TIMEOUT, "the coordinator to admit"
        )

    def wait_finished(self, prepared: Prepared) -> None:
        wait_until(lambda: prepared.gid not in self.limbo(), TIMEOUT, f"{prepared.gid} to end")

    # ---- faults

    def lose_quorum(self) -> None:
        for safekeeper in self.cluster.safekeepers[1:]:
            safekeeper.pause()

    def find_quorum(self) -> None:
        for safekeeper in self.cluster.safekeepers[1:]:
            safekeeper.resume()


def _of(statement: str, gid: str) -> sql.Composed:
    return sql.SQL(statement).format(sql.Literal(gid))
