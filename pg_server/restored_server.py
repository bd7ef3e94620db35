"""`RestoredServer`: starts Postgres on a restored data directory and waits for the end of
recovery."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psycopg

from quorum_wal.pg_server.account import Account
from quorum_wal.pg_server.binaries import PostgresBinaries
from quorum_wal.pg_server.errors import ServerFailed
from quorum_wal.pg_server.program import run_program
from quorum_wal.pgwal.lsn import Lsn

LOG_FILE = "sk_restore.log"
LOG_TAIL_LINES = 15
#: pg_ctl start returns when the server is consistent, which may take hours of WAL replay.
START_SECONDS_MAX = 7 * 24 * 3600
CONNECT_SECONDS_MAX = 30.0
POLL_SECONDS = 0.1

_STATE = """
SELECT pg_is_in_recovery(),
    CASE WHEN pg_is_in_recovery() THEN pg_is_wal_replay_paused() ELSE false END,
    pg_last_wal_replay_lsn()::text, pg_last_xact_replay_timestamp()
"""


@dataclass(frozen=True, slots=True)
class Recovered:
    """The replay position; `last_commit_at` is None if the replayed WAL has no transaction."""

    lsn: int
    last_commit_at: datetime | None
    is_paused: bool

    def __str__(self) -> str:
        when = self.last_commit_at.astimezone(UTC).isoformat(" ") if self.last_commit_at else "none"
        return f"{Lsn(self.lsn)}, last transaction {when}"


@dataclass(frozen=True, slots=True)
class RestoredServer:
    """`options` go to the server's command line, as pg_ctl takes them. `log_file` is in the data
    directory."""

    data_dir: Path
    binaries: PostgresBinaries
    account: Account | None
    options: str = ""
    log_file: str = LOG_FILE

    def start(self) -> None:
        """Returns when the server accepts connections, or runs as a standby that accepts none.
        Raises ServerFailed."""
        program: list[str | Path] = [
            *(self.binaries.program("pg_ctl"), "start", "--wait", "--silent"),
            *("--pgdata", self.data_dir, "--log", self._log_path),
            *("--timeout", str(START_SECONDS_MAX)),
            *(["--options", self.options] if self.options else []),
        ]
        done = run_program(program, account=self.account, timeout=START_SECONDS_MAX, check=False)
        if done.returncode != 0:
            raise self._failed("the restored server does not start")

    def wait_recovered(self, connect: Callable[[], psycopg.Connection]) -> Recovered:
        """Returns when recovery has ended, or is paused at its target. `connect` opens a connection
        to the server. Raises ServerFailed, and the error of `connect` if it lasts for
        CONNECT_SECONDS_MAX while the server runs."""
        answered_at = time.monotonic()
        while True:
            try:
                recovered = _ask(connect)
            except Exception:  # any error of `connect`; raised below if it lasts
                if not self._is_running():
                    raise self._failed("the recovery of the restored server failed") from None
                if time.monotonic() - answered_at > CONNECT_SECONDS_MAX:
                    raise
            else:
                if recovered is not None:
                    return recovered
                answered_at = time.monotonic()
            time.sleep(POLL_SECONDS)

    @property
    def _log_path(self) -> Path:
        return self.data_dir / self.log_file

    def _is_running(self) -> bool:
        program: list[str | Path] = [self.binaries.program("pg_ctl"), "status"]
        program += ["--pgdata", self.data_dir]
        return run_program(program, account=self.account, check=False).returncode == 0

    def _failed(self, sentence: str) -> ServerFailed:
        text = self._log_path.read_text(errors="replace") if self._log_path.exists() else ""
        lines = text.splitlines()
        fatal = [line for line in lines if "FATAL" in line or "PANIC" in line]
        reason = (fatal or lines or ["it logged nothing"])[-1]
        return ServerFailed(
            f"{sentence}: {reason}",
            hint=f"See its log: {self._log_path}",
            log_tail=lines[-LOG_TAIL_LINES:],
        )


def _ask(connect: Callable[[], psycopg.Connection]) -> Recovered | None:
    """Returns None while the server is still in recovery."""
    with closing(connect()) as connection:
        row = connection.execute(_STATE).fetchone()
    assert row is not None
    in_recovery, is_paused, lsn, commit_at = row
    if in_recovery and not is_paused:
        return None
    return Recovered(int(Lsn.parse(lsn or "0/0")), commit_at, is_paused)
