"""`altered`: changes a setting of a server inside a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from psycopg import sql

from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.waiting import wait_until

TIMEOUT = 60.0


@contextmanager
def altered(postgres: Postgres, name: str, value: str) -> Iterator[None]:
    """Run ALTER SYSTEM and reload; at the end of the block the setting is reset."""
    ((before,),) = postgres.execute(f"SHOW {name}")
    alter(postgres, name, value)
    try:
        yield
    finally:
        alter(postgres, name, before)


def alter(postgres: Postgres, name: str, value: str) -> None:
    statement = sql.SQL("ALTER SYSTEM SET {} = {}").format(sql.Identifier(name), sql.Literal(value))
    with postgres.connect() as connection:
        connection.execute(statement)
        connection.execute("SELECT pg_reload_conf()")
    wait_until(lambda: postgres.execute(f"SHOW {name}") == [(value,)], TIMEOUT, f"{name} = {value}")
