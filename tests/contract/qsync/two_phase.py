"""Prepared transactions by plain SQL, and what each statement waits for."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread
from typing import Any

import psycopg
from psycopg import sql

from quorum_wal.pg_fixtures.data_directory import Setting
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.walproposer.primary.primary import Primary
from quorum_wal.walproposer.primary.server_facts import read_server_facts, read_start_us

MAJORS = (15, 16, 18)
TIMEOUT = 60.0  # seconds
SETTINGS: dict[str, Setting] = {
    "max_prepared_transactions": 20,
    "wal_level": "logical",
    "wal_log_hints": True,
    "wal_keep_size": "64MB",  # for pg_rewind
    "autovacuum": False,
}
#: A name that no standby has: each commit waits.
NOBODY = "nobody"
#: For a session that waits for no standby.
LOCAL = "-c synchronous_commit=local"

BUSY = "55000"
UNKNOWN_GID = "42704"
NOT_ALLOWED = "42501"
OTHER_DATABASE = "0A000"


def primary_of(server: Postgres) -> Primary:
    """Its first timeline, as long as it runs."""
    with server.connect() as connection:
        facts, start_us = read_server_facts(connection), read_start_us(connection)
    return Primary(facts, TimelineHistory(1), 0, 0, start_us)


def make_commits_wait(server: Postgres) -> None:
    """Until they are cancelled. Returns when the checkpointer has the setting, some time after the
    sessions have it."""
    server.configure(synchronous_standby_names=NOBODY)
    wait_until(lambda: _does_a_commit_wait(server), TIMEOUT, "a commit that waits")


def _does_a_commit_wait(server: Postgres) -> bool:
    waiting = Waiting(server, "SELECT pg_logical_emit_message(true, 'wait', '')")
    wait_until(lambda: waiting.has_ended or waiting.wait_event == "SyncRep", TIMEOUT, "its end")
    if waiting.has_ended:
        return False
    waiting.cancel()
    waiting.wait_ended()
    return True


def prepare(postgres: Postgres, gid: str, statement: str = "INSERT INTO t VALUES (1)") -> None:
    """Prepare without waiting for a standby."""
    with postgres.connect(options=LOCAL) as connection:
        connection.execute("BEGIN")
        connection.execute(statement)
        connection.execute(prepare_sql(gid))


def prepare_sql(gid: str) -> sql.Composed:
    """PREPARE, COMMIT PREPARED and ROLLBACK PREPARED take no parameters: they are utility
    statements."""
    return sql.SQL("PREPARE TRANSACTION {}").format(sql.Literal(gid))


def commit_sql(gid: str) -> sql.Composed:
    return sql.SQL("COMMIT PREPARED {}").format(sql.Literal(gid))


def rollback_sql(gid: str) -> sql.Composed:
    return sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(gid))


def limbo(postgres: Postgres) -> set[str]:
    return {gid for (gid,) in postgres.execute("SELECT gid FROM pg_prepared_xacts")}


def finish_all(postgres: Postgres) -> None:
    """Roll back all prepared transactions; busy ones are waited for."""
    rows = postgres.execute("SELECT gid, database FROM pg_prepared_xacts")
    for gid, database in rows:
        wait_until(lambda g=gid, d=database: _roll_back(postgres, g, d), TIMEOUT, f"{gid} to end")


def _roll_back(postgres: Postgres, gid: str, database: str) -> bool:
    try:
        postgres.execute(rollback_sql(gid), dbname=database, options=LOCAL)
    except psycopg.errors.ObjectNotInPrerequisiteState:
        return False
    return True


def sqlstate_of(call: Callable[[], Any]) -> str | None:
    """The SQLSTATE; None if it succeeded."""
    try:
        call()
    except psycopg.Error as error:
        return error.sqlstate
    return None


class Waiting:
    """A statement in its own thread and on its own connection, because it may wait."""

    def __init__(
        self, postgres: Postgres, statement: str | sql.Composed, *before: str, **connection: Any
    ) -> None:
        self._postgres = postgres
        self._statement = statement
        self._connection = postgres.connect(**connection)
        self.pid = self._connection.info.backend_pid
        self.error: psycopg.Error | None = None
        self.rows: list[Any] = []
        self.tag = ""
        self.warnings: list[str] = []
        self._connection.add_notice_handler(
            lambda notice: self.warnings.append(notice.message_primary or "")
        )
        for each in before:
            self._connection.execute(each)
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with self._connection:
                cursor = self._connection.execute(self._statement)
                self.tag = cursor.statusmessage or ""
                self.rows = cursor.fetchall() if cursor.description is not None else []
        except psycopg.Error as error:
            self.error = error

    @property
    def sqlstate(self) -> str | None:
        return self.error.sqlstate if self.error is not None else None

    @property
    def has_ended(self) -> bool:
        return not self._thread.is_alive()

    @property
    def wait_event(self) -> str | None:
        rows = self._postgres.execute(
            "SELECT wait_event FROM pg_stat_activity WHERE pid = %s", (self.pid,)
        )
        return rows[0][0] if rows else None

    def wait_for(self, event: str) -> None:
        """Return when it waits for that."""
        wait_until(lambda: self.has_ended or self.wait_event == event, TIMEOUT, event)
        assert self._thread.is_alive(), (self.tag, self.error)

    def wait_lasting(self, seconds: float) -> None:
        """Return when the statement has run for that long, by the server's clock."""
        query = (
            "SELECT clock_timestamp() - query_start > make_interval(secs => %s)"
            " FROM pg_stat_activity WHERE pid = %s"
        )
        wait_until(
            lambda: self._postgres.execute(query, (seconds, self.pid)) == [(True,)],
            TIMEOUT,
            f"a statement to run for {seconds} s",
        )

    def cancel(self) -> None:
        self._postgres.execute("SELECT pg_cancel_backend(%s)", (self.pid,))

    def wait_ended(self) -> None:
        """Return when it has ended, also with an error."""
        self._thread.join(TIMEOUT)
        assert not self._thread.is_alive()
