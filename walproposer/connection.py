"""Connections to the primary and to safekeepers. Converts the errors of `pgclient` to ours.

This is the only place that does so. A server that shuts down or does not answer raises Unreachable.
A request that a server refuses raises Refusal, or WalProposerError with the server's message.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from quorum_wal.pgclient.connection import connect
from quorum_wal.pgclient.errors import NotConnected, PgClientError, ServerError, first_line
from quorum_wal.walproposer.errors import Refusal, Unreachable, WalProposerError

PORT_MAX = 65535

#: The SQLSTATE class of a server that shuts down, has crashed or is starting (57P01 to 57P03).
OPERATOR_INTERVENTION = "57P"


def open_connection(conninfo: str, what: str, **overrides: Any) -> psycopg.Connection:
    """A connection in autocommit mode. `what` names the server in messages; it never has a
    password. Raises Unreachable."""
    with connecting(what):
        return connect(conninfo, **_accept_read_only(conninfo), **overrides)


def _accept_read_only(conninfo: str) -> dict[str, str]:
    """We also connect to a primary that is read-only for clients (`failover/client_writes.py`),
    because the proposer must end that state."""
    try:
        asks_for_writes = conninfo_to_dict(conninfo).get("target_session_attrs") == "read-write"
    except (psycopg.Error, UnicodeError):
        return {}  # connect() reports the error
    return {"target_session_attrs": "primary"} if asks_for_writes else {}


@contextmanager
def connecting(what: str) -> Iterator[None]:
    """Raises Unreachable if the block cannot connect."""
    try:
        yield
    except NotConnected as error:
        raise Unreachable(f"could not connect to {what}: {error}", hint=error.hint) from error


@contextmanager
def converting_errors(doing: str) -> Iterator[None]:
    """Converts an error of a server in the block to Unreachable or Refusal. Our own errors pass."""
    try:
        yield
    except psycopg.Error as error:
        message = error.diag.message_primary or first_line(error)
        hint = error.diag.message_hint or ""
        raise _error_of(f"{doing}: {message}", error.sqlstate or "", hint) from error
    except PgClientError as error:
        sqlstate = error.sqlstate if isinstance(error, ServerError) else ""
        raise _error_of(f"{doing}: {error}", sqlstate, error.hint) from error


def _error_of(message: str, sqlstate: str, hint: str) -> WalProposerError:
    """A server that stopped or crashed is expected back, so the error is Unreachable. Others are
    Refusal."""
    is_gone = not sqlstate or sqlstate.startswith(OPERATOR_INTERVENTION)
    kind = Unreachable if is_gone else Refusal
    return kind(message, hint=hint, sqlstate=sqlstate)


def server_error(error: PgClientError, lost: str = "") -> WalProposerError:
    """Convert an error with the server's message. If it does not come from a server, it becomes
    Unreachable, with `lost` before the message."""
    if isinstance(error, ServerError):
        return WalProposerError(str(error), hint=error.hint, sqlstate=error.sqlstate)
    return Unreachable(f"{lost}{error}", hint=error.hint)


def port_number(text: str) -> int | None:
    """The TCP port; None if `text` is not one. Checks the length first, because int() refuses very
    long texts."""
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(PORT_MAX))
    return int(text) if is_number and int(text) <= PORT_MAX else None
