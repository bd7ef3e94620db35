"""`BranchServer`: the Postgres of a branch. pg_ctl starts it, and it runs on after sk ends."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Collection
from enum import Enum
from pathlib import Path

from psycopg.conninfo import make_conninfo

from quorum_wal.pageserver.branches.branch_folder import BranchFolder, BranchState
from quorum_wal.pageserver.branches.branch_record import Branch
from quorum_wal.pageserver.branches.branch_settings import command_line, fixed_settings
from quorum_wal.pageserver.errors import BranchError
from quorum_wal.pg_server.account import account_of
from quorum_wal.pg_server.binaries import PostgresBinaries
from quorum_wal.pg_server.postmaster_file import PostmasterFile, read_postmaster_file
from quorum_wal.pg_server.restored_server import RestoredServer

HOST = "127.0.0.1"
LOG_FILE = "branch.log"
PORT_FIRST, PORTS = 5433, 1000
STOP_SECONDS_MAX = 3600.0
POLL_SECONDS = 0.02


class BranchServer:
    """The server of a complete branch. Methods raise BranchError, PgServerError."""

    def __init__(self, folder: BranchFolder, branch: Branch) -> None:
        self._folder = folder
        self._branch = branch

    def start(self, port: int | None = None) -> int:
        """Returns the port once the server accepts connections. May be called while it runs."""
        running = running_server(self._folder.data)
        if running is not None:
            return running.port
        port = port or self._branch.port
        if not is_port_free(port):
            raise BranchError(
                f"port {port} is in use",
                hint=f"Use sk branch start {self._branch.name} --port N to choose another port.",
            )
        RestoredServer(
            self._folder.data,
            PostgresBinaries.at(Path(self._branch.bin_dir)),
            account_of(self._folder.data),
            command_line(fixed_settings(self._branch.name, port)),
            LOG_FILE,
        ).start()
        return port

    # ---- how to connect

    @property
    def port(self) -> int:
        """The port of the running server, or the one that it will use."""
        running = running_server(self._folder.data)
        return self._branch.port if running is None else running.port

    @property
    def dsn(self) -> str:
        """Connects with the password that the role had at the branch's point in time."""
        return self._dsn(HOST)

    @property
    def socket_dsn(self) -> str:
        """Connects without a password, for the account of the server only."""
        return self._dsn(str(self._folder.socket))

    def _dsn(self, host: str) -> str:
        branch = self._branch
        return make_conninfo(
            "", host=host, port=self.port, dbname=branch.database, user=branch.superuser
        )


class StopMode(Enum):
    """The modes of pg_ctl: with a checkpoint, or at once."""

    FAST = signal.SIGINT
    IMMEDIATE = signal.SIGQUIT


def stop_server(data_dir: Path, mode: StopMode) -> bool:
    """Stops the server and returns whether one was running. Raises BranchError."""
    running = running_server(data_dir)
    if running is None:
        return False
    try:
        os.kill(running.pid, mode.value)
    except ProcessLookupError:
        return True
    except PermissionError as error:
        raise BranchError(
            f'could not stop the server in "{data_dir}": it runs as another account',
            hint="Run sk as root or as that account.",
        ) from error
    deadline = time.monotonic() + STOP_SECONDS_MAX
    while running_server(data_dir) is not None:
        if time.monotonic() > deadline:
            raise BranchError(f'the server in "{data_dir}" does not stop')
        time.sleep(POLL_SECONDS)
    return True


def running_server(data_dir: Path) -> PostmasterFile | None:
    """Reads postmaster.pid, and checks that its process exists and works in that directory: after a
    crash the file is left, and its pid may belong to another process. Raises BranchError."""
    try:
        state = read_postmaster_file(data_dir)
        if state is None:
            return None
        works_in = os.readlink(f"/proc/{state.pid}/cwd")
    except (FileNotFoundError, ProcessLookupError):
        return None
    except OSError as error:
        raise BranchError(
            f'could not determine whether a server runs in "{data_dir}": {error.strerror}',
            hint="Run sk as root or as the account of the server.",
        ) from error
    return state if works_in == str(data_dir.resolve()) else None


def state_of(folder: BranchFolder) -> BranchState:
    """Raises BranchError if the folder cannot be read, or if its record is damaged."""
    if folder.is_locked():
        return BranchState.BUSY
    if folder.record() is None:
        return BranchState.INCOMPLETE
    is_running = running_server(folder.data) is not None
    return BranchState.RUNNING if is_running else BranchState.STOPPED


def choose_port(taken: Collection[int]) -> int:
    """Raises BranchError."""
    for port in range(PORT_FIRST, PORT_FIRST + PORTS):
        if port not in taken and is_port_free(port):
            return port
    raise BranchError(
        f"no port from {PORT_FIRST} to {PORT_FIRST + PORTS - 1} is free",
        hint="Specify a port with --port.",
    )


def is_port_free(port: int) -> bool:
    """On the loopback interface. If the port is taken later, the server reports the error."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
        try:
            probe.bind((HOST, port))
            probe.listen(1)
        except OSError:
            return False
    return True
