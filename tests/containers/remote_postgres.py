"""`RemotePostgres`: a Postgres in a container, of which a test knows an address and a password."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from quorum_wal.pg_fixtures.data_directory import SUPERUSER
from quorum_wal.pg_fixtures.postgres import Postgres

POSTGRES_PORT = 5432


class RemotePostgres(Postgres):
    """The methods of Postgres that connect; those that use files or programs do not work."""

    def __init__(self, ip: str, password: str) -> None:
        self.ip = ip
        self.port = POSTGRES_PORT
        self._password = password

    def dsn(self, **extra: Any) -> str:
        keywords: dict[str, Any] = {
            "host": self.ip,
            "port": self.port,
            "user": SUPERUSER,
            "dbname": SUPERUSER,
            "password": self._password,
            "sslmode": "disable",
            "gssencmode": "disable",
        }
        return make_conninfo("", **{**keywords, **extra})

    def accepts_connections(self) -> bool:
        try:
            return bool(self.execute("SELECT 1", connect_timeout=3))
        except psycopg.OperationalError:
            return False
