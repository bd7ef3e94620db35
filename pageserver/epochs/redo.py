"""Stock Postgres replays WAL in a sparse directory and shuts down after a checkpoint.

Laws. The server listens only on a socket in its own directory. It runs as an unprivileged account,
and without a network if the kernel allows that. Its settings disable archiving, restoring from an
archive, and preloaded libraries. Its exit code is not sufficient: the control file must contain the
checkpoint at which it was to stop. (A server that stops elsewhere exits with 0 without flushing.) A
directory is used once.
Source: Postgres `CreateRestartPoint` in `xlog.c`, `recoveryStopsAfter` in `xlogrecovery.c`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from quorum_wal.pageserver.errors import RedoError
from quorum_wal.pageserver.layers.control_file import CONTROL_FILE, ControlFile
from quorum_wal.pageserver.layers.touches import Checkpoint
from quorum_wal.pg_server.account import Account, give
from quorum_wal.pg_server.binaries import PostgresBinaries
from quorum_wal.pg_server.errors import DeadlineExceeded
from quorum_wal.pg_server.program import run_program
from quorum_wal.pgwal.lsn import format_lsn

CONF_FOLDER = ".redo"  # in the data directory; frames omit names that begin with a dot
LOG_TAIL_LINES = 8
REDO_SECONDS_MAX = 4 * 3600.0
SHARED_BUFFERS_MB = 256

SETTINGS: Mapping[str, str] = {
    "listen_addresses": "''",
    "unix_socket_directories": "'.'",
    "hot_standby": "off",
    "fsync": "off",
    "full_page_writes": "off",
    "ignore_invalid_pages": "off",
    "recovery_target_inclusive": "on",
    "recovery_target_action": "shutdown",
    "bgwriter_lru_maxpages": "0",
    "checkpoint_timeout": "1h",
    "max_wal_size": "200GB",
    "wal_recycle": "off",
    "wal_init_zero": "off",
    "autovacuum": "off",
    "archive_mode": "off",
    "logging_collector": "off",
    "log_destination": "stderr",
    "shared_preload_libraries": "''",
    "allow_in_place_tablespaces": "on",
    "huge_pages": "off",
    "ssl": "off",
    "max_connections": "10",
    "max_wal_senders": "0",
    "max_worker_processes": "0",
}

#: Since 15. Each page would cost a system call, and what exists of the files is cached.
NO_PREFETCH = {"recovery_prefetch": "off"}


@dataclass(frozen=True, slots=True)
class RedoServer:
    """`libraries` are those of custom resource managers."""

    binaries: PostgresBinaries
    account: Account | None
    shared_buffers_mb: int = SHARED_BUFFERS_MB
    libraries: Sequence[str] = ()
    more_settings: Mapping[str, str] = field(default_factory=dict)

    def give(self, path: Path) -> None:
        """Changes the owner to the account that the server runs as."""
        give(path, self.account)

    def replay(self, data_dir: Path, target: Checkpoint, prepared_max: int) -> None:
        """Replays the WAL in pg_wal up to the end of that checkpoint record. Raises RedoError."""
        program = self.configure(
            data_dir,
            {
                "max_prepared_transactions": str(prepared_max),
                "recovery_target_lsn": f"'{format_lsn(target.start_lsn)}'",
                "recovery_target_timeline": f"'{target.tli}'",
            },
            signal_file="standby.signal",
        )
        try:
            done = run_program(
                program,
                account=self.account,
                timeout=REDO_SECONDS_MAX,
                check=False,
                has_network=False,
            )
        except DeadlineExceeded as error:
            text = f"the replay of WAL up to {format_lsn(target.end_lsn)} timed out: {error}"
            raise RedoError(text) from error
        self._check(data_dir, target, done.returncode, done.stderr)

    def configure(
        self,
        data_dir: Path,
        settings: Mapping[str, str],
        *,
        signal_file: str,
        hba: str = "local all all reject\n",
    ) -> list[str | Path]:
        """Writes the server's configuration and returns its command line. `settings` override the
        settings common to all redo servers."""
        settings = {
            **SETTINGS,
            **(NO_PREFETCH if self.binaries.major >= 15 else {}),
            "shared_buffers": f"{self.shared_buffers_mb}MB",
            "shared_preload_libraries": f"'{','.join(self.libraries)}'",
            **settings,
            **self.more_settings,
        }
        folder = data_dir / CONF_FOLDER
        folder.mkdir(mode=0o700)
        self.give(folder)
        files = {
            folder / "config": "".join(f"{name} = {value}\n" for name, value in settings.items()),
            folder / "hba": hba,
            folder / "ident": "",
            data_dir / signal_file: "",
        }
        for path, text in files.items():
            path.write_text(text)
            self.give(path)
        return [
            *(self.binaries.program("postgres"), "-D", data_dir),
            *(f"--{name}_file={folder / name}" for name in ("config", "hba", "ident")),
        ]

    def _check(self, data_dir: Path, target: Checkpoint, returncode: int, log: str) -> None:
        lines = log.splitlines()
        severe = [line for line in lines if "PANIC" in line or "FATAL" in line]
        control = ControlFile.parse((data_dir / CONTROL_FILE).read_bytes())
        if returncode != 0:
            raise RedoError(
                f"Postgres did not replay the WAL up to {format_lsn(target.end_lsn)}: "
                f"exit code {returncode}: {(severe or lines or ['the log is empty'])[0]}",
                hint="\n".join(lines[-LOG_TAIL_LINES:]),
            )
        found = control.checkpoint_lsn, control.redo_lsn
        if found != (target.start_lsn, target.redo_lsn):
            raise RedoError(
                "Postgres stopped at an unexpected position: expected the checkpoint at "
                f"{format_lsn(target.start_lsn)}, found the one at {format_lsn(found[0])}",
                hint="\n".join(lines[-LOG_TAIL_LINES:]),
            )
