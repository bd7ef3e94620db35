"""`BackupServer`: a temporary standby from a backup or a cut of an archive.

    backup or cut  ->  data/ in a temporary folder  ->  replay up to the first consistent position,
                       settings of its own              pause; a socket in a folder of its own

Laws. `sk restore` plans and writes the files. The server exists only within the `with` block: the
kernel ends it when this process ends, also by kill -9. It never leaves recovery, so its rows are
those of the WAL at its position. If the archive has no WAL behind the first consistent position, it
waits there for more: recovery that ends before its target would be an error. No setting of the
backup applies. A backup with tablespaces is refused, because they would be written to their places
on this machine.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg
from psycopg.conninfo import conninfo_to_dict

from quorum_wal.backup.recovery_settings import AUTO_CONF, SignalFile, quoted
from quorum_wal.backup.restore_plan import RestorePlan
from quorum_wal.cli.output import CommandError
from quorum_wal.cli.restore_request import RestoreRequest
from quorum_wal.consensus.ids import TimelineId
from quorum_wal.pageserver.epochs.redo import CONF_FOLDER, RedoServer
from quorum_wal.pg_server.account import account_of
from quorum_wal.pg_server.binaries import PostgresBinaries
from quorum_wal.pg_server.private_server import HBA, PrivateServer
from quorum_wal.pg_server.program import run_program

RECOVERY_SECONDS_MAX = 7 * 24 * 3600.0
POLL_SECONDS = 0.05

#: A standby needs at least the values of the primary: field of pg_controldata -> setting.
LIMITS = {
    "max_connections setting": "max_connections",
    "max_worker_processes setting": "max_worker_processes",
    "max_wal_senders setting": "max_wal_senders",
    "max_prepared_xacts setting": "max_prepared_transactions",
    "max_locks_per_xact setting": "max_locks_per_transaction",
}


@dataclass(frozen=True, slots=True)
class BackupSource:
    """`work_dir` is where the files are written; None: the folder for temporary files."""

    archive: str
    archive_options: Sequence[str]
    timeline: TimelineId | None
    pg_bin: Path | None
    work_dir: Path | None

    def request(self, data_dir: Path) -> RestoreRequest:
        """To the end of the log; the server stops earlier. Raises ObjectStoreError."""
        options: dict[str, Any] = dict.fromkeys(
            ("target", "target_lsn", "target_time", "target_xid", "backup_id")
        )
        options |= {
            "archive": self.archive, "archive_option": tuple(self.archive_options),
            "timeline": self.timeline, "safekeepers": (), "safekeeper_conninfo": "",
            "data_dir": data_dir, "tablespace": (), "target_action": "pause", "no_sync": True,
            "pg_bin": self.pg_bin, "start": True, "promote": False, "server": "",
            "server_options": "",
        }  # fmt: skip
        return RestoreRequest.of(options)


class BackupServer:
    """A context manager. `dsn` names the database and the user; its host is not used."""

    def __init__(self, source: BackupSource, dsn: str) -> None:
        self._source = source
        self._given = conninfo_to_dict(dsn)

    @property
    def dsn(self) -> str:
        """Of the running server."""
        names = {name: str(self._given[name]) for name in ("dbname", "user") if name in self._given}
        return self._private.conninfo(**names)

    def __enter__(self) -> Self:
        """Returns when the server is consistent. Raises CommandError, BackupError,
        ObjectStoreError, PgServerError."""
        self._work = Path(tempfile.mkdtemp(prefix="sk-mirror-", dir=self._source.work_dir))
        self._private = PrivateServer()
        try:
            self._start()
            self._wait_consistent()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end()

    def _start(self) -> None:
        data_dir = self._work / "data"
        with closing(self._source.request(data_dir)) as request:
            program = self._program(request)
        options = " ".join(self._source.archive_options)
        log_path = data_dir / CONF_FOLDER / "log"
        env = {"SK_ARCHIVE_OPTION": options}
        self._private.start(program, account_of(data_dir), log_path, env=env)

    def _program(self, request: RestoreRequest) -> list[str | Path]:
        """Writes the data directory. Returns the command line of its server."""
        plan, data_dir = request.plan(), request.data_dir
        _check_tablespaces(plan)
        request.write(plan, SignalFile.STANDBY, {})
        (data_dir / AUTO_CONF).write_text("")
        binaries = request.binaries(plan)
        assert binaries is not None
        settings = {
            **request.recovery_settings(plan),
            "recovery_target": "immediate",
            "recovery_target_action": "pause",
            **_limits(binaries, data_dir),
        }
        quoted_settings = {name: quoted(value) for name, value in settings.items()}
        return RedoServer(binaries, account_of(data_dir)).configure(
            data_dir,
            quoted_settings | self._private.settings,
            signal_file=SignalFile.STANDBY.value,
            hba=HBA,
        )

    def _wait_consistent(self) -> None:
        deadline = time.monotonic() + RECOVERY_SECONDS_MAX
        while time.monotonic() < deadline:
            if self._private.process.poll() is not None:
                raise self._failed("the server of the backup ended")
            is_ready = self._is_ready()
            try:
                # A standby accepts connections when it is consistent.
                psycopg.connect(self.dsn).close()
                return
            except psycopg.OperationalError as error:
                if is_ready:  # before, it replays WAL
                    raise CommandError(
                        f"could not connect to the server of the backup: "
                        f"{' '.join(str(error).split())}",
                        "--dsn names the database and the user: dbname=shop user=postgres.",
                    ) from error
            time.sleep(POLL_SECONDS)
        raise self._failed("the server of the backup did not become consistent")

    def _is_ready(self) -> bool:
        return "ready to accept read-only connections" in self._private.log_text()

    def _failed(self, sentence: str) -> CommandError:
        lines = self._private.log_text().splitlines()
        severe = [line for line in lines if "FATAL" in line or "PANIC" in line]
        return CommandError(
            f"{sentence}: {(severe or lines or ['it logged nothing'])[-1]}",
            "Restore the backup with sk restore --target-action pause, and name that server with "
            "--dsn.",
        )

    def _end(self) -> None:
        self._private.end()
        shutil.rmtree(self._work, ignore_errors=True)


def _check_tablespaces(plan: RestorePlan) -> None:
    paths = [each.path for each in plan.backup.archives if each.path]
    if paths:
        raise CommandError(
            f'the backup has a tablespace in "{paths[0]}"',
            "Restore it with sk restore --tablespace OLD=NEW --target-action pause, and name that "
            "server with --dsn.",
        )


def _limits(binaries: PostgresBinaries, data_dir: Path) -> dict[str, str]:
    program = [binaries.program("pg_controldata"), data_dir]
    done = run_program(program, account=account_of(data_dir), env={"LC_ALL": "C"})
    fields = (line.partition(":") for line in done.stdout.splitlines())
    return {LIMITS[name]: text.strip() for name, _, text in fields if name in LIMITS}
