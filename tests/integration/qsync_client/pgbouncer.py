"""`PgBouncer`: the real program, in transaction mode: each transaction may get another session."""

from __future__ import annotations

import shutil
from pathlib import Path

import psycopg
from accounts import TIMEOUT

from quorum_wal.pg_fixtures.ports import free_port
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.processes import ServiceProcess
from quorum_wal.pg_server.account import server_account
from quorum_wal.pg_server.errors import Unavailable

CONFIGURATION = """
[databases]
* = host=127.0.0.1 port={server_port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {folder}/users
pool_mode = transaction
ignore_startup_parameters = extra_float_digits,options
"""


class PgBouncer(ServiceProcess):
    """A context manager; it accepts connections inside the block, and forwards them to `server`."""

    def __init__(self, server: Postgres, folder: Path) -> None:
        program = shutil.which("pgbouncer")
        if program is None:
            raise Unavailable("pgbouncer is not installed", hint="apt-get install pgbouncer")
        folder.mkdir()
        self.server, self.port = server, free_port()
        configuration = folder / "pgbouncer.ini"
        settings = {"server_port": server.port, "port": self.port, "folder": folder}
        configuration.write_text(CONFIGURATION.format(**settings))
        (folder / "users").write_text('"postgres" ""\n"login" ""\n')
        for path in (folder, *folder.iterdir()):
            path.chmod(0o755)
        super().__init__(
            [program, configuration],
            log_path=folder.parent / "pgbouncer.log",
            account=server_account(),
        )

    def __enter__(self) -> PgBouncer:
        self.start()
        self.wait_until(self._answers, TIMEOUT, "it to answer")
        return self

    def _answers(self) -> bool:
        try:
            with self.connect() as connection:
                return connection.execute("SELECT 1").fetchone() == (1,)
        except psycopg.OperationalError:
            return False

    def connect(self) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(self.server.dsn(port=self.port), autocommit=True)
