"""Stock Postgres replays WAL in a sparse directory up to a record, is promoted, and runs queries.

    replay, up to the end of a record  ->  promotion, its checkpoint  ->  queries  ->  SIGQUIT

Laws. The server ignores invalid pages, because most files contain only holes. A `FileSet`
determines which results are valid; the server cannot. It listens on a socket in a folder of its
own, which only its account can enter. It runs only within the `with` block that started it, and
writes only to its directory. Its new timeline must begin at the end of that record; otherwise the
result is rejected.
Source: Postgres `recoveryStopsAfter`, `PerformRecoveryXLogAction` in `xlog.c`, `xlogrecovery.c`.
"""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from quorum_wal.pageserver.epochs.in_place_tablespaces import WAL_FOLDER
from quorum_wal.pageserver.epochs.redo import (
    CONF_FOLDER,
    LOG_TAIL_LINES,
    REDO_SECONDS_MAX,
    RedoServer,
)
from quorum_wal.pageserver.errors import RedoError
from quorum_wal.pageserver.layers.control_file import CONTROL_FILE, ControlFile
from quorum_wal.pageserver.layers.fork import Fork, ForkKind, parse_file
from quorum_wal.pg_server.postmaster_file import read_postmaster_file
from quorum_wal.pg_server.private_server import HBA, PrivateServer
from quorum_wal.pgwal.errors import TimelineHistoryError
from quorum_wal.pgwal.history import TimelineHistory, history_file_name
from quorum_wal.pgwal.lsn import format_lsn

POLL_SECONDS = 0.02
SHUTDOWN_SECONDS_MAX = 3600.0
#: A dump locks all tables of a database. The server allocates memory for all locks when it starts.
#: One session can use the locks reserved for the others (more than ten sessions).
LOCKS_PER_TRANSACTION_MIN = 1024
SESSIONS_MIN = 10

SETTINGS = {
    "ignore_invalid_pages": "on",
    "recovery_target_action": "promote",
    "restore_command": "'false'",  # all WAL is in pg_wal
    "shared_buffers": "512MB",  # otherwise most pages are written several times
    "autovacuum_freeze_max_age": "2000000000",  # prevents anti-wraparound autovacuum
    "autovacuum_multixact_freeze_max_age": "2000000000",
    "track_counts": "off",
    "jit": "off",
    "lc_messages": "'C'",
    "log_error_verbosity": "terse",
}

#: As written by `report_invalid_page` in xlogutils.c.
_INVALID_PAGE = re.compile(r"page [0-9]+ of relation (\S+) (?:is uninitialized|does not exist)")


@dataclass(frozen=True, slots=True)
class StopPoint:
    """The last record to replay is [record_lsn, end_lsn) on timeline `tli`."""

    record_lsn: int
    end_lsn: int
    tli: int


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """`prepared`: max_prepared_transactions of the primary. `locks`: relations that one transaction
    may lock."""

    prepared: int
    locks: int

    def settings(self) -> dict[str, str]:
        locks = max(LOCKS_PER_TRANSACTION_MIN, self.locks // SESSIONS_MIN)
        return {
            "max_prepared_transactions": str(self.prepared),
            "max_locks_per_transaction": str(locks),
        }


def invalid_relations(log: Iterable[str]) -> frozenset[Fork]:
    """The main forks named in log lines of a server with English messages."""
    paths = {found[1] for line in log if (found := _INVALID_PAGE.search(line))}
    files = map(parse_file, paths)
    return frozenset(replace(each[0], kind=ForkKind.MAIN) for each in files if each is not None)


class PromotedServer:
    """A context manager: replays the WAL in the directory. The server ends with the `with` block.

    Loads the `libraries` of the redo server. `data_dir` is used once.
    """

    def __init__(
        self, server: RedoServer, data_dir: Path, stop: StopPoint, limits: ServerLimits
    ) -> None:
        self._server = server
        self.data_dir = data_dir
        self._stop = stop
        self._limits = limits
        self._log_path = data_dir / CONF_FOLDER / "log"

    def __enter__(self) -> Self:
        """Returns when the server is promoted and has written all pages. Raises RedoError."""
        self._private = PrivateServer()
        try:
            self._start()
            self._wait_promoted()
            self._check_stop()
        except BaseException:
            self._private.end()
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._private.end()

    def invalid_relations(self) -> frozenset[Fork]:
        """Main forks in which the replay found missing pages, so that changes were lost. This is
        normal for forks that are not in the file set."""
        with self._log_path.open(errors="replace") as log:
            return invalid_relations(log)

    def conninfo(self, database: str, user: str) -> str:
        """A complete connection string, so that environment variables have no effect."""
        return self._private.conninfo(dbname=database, user=user)

    def shut_down(self) -> None:
        """Shuts down with a checkpoint, so that the directory can be kept. Raises RedoError."""
        self._private.process.send_signal(signal.SIGINT)
        try:
            returncode = self._private.process.wait(SHUTDOWN_SECONDS_MAX)
        except subprocess.TimeoutExpired as error:
            raise self._failed("its shutdown timed out") from error
        if returncode != 0:
            raise self._failed(f"its shutdown ended with exit code {returncode}")

    def _start(self) -> None:
        stop = self._stop
        settings = {
            **SETTINGS,
            **self._private.settings,
            **self._limits.settings(),
            # The record's start, inclusive. An exclusive target needs one more record after it.
            "recovery_target_lsn": f"'{format_lsn(stop.record_lsn)}'",
            "recovery_target_timeline": f"'{stop.tli}'",
        }
        if self._server.binaries.major >= 17:
            settings["event_triggers"] = "off"  # login event triggers would run
        program = self._server.configure(
            self.data_dir, settings, signal_file="recovery.signal", hba=HBA
        )
        self._private.start(program, self._server.account, self._log_path, has_network=False)

    def _wait_promoted(self) -> None:
        begun, process = time.monotonic(), self._private.process
        while True:
            if process.poll() is not None:
                raise self._failed(f"exit code {process.returncode}")
            state = read_postmaster_file(self.data_dir)
            if state is not None and state.pid == process.pid and state.status == "ready":
                return
            if time.monotonic() - begun > REDO_SECONDS_MAX:
                raise self._failed("the replay timed out")
            time.sleep(POLL_SECONDS)

    def _check_stop(self) -> None:
        """The history file of the new timeline contains the end position of the replay."""
        tli = ControlFile.parse((self.data_dir / CONTROL_FILE).read_bytes()).tli
        path = self.data_dir / WAL_FOLDER / history_file_name(tli)
        try:
            entries = TimelineHistory.parse(tli, path.read_text()).entries
        except (OSError, TimelineHistoryError) as error:
            raise self._failed(f"timeline {tli} has no valid history file: {error}") from error
        if not entries or entries[-1].switch_lsn != self._stop.end_lsn:
            where = entries[-1].switch_lsn if entries else "an unknown position"
            raise self._failed(f"the replay stopped at {where}")

    def _failed(self, why: str) -> RedoError:
        lines = self._private.log_text().splitlines()
        severe = [line for line in lines if "PANIC" in line or "FATAL" in line]
        return RedoError(
            f"Postgres did not replay the WAL up to {format_lsn(self._stop.end_lsn)}: {why}: "
            f"{(severe or lines or ['the log is empty'])[0]}",
            hint="\n".join(lines[-LOG_TAIL_LINES:]),
        )
