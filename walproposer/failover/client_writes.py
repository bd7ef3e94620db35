"""Makes a server read-only for clients, and writable again: default_transaction_read_only.

The setting is changed with ALTER SYSTEM and RESET. A read-only server refuses writes with SQLSTATE
25006, as a standby does, and libpq does not accept it for target_session_attrs = read-write. COMMIT
PREPARED is allowed. A session, role or database with its own value of the parameter can still
write.

Sessions apply a reload before their next command, so the setting is in effect for all of them as
soon as a new session has it. Sources: Postgres `postgres.c` (PostgresMain), `utility.c`
(ClassifyUtilityCommandAsReadOnly).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any

import psycopg

from quorum_wal.walproposer.errors import Refusal

READ_ONLY = "default_transaction_read_only"
# A spelling of `on` that distinguishes our setting from an administrator's. A separate flag could
# get out of step with the setting in a crash.
OUR_ON = "yes"
# Also true if the entry is gone but the value loaded before is still in effect: the process that
# removed the entry was killed before the reload. Whether the entry was ours is unknown, but it was
# meant to be removed.
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
# What a role that may not see our setting can still see of it.
_CANNOT_TELL = (
    "SELECT EXISTS (SELECT FROM pg_settings WHERE name = %s AND setting = 'on' AND source ="
    " 'configuration file') AND NOT rolsuper FROM pg_roles WHERE rolname = current_user"
)

RELOAD_SECONDS = 30.0
POLL_SECONDS = 0.01

#: Opens a new connection to the server, in autocommit mode.
NewSession = Callable[[], AbstractContextManager[psycopg.Connection[Any]]]


def is_closed(connection: psycopg.Connection[Any]) -> bool:
    """Whether we made the server read-only, in the file or in effect. `connection` must be new.
    Only a superuser can see it; another role returns False, since it could not have set it."""
    try:
        row = connection.execute(_IS_CLOSED, {"name": READ_ONLY, "our_on": OUR_ON}).fetchone()
    except psycopg.errors.InsufficientPrivilege:
        return False
    return row is not None and bool(row[0])


def may_be_closed(connection: psycopg.Connection[Any]) -> bool:
    """Whether the server is read-only, and our role can neither see who set it nor change it."""
    row = connection.execute(_CANNOT_TELL, (READ_ONLY,)).fetchone()
    return row is not None and bool(row[0])


def close(new_session: NewSession) -> None:
    """When this returns, no session can write, unless it sets the parameter itself. Raises Refusal,
    psycopg.Error."""
    _alter(new_session, f"ALTER SYSTEM SET {READ_ONLY} = '{OUR_ON}'")


def open_again(new_session: NewSession) -> None:
    """The value in the other configuration files takes effect. Raises Refusal, psycopg.Error."""
    _alter(new_session, f"ALTER SYSTEM RESET {READ_ONLY}")


def _alter(new_session: NewSession, statement: str) -> None:
    """Returns when the postmaster has loaded its configuration after the statement. If it is
    interrupted in between, the caller repeats it: `is_closed` is still true."""
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
                "the server does not reload its configuration",
                hint="See its log for errors in the configuration files.",
            )
        time.sleep(POLL_SECONDS)


def _loaded_at(connection: psycopg.Connection[Any]) -> datetime:
    """When the postmaster loaded its configuration, as of the start of the session."""
    row = connection.execute(_LOADED_AT).fetchone()
    assert row is not None
    (loaded_at,) = row
    assert isinstance(loaded_at, datetime)
    return loaded_at
