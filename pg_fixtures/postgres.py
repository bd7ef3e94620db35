"""`Postgres`: a real server on a port of its own, as a child process.

    with Postgres(find_postgres(), tmp_path / "primary") as postgres:
        postgres.execute("CREATE TABLE t (a int)")

It listens only on 127.0.0.1, without a unix socket, and trusts all local users. The postmaster is
started directly, not by pg_ctl, so that its end is noticed at once and it ends with this process.
Readiness is read from postmaster.pid, as pg_ctl does, so no connection waits for a standby.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import psycopg
from psycopg.conninfo import make_conninfo

from quorum_wal.pg_fixtures.crash import crash_postmaster
from quorum_wal.pg_fixtures.data_directory import (
    SUPERUSER,
    WAL_SEG_SIZE,
    DataDirectory,
    Setting,
    setting_text,
)
from quorum_wal.pg_fixtures.errors import ConfigurationError, FixtureError
from quorum_wal.pg_fixtures.ports import free_port
from quorum_wal.pg_fixtures.processes import ServiceProcess
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_server.binaries import PostgresBinaries
from quorum_wal.pg_server.postmaster_file import PostmasterFile
from quorum_wal.pg_server.program import run_program
from quorum_wal.pgwal.lsn import Lsn

StopMode = Literal["smart", "fast", "immediate"]

STOP_SIGNALS: dict[StopMode, signal.Signals] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}
START_TIMEOUT = 60.0  # seconds; includes recovery after a crash
STOP_TIMEOUT = 30.0
RELOAD_TIMEOUT = 10.0


class Postgres:
    """A context manager: created if its folder is empty, started, and crashed at the block's end.

    For a regular shutdown, call stop() before. The data folder remains. A new one is a copy of
    `template`, the folder of a stopped server, or is made by initdb with `wal_seg_size`.
    `settings` apply from the first start on; `options` are on the server's command line at every
    start; `env` is added to its environment.
    """

    def __init__(
        self,
        binaries: PostgresBinaries,
        data_dir: Path,
        *,
        settings: Mapping[str, Setting] | None = None,
        wal_seg_size: int = WAL_SEG_SIZE,
        template: Path | None = None,
        port: int | None = None,
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.binaries = binaries
        self.data_dir = data_dir
        self.port = free_port() if port is None else port
        self.log_path = data_dir.with_name(f"{data_dir.name}.log")
        self._data = DataDirectory(data_dir, binaries)
        self._first_settings = dict(settings or {})
        self._wal_seg_size = wal_seg_size
        self._template = template
        self._server = ServiceProcess(
            [
                binaries.program("postgres"),
                *("-D", data_dir),
                # Not in a file, because a base backup would contain the address.
                f"--port={self.port}",
                "--listen_addresses=127.0.0.1",
                "--unix_socket_directories=",
                *options,
            ],
            name=f"postgres {binaries.version} in {data_dir}",
            log_path=self.log_path,
            env=env,
            account=self._data.account,
            # The postmaster signals its children; on SIGKILL it could not.
            death_signal=STOP_SIGNALS["immediate"],
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.crash()

    # ---- start and stop

    def init(self, *options: str) -> None:
        """Creates the data folder: a copy of the template, or by initdb with `options`.

        A copy is faster, but has its template's system identifier. Raises ProgramFailed.
        """
        if self._template is not None:
            self._data.copy_from(self._template)
        else:
            self._data.initdb(*options, wal_seg_size=self._wal_seg_size)

    def start(self, timeout: float = START_TIMEOUT) -> None:
        """Starts it, and returns when it accepts connections. Creates the folder if it is missing.

        Raises ProcessEnded (with the end of the log) if it refuses, DeadlineExceeded.
        """
        self._prepare()
        self._server.start()
        try:
            self.wait_ready(timeout)
        except BaseException:
            self.crash()
            raise

    def wait_ready(self, timeout: float = START_TIMEOUT) -> None:
        """Returns when it accepts connections. Raises ProcessEnded, DeadlineExceeded."""

        def ready() -> bool:
            state = self._state()
            return state is not None and state.accepts_connections

        self._server.wait_until(ready, timeout, "it to accept connections")

    def stop(self, mode: StopMode = "fast", timeout: float = STOP_TIMEOUT) -> None:
        """Shuts down as `pg_ctl stop --mode` does. May be called when it does not run.

        smart and fast also wait until the standbys have confirmed all WAL. If a standby hangs they
        raise DeadlineExceeded, and the server continues to shut down.
        """
        if self.is_running:
            self._server.send_signal(STOP_SIGNALS[mode])
            self._server.wait(timeout)

    def restart(self, mode: StopMode = "fast", timeout: float = START_TIMEOUT) -> None:
        """Calls stop(), then start()."""
        self.stop(mode)
        self.start(timeout)

    def crash(self) -> None:
        """Kills the postmaster and all its children at one instant. Returns when all have ended.

        May be called when it does not run. The next start recovers, as after a power failure.
        But the kernel's page cache survives, so this does not test fsync.
        """
        if self.is_running:
            crash_postmaster(self._server.pid, self._data)
            self._server.kill()

    @property
    def is_running(self) -> bool:
        """The postmaster runs; it may be starting up or shutting down."""
        return self._server.alive

    @property
    def pid(self) -> int:
        """The postmaster's process id. Raises ProcessEnded if it was never started."""
        return self._server.pid

    def log_text(self) -> str:
        """The whole log of all runs."""
        return self._server.log_text()

    # ---- configuration

    def configure(self, **settings: Setting | None) -> None:
        """Changes settings in the configuration file; None removes a setting.

        A running server reloads. On return new sessions have the settings, except those that need a
        restart. If a running server refuses one, raises ConfigurationError and changes nothing.
        """
        self._prepare()
        before = self._data.settings()
        after = dict(before)
        for name, value in settings.items():
            after.pop(name, None)
            if value is not None:
                after[name] = setting_text(value)
        self._data.write_settings(after)
        state = self._state()
        if state is not None and state.status == "ready":
            refused = self._refused_settings()
            if refused:
                self._data.write_settings(before)
                raise ConfigurationError(f"Postgres refuses {', '.join(refused)}")
            self._reload()

    def _prepare(self) -> None:
        """Creates the folder if it is missing, and writes the constructor's settings once."""
        if not self._data.initialized:
            self.init()
        if self._first_settings:
            texts = {name: setting_text(value) for name, value in self._first_settings.items()}
            self._data.write_settings({**self._data.settings(), **texts})
            self._first_settings = {}

    def _refused_settings(self) -> list[str]:
        """Settings in the files that take effect neither now nor after a restart."""
        with self.connect() as connection:
            # This query parses the files and sets pending_restart, which the second query reads.
            rows = connection.execute(
                "SELECT name, setting, error FROM pg_file_settings WHERE error IS NOT NULL"
            ).fetchall()
            pending = connection.execute("SELECT name FROM pg_settings WHERE pending_restart")
            waiting = {name for (name,) in pending}
        return [f"{name} = {value} ({why})" for name, value, why in rows if name not in waiting]

    def _reload(self) -> None:
        (before,) = self.execute("SELECT pg_conf_load_time()")
        self._server.send_signal(signal.SIGHUP)
        wait_until(
            lambda: self.execute("SELECT pg_conf_load_time()") != [before],
            RELOAD_TIMEOUT,
            "Postgres to reload its configuration",
        )

    def _state(self) -> PostmasterFile | None:
        """The server's postmaster.pid; None if it does not run, or has not written it yet."""
        if not self.is_running:
            return None
        state = self._data.postmaster_file()
        return state if state is not None and state.pid == self.pid else None

    # ---- clients

    def dsn(self, **extra: Any) -> str:
        """A libpq connection string for the superuser; `extra` adds or replaces keywords."""
        keywords: dict[str, Any] = {
            "host": "127.0.0.1",
            "port": self.port,
            "user": SUPERUSER,
            "dbname": SUPERUSER,
            "sslmode": "disable",  # otherwise libpq asks in one more round trip
            "gssencmode": "disable",
        }
        return make_conninfo("", **{**keywords, **extra})

    def connect(self, *, autocommit: bool = True, **extra: Any) -> psycopg.Connection[Any]:
        """A new connection; `extra` as in dsn(). Close it, or use it as a context manager."""
        return psycopg.connect(self.dsn(**extra), autocommit=autocommit)

    def execute(self, statement: str, parameters: Any = None, **extra: Any) -> list[Any]:
        """Runs one statement on a new connection. Returns its rows; `extra` as in dsn().

        A write waits for the synchronous standby. To avoid that, use
        `options="-c synchronous_commit=local"`.
        """
        with self.connect(**extra) as connection:
            cursor = connection.execute(statement, parameters)
            return cursor.fetchall() if cursor.description is not None else []

    def flush_lsn(self) -> Lsn:
        """The end of the WAL on this server's disk. Not for standbys."""
        ((lsn,),) = self.execute("SELECT pg_current_wal_flush_lsn()::text")
        return Lsn.parse(lsn)

    # ---- programs

    @property
    def pg_wal(self) -> Path:
        """The folder of the WAL segments."""
        return self.data_dir / "pg_wal"

    @property
    def client_env(self) -> dict[str, str]:
        """The environment with which psql, pgbench and other clients find this server."""
        return {
            "PGHOST": "127.0.0.1",
            "PGPORT": str(self.port),
            "PGUSER": SUPERUSER,
            "PGDATABASE": SUPERUSER,
            "PGSSLMODE": "disable",
            "PGGSSENCMODE": "disable",
        }

    def client(
        self, program: str, *arguments: str | Path, timeout: float = 120.0, check: bool = True
    ) -> str:
        """Runs a client program against this server. Returns its output.

        Raises Unavailable, ProgramFailed (unless `check` is False), DeadlineExceeded.
        """
        command = [self.binaries.program(program), *arguments]
        return run_program(command, env=self.client_env, timeout=timeout, check=check).stdout

    def pgbench(self, *arguments: str, timeout: float = 600.0) -> str:
        """Runs pgbench; `pgbench("-i", "-s", "2")` first."""
        return self.client("pgbench", *arguments, timeout=timeout)

    def waldump(self, *arguments: str | Path, check: bool = True) -> str:
        """Runs pg_waldump on pg_wal. Without `--end` it fails at the end of WAL: `check=False`."""
        return self.client("pg_waldump", f"--path={self.pg_wal}", *arguments, check=check)

    def control_data(self) -> dict[str, str]:
        """The output of pg_controldata, by name ("Database system identifier")."""
        text = self.client("pg_controldata", self.data_dir)
        pairs = (line.partition(":") for line in text.splitlines())
        return {name: value.strip() for name, _, value in pairs}

    def base_backup(self, target: Path, *arguments: str) -> Postgres:
        """Runs pg_basebackup into `target`. Returns the server that can be started there.

        `"--write-recovery-conf"` makes it a standby of this one. It has the same settings.
        """
        if target.exists():
            raise FixtureError(f"{target} exists already")
        DataDirectory(target, self.binaries).create_empty()
        run_program(
            [
                self.binaries.program("pg_basebackup"),
                f"--pgdata={target}",
                "--checkpoint=fast",  # otherwise the checkpoint is spread over minutes
                "--no-sync",
                *arguments,
            ],
            account=self._data.account,
            env=self.client_env,
        )
        return Postgres(self.binaries, target)
