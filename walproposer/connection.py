"""Opening libpq connections, to the primary and to safekeepers, off the hot loop.

libpq resolves names inside one C call that keeps the interpreter to itself; a slow name server
would stall every commit. So names are resolved here first, where other threads go on.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgwal.history import TimelineHistory
from pgwal.lsn import Lsn
from walproposer.errors import Refusal, Unreachable, WalProposerError

CONNECT_TIMEOUT_SECONDS = 5
PORT_MAX = 65535

# An unanswered byte is given up after this, so that a vanished host is noticed while streaming.
TCP_USER_TIMEOUT_MS = 15_000

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

#: The class of a server that shuts down, has crashed or is starting (57P01 to 57P03).
OPERATOR_INTERVENTION = "57P"


def open_connection(conninfo: str, what: str, **overrides: Any) -> psycopg.Connection:
    """A connection in autocommit mode. `what` names the other side in messages, never with a
    password. Raises Unreachable."""
    settings: dict[str, Any] = {
        "connect_timeout": CONNECT_TIMEOUT_SECONDS,
        "tcp_user_timeout": TCP_USER_TIMEOUT_MS,
        "client_encoding": "UTF8",  # of a SQL_ASCII database psycopg would return bytes
        **conninfo_to_dict(conninfo),
        **overrides,
    }
    try:
        settings.update(_resolved(settings))
        return psycopg.Connection.connect(make_conninfo("", **settings), autocommit=True)
    except (psycopg.Error, OSError) as error:
        text = first_line(error)
        raise Unreachable(f"could not connect to {what}: {text}", hint=_hint_of(text)) from error


def _hint_of(text: str) -> str:
    """What to do about a server that answers; "" when none does."""
    is_answer = "FATAL" in text or NO_PASSWORD in text  # the latter is libpq's own word
    return next((hint for words, hint in ANSWERED if is_answer and words in text), "")


def _resolved(settings: Mapping[str, Any]) -> dict[str, str]:
    """hostaddr for a single host name; sockets, addresses and lists are left to libpq."""
    host = str(settings.get("host") or "")
    if not host or host.startswith(("/", "@")) or "," in host or settings.get("hostaddr"):
        return {}
    port = str(settings.get("port") or 5432)
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return {"hostaddr": str(found[0][4][0])}


def port_number(text: str) -> int | None:
    """The TCP port; None for what is none. Digits are counted first: int() refuses thousands."""
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(PORT_MAX))
    return int(text) if is_number and int(text) <= PORT_MAX else None


def first_line(error: Exception) -> str:
    """What libpq says, without its advice ("Is the server running on that host ...?")."""
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__


@contextmanager
def refusing(doing: str) -> Iterator[None]:
    """What a server says in the block becomes Unreachable or Refusal; one of ours passes."""
    try:
        yield
    except psycopg.Error as error:
        message = error.diag.message_primary or first_line(error)
        hint = error.diag.message_hint or ""
        raise _judged(f"{doing}: {message}", error.sqlstate or "", hint) from error
    except WalProposerError as error:
        if type(error) is not WalProposerError:
            raise
        raise _judged(f"{doing}: {error}", error.sqlstate, error.hint) from error


def _judged(message: str, sqlstate: str, hint: str) -> WalProposerError:
    """A server that stopped or crashed just now will be back; what it refuses, it refuses."""
    is_gone = not sqlstate or sqlstate.startswith(OPERATOR_INTERVENTION)
    kind = Unreachable if is_gone else Refusal
    return kind(message, hint=hint, sqlstate=sqlstate)


def command_result(pgconn: pq.abc.PGconn, command: str) -> pq.abc.PGresult:
    """Run one replication command, blocking. Raises WalProposerError with the server's words."""
    result = pgconn.exec_(command.encode())
    if result.status in (pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.BAD_RESPONSE):
        raise server_error(result, pgconn)
    return result


def server_error(result: pq.abc.PGresult, pgconn: pq.abc.PGconn) -> WalProposerError:
    """What a server said, as an error of ours."""

    def field(code: pq.DiagnosticField) -> str:
        return (result.error_field(code) or b"").decode(errors="replace")

    message = field(pq.DiagnosticField.MESSAGE_PRIMARY)
    return WalProposerError(
        message or pgconn.get_error_message().strip(),
        hint=field(pq.DiagnosticField.MESSAGE_HINT),
        sqlstate=field(pq.DiagnosticField.SQLSTATE),
    )


def identify_system(pgconn: pq.abc.PGconn) -> tuple[int, TimelineHistory, int]:
    """IDENTIFY_SYSTEM and TIMELINE_HISTORY: the system id, the history of the timeline that the
    server is on, and the end of its WAL. Raises WalProposerError, psycopg.Error."""
    system_id, tli, flush_lsn, _ = rows_of(command_result(pgconn, "IDENTIFY_SYSTEM"))[0]
    history = TimelineHistory(int(tli or 0))
    if history.tli > 1:
        rows = rows_of(command_result(pgconn, f"TIMELINE_HISTORY {tli}"))
        history = TimelineHistory.parse(history.tli, rows[0][1] or "")
    return int(system_id or 0), history, int(Lsn.parse(flush_lsn or ""))


def rows_of(result: pq.abc.PGresult) -> list[list[str | None]]:
    """The rows of a result as text."""
    return [
        [
            value.decode() if (value := result.get_value(row, column)) is not None else None
            for column in range(result.nfields)
        ]
        for row in range(result.ntuples)
    ]
