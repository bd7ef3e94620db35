"""A cluster that archives, and servers restored from its archive."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sk_command import Done, sk

from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.ports import free_port
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.processes import SK
from quorum_wal.pg_fixtures.proposer import ProposerProcess
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_server.account import server_account
from quorum_wal.pg_server.binaries import PostgresBinaries
from quorum_wal.pg_server.program import run_program

TIMEOUT = 120.0
SEGMENT_BYTES = 1 << 20
PARTIAL_INTERVAL_SECONDS = 1.0


def archiving(archive: Path) -> list[str]:
    """The arguments of a safekeeper."""
    return ["--archive", str(archive), "--archive-partial-interval", str(PARTIAL_INTERVAL_SECONDS)]


def take_backup(archive: Path, server: Postgres, *arguments: str) -> str:
    """Take a base backup; returns its name."""
    wait_until(lambda: any(archive.glob("*/*/timeline.json")), TIMEOUT, "the archive to be there")
    done = sk("backup", "create", "--archive", archive, "--from", server.dsn(), *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def new_folder(path: Path) -> Path:
    """A folder that the server may use."""
    path.mkdir()
    account = server_account()
    if account is not None:
        os.chown(path, account.uid, account.gid)
    return path


class RestoredPostgres(Postgres):
    """A data directory for `sk restore`. The server is stopped at the end of the block, whichever
    process started it."""

    def __init__(self, binaries: PostgresBinaries, data_dir: Path) -> None:
        super().__init__(binaries, data_dir, port=free_port())

    def restore(self, archive: Path, *arguments: object, **env: str) -> Done:
        """Run `sk restore` to its end."""
        return sk(*self.arguments(archive), *arguments, env=env)

    def arguments(self, archive: Path) -> list[object]:
        """The arguments of `sk restore`, without --start."""
        return [
            *("restore", "--archive", archive, "--data-dir", self.data_dir),
            *("--pg-bin", self.binaries.bin_dir, "--no-sync"),
        ]

    @property
    def starting(self) -> list[str]:
        """The options with which `sk restore` starts and reaches it."""
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories="
        return ["--server", self.dsn(), "--server-options", options]

    def end(self) -> None:
        """Allowed if it does not run."""
        if (self.data_dir / "postmaster.pid").exists():
            run_program(
                [self.binaries.program("pg_ctl"), "stop", "-m", "immediate", "-D", self.data_dir],
                account=server_account(),
                check=False,
            )


@contextmanager
def restored_at(binaries: PostgresBinaries, data_dir: Path) -> Iterator[RestoredPostgres]:
    """A restored server in an empty folder; it is stopped at the end of the block."""
    server = RestoredPostgres(binaries, data_dir)
    try:
        yield server
    finally:
        server.crash()
        server.end()


class RestoreProcess(ProposerProcess):
    """`sk restore --promote`, which continues as the proposer of the new primary."""

    def __init__(self, server: RestoredPostgres, archive: Path, cluster: QuorumCluster) -> None:
        addresses: Sequence[str] = [s.address for s in cluster.safekeepers]
        log_path = server.data_dir.with_name(f"{server.data_dir.name}-restore.log")
        super().__init__(server.dsn(), addresses, log_path=log_path)
        self.program = [
            *SK,
            *map(str, server.arguments(archive)),
            *("--promote", "--safekeepers", ",".join(addresses)),
            *("--replica-conninfo", "user=postgres", *server.starting),
            *("--http", self.http_address),
        ]
