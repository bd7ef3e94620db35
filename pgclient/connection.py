"""Opening connections, by psycopg in autocommit mode.

psycopg resolves names itself, where other threads go on, and tries each address of a name: a slow
name server stalls no commit.
"""

from __future__ import annotations

import os
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgclient.errors import NotConnected, first_line
from pgclient.required_auth import required_auth

CONNECT_TIMEOUT_SECONDS = 5

# An unanswered byte is given up after this, so that a vanished host is noticed while streaming.
TCP_USER_TIMEOUT_MS = 15_000

#: A safekeeper that has left a timeline lets in who knows how to go on from there, and sends stock
#: clients to their next host (`safekeeper/startup_parameters.py`).
OWN_CLIENT = "-c sk.client=on"

NO_PASSWORD = "no password supplied"
#: What a server says in FATAL, before there is a connection with a SQLSTATE, and what to do. Each
#: runs: nothing is to be started, and its address is right.
ANSWERED = (
    ("replication connection", "Add a line to the server's pg_hba.conf, "
     "host replication USER ADDRESS scram-sha-256 for instance, and reload it."),
    ("pg_hba.conf", "Add a line to the server's pg_hba.conf, host DATABASE USER ADDRESS "
     "scram-sha-256 for instance, and reload it."),
    ("authentication failed", "Correct the user or its password: user=..., passfile=..."),
    (NO_PASSWORD, "Name the password's file: passfile=..."),
    ("the database system is", "It starts or stops: try again."),
    ("too many", "Its places for clients are taken: end some, or allow more."),
    ("does not exist", "Create it on the server, or correct user=... and dbname=..."),
    ("FATAL", "The server runs and refuses; its log may say more."),
)  # fmt: skip


def connect(conninfo: str, **overrides: Any) -> psycopg.Connection:
    """`replication="true"` among the overrides: for questions and streams. Raises NotConnected."""
    try:
        settings: dict[str, Any] = {
            "connect_timeout": CONNECT_TIMEOUT_SECONDS,
            "tcp_user_timeout": TCP_USER_TIMEOUT_MS,
            "client_encoding": "UTF8",  # of a SQL_ASCII database psycopg would return bytes
            **conninfo_to_dict(conninfo),
            **overrides,
        }
        return psycopg.Connection.connect(make_conninfo("", **settings), autocommit=True)
    except (psycopg.Error, OSError, UnicodeError) as error:  # the last of a name that can be none
        text = first_line(error)
        raise NotConnected(text, hint=_hint_of(text)) from error


def connect_safekeeper(conninfo: str, **overrides: Any) -> psycopg.Connection:
    """A replication connection to a safekeeper, which gets a proof of the password, never the
    password itself, and hears that it is one of us. Raises NotConnected."""
    try:
        settings = conninfo_to_dict(conninfo)
        proof = required_auth(settings, os.environ)
    except (psycopg.Error, UnicodeError) as error:
        raise NotConnected(first_line(error)) from error
    named = overrides.pop("options", None) or settings.get("options")
    given = named or os.environ.get("PGOPTIONS", "")
    options = f"{given} {OWN_CLIENT}".strip()
    return connect(conninfo, replication="true", options=options, **proof, **overrides)


def _hint_of(text: str) -> str:
    """What to do about a server that answers; "" when none does."""
    is_answer = "FATAL" in text or NO_PASSWORD in text  # the latter is libpq's own word
    return next((hint for words, hint in ANSWERED if is_answer and words in text), "")
