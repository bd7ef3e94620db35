"""Checks whether the primary is shutting down. The walsender does not report that, but the
postmaster does.

A primary that shuts down waits for its walsenders, and its walsender waits for us. With the quorum
lost it would wait forever. A new connection gets the answer at once: SQLSTATE 57P03, before
authentication, in plain text, even if TLS is required (postmaster.c, canAcceptConnections).
"""

from __future__ import annotations

import socket

import psycopg
from psycopg import pq

from quorum_wal.pgwire.errors import WireError
from quorum_wal.pgwire.messages import ErrorResponse
from quorum_wal.pgwire.startup import StartupMessage

CANNOT_CONNECT_NOW = "57P03"
TIMEOUT_SECONDS = 2.0


def is_shutting_down(pgconn: pq.abc.PGconn) -> bool:
    """Ask the server that `pgconn` is connected to. Returns False if the answer is unknown.
    Blocks."""
    try:
        with _dial(pgconn) as sock:
            return _first_error(sock, pgconn) == CANNOT_CONNECT_NOW
    except (OSError, WireError, psycopg.Error):
        return False


def _dial(pgconn: pq.abc.PGconn) -> socket.socket:
    host = (pgconn.hostaddr or pgconn.host).decode()
    port = int(pgconn.port or b"5432")
    if host.startswith("/"):
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(TIMEOUT_SECONDS)
        sock.connect(f"{host}/.s.PGSQL.{port}")
        return sock
    return socket.create_connection((host, port), TIMEOUT_SECONDS)


def _first_error(sock: socket.socket, pgconn: pq.abc.PGconn) -> str:
    """The SQLSTATE of the first answer, "" if it is not an error."""
    # Imported here because a starting proposer does not need it, and commits wait for the start.
    from quorum_wal.pgwire.connection import NEED_DATA, ClientConnection

    connection = ClientConnection()
    # Names that exist: the server would log unknown ones, once per second.
    who = {"user": pgconn.user.decode(), "database": pgconn.db.decode()}
    sock.settimeout(TIMEOUT_SECONDS)
    sock.sendall(connection.send(StartupMessage(who)))
    while True:
        data = sock.recv(4096)
        connection.feed(data)
        message = connection.next()
        if message is not NEED_DATA:
            return message.sqlstate if isinstance(message, ErrorResponse) else ""
        if not data:
            return ""
