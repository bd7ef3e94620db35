"""A libpq connection in CopyBoth mode on the hot loop: sends and receives payloads. Never blocks.

Call `receive` once before waiting for the socket: the first payloads may have arrived together with
the answer that began the stream, and libpq then holds them already. Opening a connection may block,
so `peer.py` and `upstream.py` do it in a thread.
"""

from __future__ import annotations

from collections.abc import Callable

import psycopg
from psycopg import pq

from quorum_wal.pgclient.errors import first_line
from quorum_wal.pgclient.results import result_error
from quorum_wal.pgwire.errors import ProtocolError
from quorum_wal.pgwire.replication import ServerReplicationMessage, parse_server_message
from quorum_wal.walproposer.connection import server_error
from quorum_wal.walproposer.errors import PrimaryLost, Unreachable, WalProposerError


class CopyConnection:
    """`end` is set once, when the other side has ended the copy or the connection is lost.
    `changed` is called when `end` or `wants_write` changes."""

    def __init__(
        self, connection: psycopg.Connection, changed: Callable[[], None] = lambda: None
    ) -> None:
        self._changed = changed
        self._connection = connection
        self.pgconn = connection.pgconn
        self.pgconn.nonblocking = 1
        # libpq closes the socket itself when the connection breaks, and then forgets its number.
        self._fd = self.pgconn.socket
        #: libpq holds bytes that the socket did not accept: wait until it is writable.
        self.wants_write = False
        self.end: WalProposerError | None = None
        self._is_encrypted = bool(self.pgconn.ssl_in_use)

    def on_change(self, changed: Callable[[], None]) -> None:
        """Set the callback."""
        self._changed = changed

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        self._connection.close()

    def send(self, payload: bytes) -> None:
        """Queue one CopyData and write what the socket accepts."""
        try:
            self.pgconn.put_copy_data(payload)
            wants_write = self.pgconn.flush() != 0
        except psycopg.Error as error:
            self.end_with(_lost(error))
            return
        if wants_write is not self.wants_write:
            self.wants_write = wants_write
            self._changed()

    def flush(self) -> None:
        """The socket is writable again."""
        try:
            self.wants_write = self.pgconn.flush() != 0
        except psycopg.Error as error:
            self.end_with(_lost(error))
        self._changed()

    def end_with(self, why: WalProposerError) -> None:
        """Set the reason for the end. The first reason stays."""
        self.end = self.end or why
        self._changed()

    def receive(self) -> list[memoryview]:
        """All payloads that have arrived; the socket is readable."""
        payloads: list[memoryview] = []
        pgconn = self.pgconn
        try:
            while True:
                before = len(payloads)
                pgconn.consume_input()
                size, data = pgconn.get_copy_data(1)
                while size > 0:
                    payloads.append(data)
                    size, data = pgconn.get_copy_data(1)
                if size < 0:
                    self.end_with(self._ended())
                    return payloads
                # TLS may hold decrypted bytes while poll() reports no input.
                if not self._is_encrypted or len(payloads) == before:
                    return payloads
        except psycopg.Error as error:
            self.end_with(_lost(error))
            return payloads

    def receive_replication(self) -> list[ServerReplicationMessage]:
        """Like receive(), as messages of a walsender. An invalid message ends the connection."""
        try:
            return [parse_server_message(payload) for payload in self.receive()]
        except ProtocolError as error:
            self.end_with(Unreachable(str(error)))
            return []

    def _ended(self) -> WalProposerError:
        """The server ended the copy, with an error or with another result."""
        result = self.pgconn.get_result()
        if result is None:
            return Unreachable("the connection was closed by the other side")
        if result.status == pq.ExecStatus.FATAL_ERROR:
            return server_error(result_error(result, self.pgconn))
        return PrimaryLost("the server ended the stream", orderly=True)


def _lost(error: psycopg.Error) -> Unreachable:
    return Unreachable(first_line(error))
