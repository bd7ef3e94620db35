"""What is on the server: the limbo, and the accounts that everybody sees."""

from __future__ import annotations

from typing import Any

from psycopg import sql

from pg_fixtures.postgres import Postgres

TAKE = "UPDATE account SET amount = amount - %s WHERE name = %s"
OWNER = '"o\'\\brien"'
LOCAL = "-c synchronous_commit=local"


def prepared(server: Postgres) -> list[str]:
    """All gids in the limbo."""
    return [gid for (gid,) in server.execute("SELECT gid FROM pg_prepared_xacts ORDER BY 1")]


def finish(server: Postgres, gid: str, how: str = "COMMIT") -> None:
    """As the janitor does."""
    with server.connect(options=LOCAL) as connection:
        statement = sql.SQL("{} PREPARED {}").format(sql.SQL(how), sql.Literal(gid))  # type: ignore[arg-type]
        connection.execute(statement)


def amounts(server: Postgres) -> dict[str, int]:
    rows: list[Any] = server.execute("SELECT name, amount FROM account")
    return dict(rows)
