"""Opens connections with psycopg, in autocommit mode.

psycopg resolves host names itself, without blocking other threads, and tries each address of a
name. So a slow name server does not delay a commit.
"""

from __future__ import annotations

import os
import re
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from quorum_wal.pgclient.errors import NotConnected, first_line
from quorum_wal.pgclient.required_auth import required_auth

CONNECT_TIMEOUT_SECONDS = 5

# The kernel closes a connection whose data is not acknowledged for this long, so that a stream
# notices an unreachable host.
TCP_USER_TIMEOUT_MS = 15_000

#: A safekeeper that has left a timeline accepts clients that can continue from there. It sends
#: stock clients to their next host (`safekeeper/startup_parameters.py`).
OWN_CLIENT = "-c sk.client=on"

NO_PASSWORD = "no password supplied"
#: Texts of FATAL errors that a server sends before there is a connection with a SQLSTATE, each with
#: a hint. In each case the server runs and its address is right.
ANSWERED = (
    ("replication connection", "Add a line to the server's pg_hba.conf, "
     "host replication USER ADDRESS scram-sha-256 for instance, and reload it."),
    ("pg_hba.conf", "Add a line to the server's pg_hba.conf, host DATABASE USER ADDRESS "
     "scram-sha-256 for instance, and reload it."),
    ("requires TLS", "Use TLS: sslmode=verify-full sslrootcert=FILE"),
    ("authentication failed", "Correct the user or its password: user=..., passfile=..."),
    (NO_PASSWORD, "Give a password file: passfile=..."),
    ("the database system is", "The server is starting or stopping. Try again."),
    ("too many", "The server has too many connections. Close some, or raise max_connections."),
    ("does not exist", "Create it on the server, or correct user=... and dbname=..."),
    ("FATAL", "The server runs but refuses the connection. See its log."),
)  # fmt: skip
#: A safekeeper does not tell whether a user exists.
UNKNOWN_ROLE = re.compile('role ".*" does not exist')
IS_A_SERVER = "A Postgres server runs at this address. Correct the address of the safekeeper."
#: Texts of libpq itself about TLS with a server that runs.
REFUSED_TLS = (
    ("certificate verify failed", "The server runs. Correct sslrootcert=..., or the certificate of "
     "the server. It may have ended: see the log of the server."),
    ("does not match host name", "Connect with a name that is in the certificate, or issue one "
     "with this name."),
    ("does not support SSL", "The server runs without TLS. Correct sslmode=..., or start it with "
     "TLS."),
)  # fmt: skip


def connect(conninfo: str, **overrides: Any) -> psycopg.Connection:
    """Open a connection; with `replication="true"` in `overrides` for commands and streams. Raises
    NotConnected."""
    try:
        settings: dict[str, Any] = {
            "connect_timeout": CONNECT_TIMEOUT_SECONDS,
            "tcp_user_timeout": TCP_USER_TIMEOUT_MS,
            "client_encoding": "UTF8",  # psycopg would return bytes from a SQL_ASCII database
            **conninfo_to_dict(conninfo),
            **overrides,
        }
        return psycopg.Connection.connect(make_conninfo("", **settings), autocommit=True)
    except (psycopg.Error, OSError, UnicodeError) as error:  # UnicodeError: of an invalid host name
        text = first_line(error)
        raise NotConnected(text, hint=_hint_of(text)) from error


def connect_safekeeper(conninfo: str, **overrides: Any) -> psycopg.Connection:
    """Open a replication connection to a safekeeper. The client never sends it a plain-text
    password, and identifies itself as one of ours. Raises NotConnected."""
    try:
        settings = conninfo_to_dict(conninfo)
        proof = required_auth(settings, os.environ)
    except (psycopg.Error, UnicodeError) as error:
        raise NotConnected(first_line(error)) from error
    named = overrides.pop("options", None) or settings.get("options")
    given = named or os.environ.get("PGOPTIONS", "")
    options = f"{given} {OWN_CLIENT}".strip()
    try:
        return connect(conninfo, replication="true", options=options, **proof, **overrides)
    except NotConnected as error:
        if UNKNOWN_ROLE.search(str(error)):
            raise NotConnected(str(error), hint=IS_A_SERVER) from error
        raise


def _hint_of(text: str) -> str:
    """The hint for an error that a server sent, or for its TLS; "" when no server answered."""
    for words, hint in REFUSED_TLS:
        if words in text:
            return hint
    is_answer = "FATAL" in text or NO_PASSWORD in text  # NO_PASSWORD is a message of libpq itself
    return next((hint for words, hint in ANSWERED if is_answer and words in text), "")
