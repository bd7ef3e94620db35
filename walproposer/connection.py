"""Connections to the primary and to safekeepers, and what `pgclient` raises as an error of ours.

Here alone: a server that goes away, or does not answer, is Unreachable; what it refuses is a
Refusal, or a WalProposerError in its own words.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from pgclient.connection import connect
from pgclient.errors import NotConnected, PgClientError, ServerError, first_line
from walproposer.errors import Refusal, Unreachable, WalProposerError

PORT_MAX = 65535

#: The class of a server that shuts down, has crashed or is starting (57P01 to 57P03).
OPERATOR_INTERVENTION = "57P"


def open_connection(conninfo: str, what: str, **overrides: Any) -> psycopg.Connection:
    """A connection in autocommit mode. `what` names the other side in messages, never with a
    password. Raises Unreachable."""
    with connecting(what):
        return connect(conninfo, **_reaching_closed(conninfo), **overrides)


def _reaching_closed(conninfo: str) -> dict[str, str]:
    """A primary is one for us also while clients may not write to it (`failover/client_writes.py`),
    and who would let them is us."""
    try:
        asks_for_writes = conninfo_to_dict(conninfo).get("target_session_attrs") == "read-write"
    except (psycopg.Error, UnicodeError):
        return {}  # who connects says what is wrong
    return {"target_session_attrs": "primary"} if asks_for_writes else {}


@contextmanager
def connecting(what: str) -> Iterator[None]:
    """Raises Unreachable when the block cannot connect."""
    try:
        yield
    except NotConnected as error:
        raise Unreachable(f"could not connect to {what}: {error}", hint=error.hint) from error


@contextmanager
def refusing(doing: str) -> Iterator[None]:
    """What a server says in the block becomes Unreachable or Refusal; one of ours passes."""
    try:
        yield
    except psycopg.Error as error:
        message = error.diag.message_primary or first_line(error)
        hint = error.diag.message_hint or ""
        raise _judged(f"{doing}: {message}", error.sqlstate or "", hint) from error
    except PgClientError as error:
        sqlstate = error.sqlstate if isinstance(error, ServerError) else ""
        raise _judged(f"{doing}: {error}", sqlstate, error.hint) from error


def _judged(message: str, sqlstate: str, hint: str) -> WalProposerError:
    """A server that stopped or crashed just now will be back; what it refuses, it refuses."""
    is_gone = not sqlstate or sqlstate.startswith(OPERATOR_INTERVENTION)
    kind = Unreachable if is_gone else Refusal
    return kind(message, hint=hint, sqlstate=sqlstate)


def as_said(error: PgClientError, lost: str = "") -> WalProposerError:
    """In the server's own words; Unreachable, after `lost`, when they are not a server's."""
    if isinstance(error, ServerError):
        return WalProposerError(str(error), hint=error.hint, sqlstate=error.sqlstate)
    return Unreachable(f"{lost}{error}", hint=error.hint)


def port_number(text: str) -> int | None:
    """The TCP port; None for what is none. Digits are counted first: int() refuses thousands."""
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(PORT_MAX))
    return int(text) if is_number and int(text) <= PORT_MAX else None
