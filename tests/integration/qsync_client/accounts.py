"""The content of the server: the limbo, and the visible accounts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

from psycopg import sql

from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.waiting import wait_until

TIMEOUT = 30.0  # seconds

TAKE = "UPDATE account SET amount = amount - %s WHERE name = %s"
OWNER = '"o\'\\brien"'
#: A row that is inserted here delays PREPARE, or COMMIT, by that many seconds.
SLOW = """
CREATE TABLE slow (seconds float8);
CREATE FUNCTION nap() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_sleep(NEW.seconds); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER nap AFTER INSERT ON slow DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION nap()
"""
SLOWLY = "INSERT INTO slow VALUES (%s)"
LOCAL = "-c synchronous_commit=local"


def prepared(server: Postgres) -> list[str]:
    """All gids in the limbo."""
    return [gid for (gid,) in server.execute("SELECT gid FROM pg_prepared_xacts ORDER BY 1")]


def finish(server: Postgres, gid: str, how: str = "COMMIT") -> None:
    """Finish the transaction as the janitor does."""
    with server.connect(options=LOCAL) as connection:
        prefix: Any = f"{how} PREPARED "
        connection.execute(sql.SQL(prefix) + sql.Literal(gid))


def amounts(server: Postgres) -> dict[str, int]:
    rows: list[Any] = server.execute("SELECT name, amount FROM account")
    return dict(rows)


def wait_until_slow(server: Postgres) -> None:
    """Return when a PREPARE is being delayed."""
    query = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
    wait_until(lambda: server.execute(query), TIMEOUT, "a slow PREPARE")


@contextmanager
def meanwhile(action: Callable[[], object]) -> Iterator[None]:
    """Run the function in a thread inside the block. Its exception is raised at the end."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            action()
        except BaseException as failure:
            failures.append(failure)

    thread = Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        if failures:
            raise failures[0]
