"""The address of the primary, and the names that we use there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from quorum_wal.walproposer.connection import open_connection

#: Settings of libpq 18. A client with these keys needs no password.
SCRAM_KEYS = ("scram_client_key", "scram_server_key")


@dataclass(frozen=True, slots=True)
class PrimaryAddress:
    """A DSN, and the slot and application names that we use on the primary."""

    dsn: str
    slot: str = "walproposer"
    application_name: str = "walproposer"

    def __str__(self) -> str:
        return without_passwords(self.dsn)

    def connect(self, **overrides: object) -> psycopg.Connection:
        """An ordinary connection for queries. Its commits never wait for a synchronous standby."""
        return open_connection(
            self.dsn,
            f"the primary ({self})",
            **{"application_name": "sk", "options": "-c synchronous_commit=local", **overrides},
        )

    @contextmanager
    def connected(self, shared: psycopg.Connection | None = None) -> Iterator[psycopg.Connection]:
        """A connection as of connect() for the block; or `shared`, which stays open."""
        if shared is not None:
            yield shared
            return
        with closing(self.connect()) as connection:
            yield connection


@cache  # the status has it, every second and for every request
def without_passwords(dsn: str) -> str:
    """Leaves out the settings that libpq itself does not display (dispchar '*'), and the keys that
    replace a password."""
    secret = {o.keyword.decode() for o in pq.Conninfo.get_defaults() if o.dispchar == b"*"}
    parts = conninfo_to_dict(dsn)
    shown = {k: v for k, v in parts.items() if k not in secret and k not in SCRAM_KEYS}
    return make_conninfo("", **shown)
