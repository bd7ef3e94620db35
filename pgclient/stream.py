"""Streams WAL from a position on, for callers that may block.

The proposer's own streams use its event loop: `walproposer/stream/copy_connection.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
from psycopg import pq

from quorum_wal.pgclient.errors import ConnectionLost, Silent
from quorum_wal.pgclient.results import (
    arrived_copy_data,
    lost,
    next_result,
    receive_copy_data,
    run_command,
)
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.pgwire.errors import ProtocolError
from quorum_wal.pgwire.replication import StandbyStatus, XLogData, parse_server_message


def start_copy(pgconn: pq.abc.PGconn, command: str) -> bool:
    """Send `command`. Returns whether CopyBoth has begun. It does not begin at the end of a
    timeline that the server has left. Raises ServerError, ConnectionLost."""
    return run_command(pgconn, command).status == pq.ExecStatus.COPY_BOTH


class ReplicationStream:
    """A connection on which START_REPLICATION has begun a copy at `begin_lsn`.

    Every method raises ServerError and ConnectionLost. Methods that read raise Silent if no message
    came for `silence_seconds`: a server with no WAL to send sends keepalives.
    """

    def __init__(self, pgconn: pq.abc.PGconn, begin_lsn: int, silence_seconds: float) -> None:
        self._pgconn = pgconn
        self._silence_seconds = silence_seconds
        #: Where the next piece begins.
        self.next_lsn = begin_lsn
        self._is_ended = False

    def pieces(self) -> Iterator[memoryview]:
        """The WAL in pieces, without a gap, until the server ends the stream. An empty piece means
        that there was no new WAL."""
        while (payload := self._next()) is not None:
            yield self._piece(payload)
        next_result(self._pgconn)  # raises the server's error, if one ended the copy

    def batches(self, bytes_max: int) -> Iterator[list[memoryview]]:
        """The pieces that have arrived together. A batch has at least one piece, and ends with the
        piece that reaches `bytes_max`."""
        for piece in self.pieces():
            batch, size = [piece], len(piece)
            while size < bytes_max and (payload := self._arrived()) is not None:
                batch.append(self._piece(payload))
                size += len(batch[-1])
            yield batch

    def _next(self) -> memoryview | None:
        """The next CopyData, or None at the end of the copy."""
        if self._is_ended:
            return None
        return receive_copy_data(self._pgconn, self._silence_seconds)

    def _arrived(self) -> memoryview | None:
        """The next CopyData, without waiting. None: none has arrived, or the copy has ended. libpq
        reports the end once; pieces() then handles it."""
        try:
            payload = arrived_copy_data(self._pgconn)
        except Silent:
            return None
        self._is_ended = payload is None
        return payload

    def _piece(self, payload: memoryview) -> memoryview:
        try:
            message = parse_server_message(payload)
        except ProtocolError as error:
            raise ConnectionLost(str(error)) from error
        if not isinstance(message, XLogData):
            return memoryview(b"")
        if message.start_lsn != self.next_lsn:
            raise ConnectionLost(
                f"expected WAL at {format_lsn(self.next_lsn)}, got {format_lsn(message.start_lsn)}"
            )
        self.next_lsn += len(message.data)
        return memoryview(message.data)

    def read(self, end_lsn: int) -> bytes:
        """All WAL up to `end_lsn`."""
        size, wal, pieces = end_lsn - self.next_lsn, bytearray(), self.pieces()
        while len(wal) < size:
            piece = next(pieces, None)
            if piece is None:
                raise ConnectionLost("the server ended the stream")
            wal += piece
        return bytes(wal[:size])

    def send_status(self, status: StandbyStatus) -> None:
        try:
            self._pgconn.put_copy_data(status.encode())
            self._pgconn.flush()
        except psycopg.Error as error:
            raise lost(error) from error

    def end(self) -> None:
        """End the copy. When this returns, the server has received everything that was sent."""
        try:
            self._pgconn.put_copy_end()
            self._pgconn.flush()
        except psycopg.Error as error:
            raise lost(error) from error
        while receive_copy_data(self._pgconn, self._silence_seconds) is not None:
            continue
        while next_result(self._pgconn) is not None:
            continue
