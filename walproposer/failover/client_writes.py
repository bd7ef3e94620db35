"""Whether clients may write: default_transaction_read_only, set by ALTER SYSTEM, and taken back.

A server that is closed so is read as a standby is, refuses writes as one does (SQLSTATE 25006), and
libpq takes it for none to write to (target_session_attrs = read-write). COMMIT PREPARED is allowed.
Who sets the parameter himself, in a session, a role or a database, is not kept out.

Sessions obey a reload before their next command, so it is in force for all of them as soon as a new
one has it. Sources: Postgres `postgres.c` (PostgresMain), `utility.c`
(ClassifyUtilityCommandAsReadOnly).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any

import psycopg

from walproposer.errors import Refusal

READ_ONLY = "default_transaction_read_only"
# A spelling of `on` that tells ours from what an administrator sets; it needs no second place,
# which a crash could part from the first.
OUR_ON = "yes"
# Or the entry is gone, and what the server has loaded before is still in force: who took it away
# was killed before the reload. That it was ours is not known any more; somebody wants it gone.
_IS_CLOSED = """
WITH entry AS (
    SELECT setting FROM pg_file_settings
    WHERE name = %(name)s AND sourcefile LIKE '%%postgresql.auto.conf'
)
SELECT EXISTS (SELECT FROM entry WHERE setting = %(our_on)s)
    OR NOT EXISTS (SELECT FROM entry) AND EXISTS (
        SELECT FROM pg_settings
        WHERE name = %(name)s AND setting = 'on' AND source = 'configuration file'
            AND sourcefile LIKE '%%postgresql.auto.conf')
"""
_LOADED_AT = "SELECT pg_conf_load_time()"
# What a role that may not see our setting sees of it.
_CANNOT_TELL = (
    "SELECT EXISTS (SELECT FROM pg_settings WHERE name = %s AND setting = 'on' AND source ="
    " 'configuration file') AND NOT rolsuper FROM pg_roles WHERE rolname = current_user"
)

RELOAD_SECONDS = 30.0
POLL_SECONDS = 0.01

#: Opens a new connection to the server, in autocommit mode.
NewSession = Callable[[], AbstractContextManager[psycopg.Connection[Any]]]


def is_closed(connection: psycopg.Connection[Any]) -> bool:
    """By us, in the file or in force. `connection` is a new one. Only a superuser may know; another
    role may not have closed it either."""
    try:
        row = connection.execute(_IS_CLOSED, {"name": READ_ONLY, "our_on": OUR_ON}).fetchone()
    except psycopg.errors.InsufficientPrivilege:
        return False
    return row is not None and bool(row[0])


def may_be_closed(connection: psycopg.Connection[Any]) -> bool:
    """It is closed by somebody, and our role may not see by whom, nor open it."""
    row = connection.execute(_CANNOT_TELL, (READ_ONLY,)).fetchone()
    return row is not None and bool(row[0])


def close(new_session: NewSession) -> None:
    """On return no session writes, unless it says so itself. Raises Refusal, psycopg.Error."""
    _alter(new_session, f"ALTER SYSTEM SET {READ_ONLY} = '{OUR_ON}'")


def open_again(new_session: NewSession) -> None:
    """What the other configuration files say holds. Raises Refusal, psycopg.Error."""
    _alter(new_session, f"ALTER SYSTEM RESET {READ_ONLY}")


def _alter(new_session: NewSession, statement: str) -> None:
    """Returns when the postmaster has loaded its configuration after it. Broken off in between, it
    is done again as a whole: `is_closed` says so."""
    with new_session() as connection:
        connection.execute(statement)
    _reload(new_session)


def _reload(new_session: NewSession) -> None:
    with new_session() as connection:
        before = _loaded_at(connection)
        connection.execute("SELECT pg_reload_conf()")
    deadline = time.monotonic() + RELOAD_SECONDS
    while True:
        with new_session() as connection:
            if _loaded_at(connection) != before:
                return
        if time.monotonic() > deadline:
            raise Refusal(
                "the server does not load its configuration again",
                hint="Its log says what is wrong in it.",
            )
        time.sleep(POLL_SECONDS)


def _loaded_at(connection: psycopg.Connection[Any]) -> datetime:
    """When the postmaster did, as of the session's begin."""
    row = connection.execute(_LOADED_AT).fetchone()
    assert row is not None
    (loaded_at,) = row
    assert isinstance(loaded_at, datetime)
    return loaded_at
