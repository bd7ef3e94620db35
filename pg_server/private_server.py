"""`PrivateServer`: a Postgres process of ours, with a socket in a folder of its own.

Laws. The kernel ends the server when this process ends, also by kill -9. Only its account can enter
the folder of the socket, so `trust` is safe there. Connections load no libraries: settings of a
database or role may name one that this machine does not have.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from psycopg.conninfo import make_conninfo

from quorum_wal.pg_server.account import Account, give
from quorum_wal.pg_server.program import launcher_argv

PORT = 5432  # only part of the socket's file name; the folder has no other socket
STOP_SECONDS_MAX = 30.0
SESSION_OPTIONS = "-c session_preload_libraries= -c local_preload_libraries="
HBA = "local all all trust\n"


class PrivateServer:
    """Call end() in any case: it stops the server and removes the folder."""

    def __init__(self) -> None:
        self._socket_folder = Path(tempfile.mkdtemp(prefix="sk-"))  # socket paths are short
        #: Its settings, quoted as in postgresql.conf.
        self.settings = {"port": str(PORT), "unix_socket_directories": f"'{self._socket_folder}'"}
        self._log_path = Path(os.devnull)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "the server was not started"
        return self._process

    def start(
        self,
        program: Sequence[str | Path],
        account: Account | None,
        log_path: Path,
        *,
        env: Mapping[str, str] | None = None,
        has_network: bool = True,
    ) -> None:
        """`program` is its command line, with `settings`. `env` is added to our environment."""
        give(self._socket_folder, account)
        self._log_path = log_path
        with log_path.open("wb") as log:
            self._process = subprocess.Popen(
                launcher_argv(program, account, signal.SIGQUIT, has_network=has_network),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env={**os.environ, **(env or {})},
            )

    def conninfo(self, **names: str) -> str:
        """A complete connection string, so that environment variables have no effect. `names` are
        `dbname` and `user`."""
        return make_conninfo(
            "", host=str(self._socket_folder), port=PORT, options=SESSION_OPTIONS,
            sslmode="disable", gssencmode="disable", target_session_attrs="any", **names,
        )  # fmt: skip

    def log_text(self) -> str:
        return self._log_path.read_text(errors="replace")

    def end(self) -> None:
        """Stops the server at once, because its directory is discarded."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGQUIT)
            try:
                self._process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        shutil.rmtree(self._socket_folder, ignore_errors=True)
