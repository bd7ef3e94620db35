"""`Postgres`: one real server of its own, on a port of its own, as a child process of ours.

    with Postgres(find_postgres(), tmp_path / "primary") as postgres:
        postgres.execute("CREATE TABLE t (a int)")

It listens on 127.0.0.1 only, without a unix socket, and trusts everybody there. The postmaster is
started directly, not by pg_ctl, so that its end is seen at once and it ends with us. Readiness is
read from postmaster.pid, as pg_ctl does: no connection, nothing that could wait for a standby.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import psycopg
from psycopg.conninfo import make_conninfo

from pg_fixtures.crash import crash_postmaster
from pg_fixtures.data_directory import (
    SUPERUSER,
    WAL_SEG_SIZE,
    DataDirectory,
    Setting,
    setting_text,
)
from pg_fixtures.errors import ConfigurationError, FixtureError
from pg_fixtures.ports import free_port
from pg_fixtures.processes import ServiceProcess
from pg_fixtures.waiting import wait_until
from pg_server.binaries import PostgresBinaries
from pg_server.postmaster_file import PostmasterFile
from pg_server.program import run_program
from pgwal.lsn import Lsn

StopMode = Literal["smart", "fast", "immediate"]

STOP_SIGNALS: dict[StopMode, signal.Signals] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}
START_TIMEOUT = 60.0  # seconds; recovery after a crash is part of a start
STOP_TIMEOUT = 30.0
RELOAD_TIMEOUT = 10.0


class Postgres:
    """A context manager: made if its folder is empty, started, and ended with the block, abruptly.

    To end in good order, stop() before. The data folder stays for inspection. A new one is a copy
    of `template`, the folder of a stopped server, or else made by initdb with `wal_seg_size`.
    `settings` are configured before the first start; `env` is added to the server's environment.
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
                # Here and not in a file, or a base backup would take the address with it.
                f"--port={self.port}",
                "--listen_addresses=127.0.0.1",
                "--unix_socket_directories=",
            ],
            name=f"postgres {binaries.version} in {data_dir}",
            log_path=self.log_path,
            env=env,
            account=self._data.account,
            # The postmaster passes this on to its children; a SIGKILL it could not.
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

    # ---- life

    def init(self, *options: str) -> None:
        """Make the data folder: a copy of the template, or else by initdb with `options`.

        A copy is quicker, but has its template's system identifier. Raises ProgramFailed.
        """
        if self._template is not None:
            self._data.copy_from(self._template)
        else:
            self._data.initdb(*options, wal_seg_size=self._wal_seg_size)

    def start(self, timeout: float = START_TIMEOUT) -> None:
        """Start, and return when it accepts connections. A folder that is not there yet is made.

        Raises ProcessEnded (with the tail of the log) when it refuses, DeadlineExceeded.
        """
        self._prepare()
        self._server.start()
        try:
            self.wait_ready(timeout)
        except BaseException:
            self.crash()
            raise

    def wait_ready(self, timeout: float = START_TIMEOUT) -> None:
        """Return when it accepts connections. Raises ProcessEnded, DeadlineExceeded."""

        def ready() -> bool:
            state = self._state()
            return state is not None and state.accepts_connections

        self._server.wait_until(ready, timeout, "it to accept connections")

    def stop(self, mode: StopMode = "fast", timeout: float = STOP_TIMEOUT) -> None:
        """Shut down as `pg_ctl stop --mode` does. Legal when it does not run.

        smart and fast also wait for walsenders, until their standbys have confirmed all WAL: with a
        standby that hangs they raise DeadlineExceeded, and the server is still shutting down.
        """
        if self.is_running:
            self._server.send_signal(STOP_SIGNALS[mode])
            self._server.wait(timeout)

    def restart(self, mode: StopMode = "fast", timeout: float = START_TIMEOUT) -> None:
        """stop(), then start()."""
        self.stop(mode)
        self.start(timeout)

    def crash(self) -> None:
        """Kill -9 the postmaster and all its children at one instant; returns when all are gone.

        Legal when it does not run. The next start recovers, as after a power failure (the kernel's
        page cache survives, though: fsync is not tested by this).
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
        """The postmaster's process id. Raises ProcessEnded when it was never started."""
        return self._server.pid

    def log_text(self) -> str:
        """All that the server has logged, over all its runs."""
        return self._server.log_text()

    # ---- configuration

    def configure(self, **settings: Setting | None) -> None:
        """Change settings in the configuration file; None takes one back to what it was.

        A running server reloads; on return new sessions have the settings, except those that need a
        restart. Raises ConfigurationError and changes nothing when a running server refuses one.
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
        """Make the folder, unless it is there; and take over the constructor's settings, once."""
        if not self._data.initialized:
            self.init()
        if self._first_settings:
            texts = {name: setting_text(value) for name, value in self._first_settings.items()}
            self._data.write_settings({**self._data.settings(), **texts})
            self._first_settings = {}

    def _refused_settings(self) -> list[str]:
        """Settings in the files that would neither take effect now nor after a restart."""
        with self.connect() as connection:
            # This query tries the files out, and so marks what waits for a restart, for the second.
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
        """What the server says of itself; None when it does not run, or has said nothing yet."""
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
            "sslmode": "disable",  # without: one more round trip to ask
            "gssencmode": "disable",
        }
        return make_conninfo("", **{**keywords, **extra})

    def connect(self, *, autocommit: bool = True, **extra: Any) -> psycopg.Connection[Any]:
        """A new connection; `extra` as for dsn(). Close it, or use it as a context manager."""
        return psycopg.connect(self.dsn(**extra), autocommit=autocommit)

    def execute(self, statement: str, parameters: Any = None, **extra: Any) -> list[Any]:
        """Run one statement on a connection of its own; return its rows. `extra` as for dsn().

        A write waits for the synchronous standby like any other; to write without, say
        `options="-c synchronous_commit=local"`.
        """
        with self.connect(**extra) as connection:
            cursor = connection.execute(statement, parameters)
            return cursor.fetchall() if cursor.description is not None else []

    def flush_lsn(self) -> Lsn:
        """The end of the WAL on this server's disk. Not on a standby."""
        ((lsn,),) = self.execute("SELECT pg_current_wal_flush_lsn()::text")
        return Lsn.parse(lsn)

    # ---- programs

    @property
    def pg_wal(self) -> Path:
        """The folder of the WAL segments."""
        return self.data_dir / "pg_wal"

    @property
    def client_env(self) -> dict[str, str]:
        """What psql, pgbench and the rest read from their environment to find this server."""
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
        """Run a client program against this server; return what it printed.

        Raises Unavailable, ProgramFailed (unless `check` is false), DeadlineExceeded.
        """
        command = [self.binaries.program(program), *arguments]
        return run_program(command, env=self.client_env, timeout=timeout, check=check).stdout

    def pgbench(self, *arguments: str, timeout: float = 600.0) -> str:
        """Run pgbench; `pgbench("-i", "-s", "2")` first."""
        return self.client("pgbench", *arguments, timeout=timeout)

    def waldump(self, *arguments: str | Path, check: bool = True) -> str:
        """Run pg_waldump on pg_wal. Without `--end` it fails at the end of WAL: `check=False`."""
        return self.client("pg_waldump", f"--path={self.pg_wal}", *arguments, check=check)

    def control_data(self) -> dict[str, str]:
        """What pg_controldata prints, by its names ("Database system identifier")."""
        text = self.client("pg_controldata", self.data_dir)
        pairs = (line.partition(":") for line in text.splitlines())
        return {name: value.strip() for name, _, value in pairs}

    def base_backup(self, target: Path, *arguments: str) -> Postgres:
        """pg_basebackup into `target`; returns the server that may be started on it.

        `"--write-recovery-conf"` makes it a standby of this one. The settings come along.
        """
        if target.exists():
            raise FixtureError(f"{target} exists already")
        DataDirectory(target, self.binaries).create_empty()
        run_program(
            [
                self.binaries.program("pg_basebackup"),
                f"--pgdata={target}",
                "--checkpoint=fast",  # else it waits for one that is spread over minutes
                "--no-sync",
                *arguments,
            ],
            account=self._data.account,
            env=self.client_env,
        )
        return Postgres(self.binaries, target)
